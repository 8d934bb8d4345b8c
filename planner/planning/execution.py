"""How a plan is run, where it was made of a known configuration."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from planner.clock import Configuration
from planner.errors import InputError, UsageError
from planner.ir import Graph
from planner.planning.document import PlanDocument
from planner.planning.pipeline import global_batch
from planner.planning.schemes import KEYS, SCHEMES, parse_strategy, written

__all__ = ["RUN_KEYS", "Setting", "execution_of", "run_of", "runs_blocks_again", "unusual"]

Setting = str | int | float | bool
# Keys of a configuration that say how a step is run, and nothing of what lies where.
RUN_KEYS: Final = (
    "matrix", "cast_gathers", "gradient_bytes", "attention", "loss", "fuse", "overlap_gradients", "overlap_parameters",
    "overlap_tensor", "overlap_pipeline",
)  # fmt: skip


def run_of(c: Configuration) -> dict[str, Setting]:
    """How a step of the configuration is run, key by key; the last five keys only where they say something unusual."""
    run: dict[str, Setting] = {key: c.matrix if key == "matrix" else getattr(c, KEYS[key].field) for key in RUN_KEYS}
    if c.weight_bytes != c.activation_bytes:
        run["parameter_bytes"] = c.weight_bytes
    if c.frozen:
        run["frozen"] = True
    if c.offload:
        run["offload"] = c.offload
    if c.offload_layers is not None:
        run["offload_layers"] = written(c.offload_layers)
    if c.copies > 1:
        run["copies"] = c.copies
    if c.scatters_every_pass:
        run["zero"] = c.zero
    if c.recompute != "none" and not runs_blocks_again(c):
        run["recompute"] = c.recompute
        if c.recompute_layers is not None:
            run["recompute_layers"] = written(c.recompute_layers)
        elif c.recompute == "full":
            run["recompute_blocks"] = c.recompute_blocks
    return run


def runs_blocks_again(c: Configuration) -> bool:
    """Whether the program itself runs every block again; less than that is left to the framework."""
    return c.recompute == "full" and c.recompute_blocks == 1 and c.recompute_layers is None


def unusual(plan: PlanDocument, known: Collection[str] = ()) -> list[str]:
    """What of `schedule.run` is not as frameworks run a step unless told otherwise, as `KEY=VALUE`; but for `known`
    keys, and `known` settings `KEY=VALUE`."""
    usual = {**run_of(Configuration(precision=plan.schedule.precision)), **SCHEMES["megatron"]}
    # DistributedDataParallel sums gradients in their own width, and has no parameters to gather.
    free = {"gradient_bytes", "overlap_parameters", "overlap_pipeline", *known}
    run = plan.schedule.run
    return [
        s for k, v in run.items() if k not in free and v != usual.get(k) and (s := f"{k}={str(v).lower()}") not in free
    ]


def execution_of(plan: PlanDocument, graph: Graph) -> Configuration | None:
    """The configuration of the plan's `--strategy`, None where it has none; `graph`: of a micro-batch.

    InputError where it does not fit the plan's devices and samples.
    """
    requested = plan.search.request
    if requested is None or requested.strategy is None:
        return None
    samples = global_batch(graph) * plan.schedule.micro_batches
    s = plan.schedule
    try:
        return parse_strategy(
            requested.strategy, devices=plan.devices, batch=samples, precision=s.precision, optimizer=s.optimizer
        )
    except UsageError as e:
        raise InputError(f"plan: at search.request.strategy: expected one that fits the plan, found {e}") from e
