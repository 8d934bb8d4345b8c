"""The plan of a batch in parts: micro-batches, and stages that hold them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from planner.cost_models import usable_memory_bytes
from planner.errors import InfeasibleError, UsageError
from planner.ir import DeviceMesh, Graph
from planner.planning.pipeline.stages import Pipelined, pipelined
from planner.planning.planner import Planned, make_plan, too_large
from planner.planning.recall import Recall
from planner.planning.request import STRATEGY, Request
from planner.pricing import PriceTables
from planner.search.control import Control

__all__ = ["Parts", "global_batch", "in_parts", "micro_batches", "plan_in_parts"]

_MOST_TRIES: Final = 8
_EVERYTHING: Final = 1 << 60
_MARGIN: Final = 0.98  # of what a smaller limit should bring: stages do not shrink alike


@dataclass(frozen=True, slots=True)
class Parts:
    """`batch` samples of a micro-batch; None where the file's own batch is left as it is."""

    stages: int
    micro_batches: int
    batch: int | None


def global_batch(graph: Graph) -> int:
    """The first dimension of the first input that has one."""
    shapes = (graph.tensors[t].shape for t in graph.inputs)
    return next((s[0] for s in shapes if s), 1)


def in_parts(
    load: Callable[[int | None], Graph], batch: int | None, stages: int, requested: int | None, devices: int
) -> tuple[Graph, Parts]:
    """The graph of a micro-batch.

    `load(batch)` reads the model; `batch`: of all micro-batches, None: as the file has it; `requested`: how many
    micro-batches; None: up to four a stage, such that all `devices` of a stage get samples, if they divide.  UsageError
    where the batch does not divide, or is bound to a size.
    """
    graph = load(batch)
    total = global_batch(graph) if batch is None else batch
    count = micro_batches(total, stages, requested, devices)
    if count == 1:
        return graph, Parts(stages, 1, batch)
    part = load(total // count)
    if all(part.tensors[t].shape == graph.tensors[t].shape for t in graph.inputs):
        raise UsageError(
            f"{count} micro-batches: the inputs keep their sizes when the batch becomes {total // count}; give the "
            "batch by --batch, not by --bind"
        )
    return part, Parts(stages, count, total // count)


def micro_batches(total: int, stages: int, requested: int | None, devices: int) -> int:
    """Into how many parts a batch of `total` samples goes; arguments and errors as of `in_parts`."""
    if requested is not None:
        if total % requested:
            raise UsageError(
                f"--micro-batches {requested}: expected a divisor of the batch, {total}; give another --batch"
            )
        return requested
    if stages == 1:
        return 1
    counts = [m for m in range(1, 4 * stages + 1) if total % m == 0]
    return max([m for m in counts if total // m % devices == 0] or counts)


def plan_in_parts(
    graph: Graph,
    request: Request,
    parts: Parts,
    *,
    control: Control | None = None,
    recall: Recall | None = None,
    held: Mapping[str, int] | None = None,
    tables: dict[DeviceMesh, PriceTables] | None = None,
) -> tuple[Planned, Pipelined]:
    """The plan of a micro-batch (`graph`), cut into stages; `held`: the stage of each parameter, where that is given.

    While it is searched a device has the memory of all stages, as each holds a part of the parameters.  Where a stage
    does not fit then, the plan is searched again with less, and with recomputation where the request leaves that open.

    InfeasibleError where none of these fits.
    """
    limit = usable_memory_bytes(request.profile) if request.memory_limit is None else request.memory_limit
    execution = request.execution
    if execution is not None and execution.order != "1f1b" and not request.settings.training:
        raise UsageError(
            f"{STRATEGY}: schedule={execution.order}: schedules differ in when backward passes run, and inference has "
            "none; leave schedule and vpp out"
        )
    if request.configured is not None:
        return _configured(graph, request, parts, limit, control, recall, tables)
    ways = [request.recompute]
    if request.recompute == "auto" and request.settings.training:
        ways.append("blocks")
    failed: InfeasibleError | None = None
    for way in ways:
        wide = None if limit is None else limit * parts.stages
        for _ in range(_MOST_TRIES):
            try:
                planned = make_plan(
                    graph,
                    replace(request, memory_limit=wide, recompute=way),
                    control=control,
                    recall=recall,
                    tables=tables,
                )
            except InfeasibleError as e:
                failed = failed or e
                break
            found = pipelined(replace(planned, memory_limit=limit), parts.stages, parts.micro_batches, held)
            worst = max(found.memory)
            if limit is None or wide is None or worst <= limit:
                return found.planned, found
            failed = _too_much(found, limit)
            wide = round(wide * limit / worst * _MARGIN)
    assert failed is not None
    raise failed


def _configured(
    graph: Graph,
    request: Request,
    parts: Parts,
    limit: int | None,
    control: Control | None,
    recall: Recall | None,
    tables: dict[DeviceMesh, PriceTables] | None,
) -> tuple[Planned, Pipelined]:
    """Of a known configuration, whose memory is not for the search to change."""
    planned = make_plan(
        graph, replace(request, memory_limit=_EVERYTHING), control=control, recall=recall, tables=tables
    )
    found = pipelined(replace(planned, memory_limit=limit), parts.stages, parts.micro_batches)
    if limit is not None and max(found.memory) > limit:
        worst = max(range(found.stages), key=found.memory.__getitem__)
        where = f" of stage {worst}" if found.stages > 1 else ""
        raise too_large(found.memory[worst], limit, where)
    return found.planned, found


def _too_much(found: Pipelined, limit: int) -> InfeasibleError:
    worst = max(range(found.stages), key=found.memory.__getitem__)
    return InfeasibleError(
        f"no plan was found that fits: at best stage {worst} of {found.stages} holds "
        f"{found.memory[worst] / 2**30:.2f} GiB per device with {found.run.in_flight[worst]} of {found.micro_batches} "
        f"micro-batches in flight, and the memory limit is {limit / 2**30:.2f} GiB; use more devices, more and smaller "
        "--micro-batches, or other --stages",
        lower_bound_bytes=0,
        sufficient_bytes=found.memory[worst],
    )
