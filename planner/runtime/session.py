"""Calls that workers carry out for a plan: lay it out, run steps, hand over what was computed.

with Workers(2) as workers:
    session = Session(workers, "model.onnx", plan)
    seconds = session.step(3)
    found = session.results()
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from planner.errors import UsageError, VerificationError
from planner.frontends import load_model
from planner.ir import Graph, Layout, Role
from planner.kernels.shards import Array, assemble
from planner.lowering.program import StageInstruction
from planner.planning import PlanDocument
from planner.planning.programs import program_of
from planner.runtime.cells import Taken
from planner.runtime.planned import planned_traffic
from planner.runtime.stage import Stage, Watch
from planner.runtime.started import Ranks
from planner.runtime.workers import Context, Workers
from planner.verify.data import random_tensors
from planner.verify.pipelined import pipeline_of

__all__ = ["Results", "Session", "Traffic", "micro_batch_values"]


@dataclass(frozen=True, slots=True)
class Traffic:
    """Collectives of one step by kind: how many, and bytes.  `executed` and `planned` between operators; `inside`
    operators as they were executed."""

    executed: Mapping[str, tuple[int, int]]
    planned: Mapping[str, tuple[int, int]]
    inside: Mapping[str, tuple[int, int]]

    @classmethod
    def of_rank(cls, context: Context, stage: Stage) -> Traffic:
        """Of this rank's last step."""
        ledger = context.ledger
        return cls(dict(sorted(ledger.steps.items())), planned_traffic(stage), dict(sorted(ledger.inside.items())))

    @classmethod
    def of_all(cls, ranks: list[Traffic], size: int) -> Traffic:
        """Of all ranks', `size` in a stage, summed over the stages.  VerificationError where ranks of one stage
        differ."""
        stages = [ranks[k : k + size] for k in range(0, len(ranks), size)]
        if any(f != stage[0] for stage in stages for f in stage):
            raise VerificationError("ranks communicated differently in one step; the program is the same on all")
        first = [stage[0] for stage in stages]
        return cls(*(_summed([getattr(t, k) for t in first]) for k in ("executed", "planned", "inside")))


_Pieces = dict[str, tuple[Layout, Array]]


@dataclass(frozen=True, slots=True)
class Results:
    """Whole outputs and parameter gradients by name; `fallbacks` are the operator types run with numpy."""

    outputs: Mapping[str, Array]
    gradients: Mapping[str, Array]
    fallbacks: frozenset[str]


class Session:
    """A plan laid out on workers, with parameters and inputs drawn from `seed`.  Several may share the workers.

    It is computed in the types of the model, or, `as_planned`, floats of single precision in those of the plan.

    UsageError where the plan is for another number of devices.
    """

    def __init__(
        self, workers: Workers | Ranks, model: Path, plan: PlanDocument, *, seed: int = 0, as_planned: bool = False
    ) -> None:
        if plan.devices != workers.count:
            raise UsageError(
                f"the plan is for {plan.devices} devices, and {workers.count} processes were started; "
                f"start {plan.devices}"
            )
        self.workers, self.plan = workers, plan
        self.graph = _graph(model, tuple(sorted(plan.model.bind.items())), plan.model.batch)
        self.key = f"{model}:{id(self)}"
        text = plan.model_dump_json(by_alias=True)
        workers.call(_prepare, self.key, model, text, seed, as_planned)

    def step(self, count: int = 1) -> list[float]:
        """Seconds of each of `count` steps: from all ranks' begin to the last one's end.  What others disturbed
        meanwhile is in `workers.disturbance`."""
        times = self.workers.call(_step, self.key, count)
        return [max(each) for each in zip(*times, strict=True)]

    def instruction_seconds(self) -> list[float]:
        """Seconds of each instruction that a stage runs in one step, the mean over its ranks; stage by stage."""
        found = self.workers.call(_instructions, self.key)
        size = self.plan.mesh.devices
        stages = [found[k : k + size] for k in range(0, len(found), size)]
        return [sum(each) / len(each) for ranks in stages for each in zip(*ranks, strict=True)]

    def results(self) -> Results:
        """What one more step computes, put together from all ranks: outputs of the first micro-batch, gradients of
        all.

        VerificationError where ranks that should hold replicas differ.
        """
        found = self.workers.call(_results, self.key)
        outputs, gradients = ([f[k] for f in found] for k in (0, 1))
        return Results(self._whole(outputs), self._whole(gradients), frozenset().union(*(f[2] for f in found)))

    def traffic(self) -> Traffic:
        """What the last step communicated, summed over the stages, and what the plan has for it.

        VerificationError where ranks of one stage differ.
        """
        return Traffic.of_all(self.workers.call(_traffic, self.key), self.plan.mesh.devices)

    def close(self) -> None:
        """Frees what the workers hold for it."""
        self.workers.call(_close, self.key)

    def _whole(self, pieces: list[_Pieces]) -> dict[str, Array]:
        out: dict[str, Array] = {}
        size = self.plan.mesh.devices
        for k in range(0, len(pieces), size):
            ranks = pieces[k : k + size]
            for name, (layout, _) in ranks[0].items():
                shape = self.graph.tensors[name].shape or ()
                out[name] = assemble(tuple(p[name][1] for p in ranks), layout, shape, self.plan.mesh, what=name)
        return out


