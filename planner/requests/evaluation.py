"""What a known configuration, or a plan, costs on a model, without searching."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from planner.errors import UsageError
from planner.requests.values import bindings, byte_size, profile_of

if TYPE_CHECKING:
    from cost_models import HardwareProfile
    from planner.evaluate import Configuration, Prediction
    from planner.ir import Graph
    from planner.lowering import Program

__all__ = ["EvaluationRequest", "evaluated"]


@dataclass(frozen=True, slots=True)
class EvaluationRequest:
    """A model with a `strategy`, or with a `plan`, as `planner evaluate --help` says it; what is None is the plan's."""

    model: Path
    devices: int | None = None
    strategy: str | None = None
    plan: Path | None = None
    hardware: str | None = None
    bind: Sequence[str] = ()
    batch: int | None = None
    precision: Literal["bf16", "fp16", "fp32"] | None = None
    optimizer: Literal["adam", "momentum", "sgd"] | None = None
    memory_limit: int | None = None

    @classmethod
    def sent(cls, model: Path, options: Mapping[str, Any], plan: Path | None = None) -> EvaluationRequest:
        """What is asked of a service: texts are read as the command line reads them.

        UsageError where there is no such option, or it has no such value.
        """
        names = {f.name for f in fields(cls)} - {"model", "plan"}
        for name in options.keys() - names:
            raise UsageError(f"{name}: no such option; there are {', '.join(sorted(names))}")
        if (plan is None) == ("strategy" not in options):
            raise UsageError("one of the arguments --strategy --plan is required, and one alone")
        limit = options.get("memory_limit")
        try:
            read = byte_size(limit) if isinstance(limit, str) else limit
        except argparse.ArgumentTypeError as e:
            raise UsageError(f"argument --memory-limit: {e}") from e
        return cls(**{**options, "memory_limit": read, "model": model, "plan": plan})


def evaluated(options: EvaluationRequest) -> dict[str, Any]:
    """The document of `--json`."""
    return _strategy(options) if options.plan is None else _plan(options, options.plan)


def _strategy(options: EvaluationRequest) -> dict[str, Any]:
    from planner.evaluate import predict, program_of_configuration, traced_as
    from planner.frontends import load_model
    from planner.planning.schemes import parse_strategy

    if options.devices is None or options.strategy is None:
        raise UsageError("--strategy needs --devices N")
    profile = profile_of(options.hardware or "a100-80")
    bound = bindings(options.bind)
    graph = load_model(options.model, bind=bound, batch=options.batch)
    batch = options.batch or _samples(graph)
    c = parse_strategy(
        options.strategy,
        devices=options.devices,
        batch=batch,
        precision=options.precision or "bf16",
        optimizer=options.optimizer or "adam",
    )
    if _samples(graph) != c.micro_batch * c.dp:
        graph = load_model(options.model, bind=bound, batch=c.micro_batch * c.dp)
    program = program_of_configuration(graph, c, profile, f"--strategy {options.strategy}")
    return _document(options, c, predict(traced_as(c, program), c, profile), profile, program)


def _samples(graph: Graph) -> int:
    """Size of the first dimension of the first input: the batch."""
    shape = next((graph.tensors[t].shape for t in graph.inputs if graph.tensors[t].shape), None)
    if not shape:
        raise UsageError("the model has no input with a batch dimension; give one that has")
    return int(shape[0])


def _document(
    options: EvaluationRequest, c: Configuration, p: Prediction, profile: HardwareProfile, program: Program
) -> dict[str, Any]:
    from cost_models import usable_memory_bytes
    from planner.clock import extrapolated
    from planner.planning.schemes import spelled
    from planner.pricing import Settings

    limit = options.memory_limit or usable_memory_bytes(profile)
    return {
        "schema": "planner.evaluation/1",
        "model": str(options.model),
        "hardware": profile.name,
        "devices": c.devices,
        "batch": c.global_batch,
        "strategy": options.strategy,
        "configuration": spelled(c),
        "step_time_s": p.step_time_s,
        "step_time_interval_s": [p.time_low_s, p.time_high_s],
        "extrapolated": list(extrapolated(c)),
        "samples_per_s": c.global_batch / p.step_time_s,
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


def _plan(options: EvaluationRequest, plan: Path) -> dict[str, Any]:
    from planner.evaluate.plan import evaluate_plan
    from planner.frontends import load_model

    for name in ("precision", "optimizer"):
        if getattr(options, name) is not None:
            raise UsageError(f"--{name} goes with --strategy; a plan says its own")

    def load(batch: int | None, bind: Mapping[str, int]) -> Graph:
        return load_model(options.model, bind=bindings(options.bind) or bind, batch=options.batch or batch)

    profile = None if options.hardware is None else profile_of(options.hardware)
    found = evaluate_plan(plan, load, profile, options.devices, options.memory_limit)
    return {"schema": "planner.evaluation/1", "model": str(options.model), "strategy": str(plan), **found}
