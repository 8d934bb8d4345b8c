"""What a known configuration, or a plan, costs on a model, without searching."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from planner.errors import UsageError
from planner.requests.model import ModelSource
from planner.requests.options import option, options_of, read, refuse_others
from planner.requests.rates import rates
from planner.requests.search import BINDINGS, Optimizer, Precision
from planner.requests.values import bindings, byte_size, positive, profile_of

if TYPE_CHECKING:
    from planner.cost_models import HardwareProfile
    from planner.evaluate import Configuration, Prediction
    from planner.ir import Graph
    from planner.lowering import Program
    from planner.planning import PlanDocument

__all__ = ["EvaluationRequest", "evaluated"]


@dataclass(frozen=True)
class EvaluationRequest:
    """A model with a `strategy`, or with a `plan`, as `planner evaluate --help` says it.

    What is left open a plan says itself; with a strategy it is an A100 of 80 GB, bf16 and Adam.
    """

    model: Path
    bind: list[str] = option([], sent=BINDINGS, action="append", metavar="DIM=SIZE")
    batch: int | None = option(sent={"description": "Global batch; default: the model's own."}, type=positive)
    devices: int | None = option(
        sent={"description": "Of a plan: its own.", "le": 10**6},
        type=positive,
        metavar="N",
        help="number of devices to train on; of a plan, its own",
    )
    strategy: str | None = option(
        sent={"description": "ddp, fsdp, megatron:tp=8,pp=4, …: docs/evaluate.md lists them."}
    )
    plan: Path | None = None
    hardware: str | None = option(
        sent={"description": "A name of GET /v1/hardware; default: a100-80, of a plan its own."},
        metavar="NAME|FILE",
        help="profile (see `planner hardware`); default: a100-80; of a plan, its own",
    )
    precision: Precision | None = option(
        choices=get_args(Precision), help="number format of the computation; default: bf16; of a plan, its own"
    )
    optimizer: Optimizer | None = option(
        choices=get_args(Optimizer), help="optimizer, whose state takes memory; default: adam; of a plan, its own"
    )
    memory_limit: int | None = option(
        type=byte_size,
        metavar="SIZE",
        help="memory that may be used on each device; default: the device's less its reserve",
    )

    @classmethod
    def sent(cls, model: Path, options: Mapping[str, Any], plan: Path | None = None) -> EvaluationRequest:
        """What is asked of a service: values are read as the command line reads them.

        UsageError where there is no such option, or it has no such value.
        """
        refuse_others(options, [f.name for f in options_of(cls)])
        if plan is None and "strategy" not in options:
            raise UsageError("one of the arguments --strategy --plan is required")
        if plan is not None and "strategy" in options:
            raise UsageError("argument --plan: not allowed with argument --strategy")
        return cls(model=model, plan=plan, **{name: read(cls, name, value) for name, value in options.items()})


def evaluated(
    options: EvaluationRequest, source: ModelSource | None = None, plan: PlanDocument | None = None
) -> dict[str, Any]:
    """The document of `--json`.  `source`: where the model is read, if not from the file that is named; `plan`: of one
    that was read before."""
    source = source or ModelSource(options.model)
    if options.plan is None:
        return _strategy(options, source)
    from planner.planning import read_plan

    return _plan(options, source, read_plan(options.plan) if plan is None else plan, str(options.plan))


def _strategy(options: EvaluationRequest, source: ModelSource) -> dict[str, Any]:
    from planner.evaluate import predict, program_of_configuration, traced_as
    from planner.planning.schemes import parse_strategy

    if options.devices is None or options.strategy is None:
        raise UsageError("--strategy needs --devices N")
    profile = profile_of(options.hardware or "a100-80")
    bound = bindings(options.bind)
    graph = source.load(bind=bound, batch=options.batch)
    batch = options.batch or _samples(graph)
    c = parse_strategy(
        options.strategy,
        devices=options.devices,
        batch=batch,
        precision=options.precision or "bf16",
        optimizer=options.optimizer or "adam",
    )
    if _samples(graph) != c.micro_batch * c.dp:
        graph = source.load(bind=bound, batch=c.micro_batch * c.dp)
    program = program_of_configuration(graph, c, profile, f"--strategy {options.strategy}")
    return _document(
        options, c, predict(traced_as(c, program, profile.framework.joins_kernels), c, profile), profile, program
    )


def _samples(graph: Graph) -> int:
    """Size of the first dimension of the first input: the batch."""
    shape = next((graph.tensors[t].shape for t in graph.inputs if graph.tensors[t].shape), None)
    if not shape:
        raise UsageError("the model has no input with a batch dimension; give one that has")
    return int(shape[0])


def _document(
    options: EvaluationRequest, c: Configuration, p: Prediction, profile: HardwareProfile, program: Program
) -> dict[str, Any]:
    from planner.clock import extrapolated
    from planner.cost_models import usable_memory_bytes
    from planner.planning.schemes import in_words, spelled
    from planner.pricing import Settings

    limit = options.memory_limit or usable_memory_bytes(profile)
    return {
        "schema": "planner.evaluation/1",
        "model": str(options.model),
        "hardware": profile.name,
        "devices": c.devices,
        "batch": c.global_batch,
        "strategy": options.strategy,
        "in_words": in_words(c),
        "configuration": spelled(c),
        "step_time_s": p.step_time_s,
        "step_time_interval_s": [p.time_low_s, p.time_high_s],
        "extrapolated": list(extrapolated(c)),
        **rates(
            program.graph,
            c.micro_batches,
            c.global_batch,
            p.step_time_s,
            c.devices,
            profile,
            precision=c.precision,
            frozen=c.frozen,
        ),
        "breakdown_s": dict(p.breakdown),
        "peak_memory_bytes": round(p.allocated_bytes),
        "reserved_memory_bytes": round(p.reserved_bytes),
        "memory_bytes": dict(p.memory),
        "memory_limit_bytes": limit,
        "fits": limit is None or round(p.allocated_bytes) <= limit,
        "collectives": {
            kind: asdict(t) for kind, t in program.traffic(Settings(True, c.precision, c.optimizer)).items()
        },
    }


def _plan(options: EvaluationRequest, source: ModelSource, plan: PlanDocument, name: str) -> dict[str, Any]:
    from planner.evaluate.plan import price_plan
    from planner.planning.rebuild import profile_of_plan
    from planner.requests.headline import execution_of, spread, words

    for setting in ("precision", "optimizer"):
        if getattr(options, setting) is not None:
            raise UsageError(f"--{setting} goes with --strategy; a plan says its own")

    loaded: list[Graph] = []
    given = None if options.batch is None else _of_micro_batch(options.batch, plan)

    def load(batch: int | None, bind: Mapping[str, int]) -> Graph:
        loaded.append(source.load(bind=bindings(options.bind) or bind, batch=given or batch))
        return loaded[-1]

    profile = None if options.hardware is None else profile_of(options.hardware)
    found = price_plan(plan, load, profile, options.devices, options.memory_limit, name=f"plan {name}")
    machine = profile or profile_of_plan(plan)
    said = {
        "in_words": words(plan).removesuffix(" (--details)"),
        **spread(found["step_time_s"], machine, execution_of(plan)),
    }
    done = rates(
        loaded[-1],
        found["micro_batches"],
        found["batch"],
        found["step_time_s"],
        found["devices"],
        machine,
        precision=plan.schedule.precision,
        mode=plan.schedule.mode,
        frozen=bool(plan.schedule.run.get("frozen")),
    )
    return {"schema": "planner.evaluation/1", "model": str(options.model), "strategy": name, **said, **found, **done}


def _of_micro_batch(batch: int, plan: PlanDocument) -> int:
    """What a step's batch is of each of the plan's micro-batches.  UsageError where it is not divided by them."""
    count = plan.schedule.micro_batches
    if batch % count:
        raise UsageError(
            f"--batch {batch}: the plan's {count} micro-batches do not divide it; leave --batch out, as a plan says it"
        )
    return batch // count