def _summed(tables: list[Mapping[str, tuple[int, int]]]) -> dict[str, tuple[int, int]]:
    out: dict[str, tuple[int, int]] = {}
    for table in tables:
        for kind, (count, size) in table.items():
            before = out.get(kind, (0, 0))
            out[kind] = before[0] + count, before[1] + size
    return dict(sorted(out.items()))


@lru_cache(maxsize=4)
def _graph(model: Path, bind: tuple[tuple[str, int], ...], batch: int | None) -> Graph:
    return load_model(model, bind=dict(bind), batch=batch)


@lru_cache(maxsize=2)
def _values(model: Path, bind: tuple[tuple[str, int], ...], batch: int | None, seed: int) -> Mapping[str, Array]:
    return random_tensors(_graph(model, bind, batch), seed)


def forget_values() -> None:
    """Lets random tensors of models go."""
    _values.cache_clear()


def micro_batch_values(graph: Graph, values: Mapping[str, Array], seed: int, micro_batch: int) -> Mapping[str, Array]:
    """`values`, with the inputs of a micro-batch: those of the first, or drawn like them."""
    drawn = [n for n in graph.inputs if graph.tensors[n].role is Role.INPUT] if micro_batch else []
    return {**values, **random_tensors(graph, seed + micro_batch, only=drawn)} if drawn else values


class _Run:
    """A plan on one rank, with random values."""

    def __init__(self, context: Context, model: Path, plan: PlanDocument, seed: int, as_planned: bool) -> None:
        read = (model, tuple(sorted(plan.model.bind.items())), plan.model.batch)
        self.graph, self.seed = _graph(*read), seed
        self.values = _values(*read, seed)
        staged = pipeline_of(plan, program_of(plan, self.graph), plan.schedule.micro_batches)
        low = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(plan.schedule.precision) if as_planned else None
        self.stage, self.context = Stage(staged, context, self.values, precision=low), context
        self.fed: dict[tuple[str, Layout, int], Any] = {}

    def step(self, watch: Watch | None = None) -> Taken:
        self.context.ledger.clear()
        return self.stage.step(self._feed, watch)

    def _feed(self, name: str, layout: Layout, micro_batch: int) -> Any:
        key = name, layout, max(micro_batch, 0)
        if key not in self.fed:
            whole = micro_batch_values(self.graph, self.values, self.seed, key[2])
            self.fed[key] = self.stage.local(whole[name], layout)
        return self.fed[key]


def _prepare(context: Context, key: str, model: Path, text: str, seed: int, as_planned: bool) -> None:
    context.state[key] = _Run(context, model, PlanDocument.model_validate_json(text), seed, as_planned)


def _step(context: Context, key: str, count: int) -> list[float]:
    run: _Run = context.state[key]
    times = []
    for _ in range(count):
        dist.barrier()
        begin = time.perf_counter()
        run.step()
        context.synchronize()
        times.append(time.perf_counter() - begin)
    return times


def _instructions(context: Context, key: str) -> list[float]:
    run: _Run = context.state[key]
    stamps: list[float] = []

    def watch(_: StageInstruction) -> None:
        context.synchronize()
        stamps.append(time.perf_counter())

    dist.barrier()
    begin = time.perf_counter()
    run.step(watch)
    return [b - a for a, b in zip([begin, *stamps], stamps, strict=False)]


def _results(context: Context, key: str) -> tuple[_Pieces, _Pieces, set[str]]:
    run: _Run = context.state[key]
    taken = run.step()
    final = run.stage.program.final_gradients
    outputs = {n: (found[0][0], _host(found[0][1])) for n, found in taken.outputs.items()}
    gradients = {n: (final[n], _host(g)) for n, g in taken.gradients.items()}
    return outputs, gradients, run.stage.fallbacks


def _host(value: Any) -> Array:
    """As numpy has it, which knows no bfloat16."""
    found: Array = (value.float() if value.dtype == torch.bfloat16 else value).cpu().numpy()
    return found


def _traffic(context: Context, key: str) -> Traffic:
    run: _Run = context.state[key]
    return Traffic.of_rank(context, run.stage)


def _close(context: Context, key: str) -> None:
    context.state.pop(key, None)
