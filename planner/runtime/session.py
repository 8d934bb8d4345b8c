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

import torch.distributed as dist

from planner.errors import UsageError, VerificationError
from planner.frontends import load_model
from planner.ir import Graph, Layout
from planner.kernels.shards import Array, assemble
from planner.lowering import Instruction
from planner.planning import PlanDocument
from planner.planning.programs import program_of
from planner.runtime.rank import Rank
from planner.runtime.workers import Context, Workers
from planner.verify.data import random_tensors

__all__ = ["Results", "Session", "Traffic"]


@dataclass(frozen=True, slots=True)
class Traffic:
    """Collectives of one step by kind: how many, and bytes.  `executed` and `planned` between operators; `inside`
    operators as they were executed."""

    executed: Mapping[str, tuple[int, int]]
    planned: Mapping[str, tuple[int, int]]
    inside: Mapping[str, tuple[int, int]]


_Pieces = dict[str, tuple[Layout, Array]]


@dataclass(frozen=True, slots=True)
class Results:
    """Whole outputs and parameter gradients by name; `fallbacks` are the operator types run with numpy."""

    outputs: Mapping[str, Array]
    gradients: Mapping[str, Array]
    fallbacks: frozenset[str]


class Session:
    """A plan laid out on workers, with parameters and inputs drawn from `seed`.  Several may share the workers.

    UsageError where the plan is for another number of devices.
    """

    def __init__(self, workers: Workers, model: Path, plan: PlanDocument, *, seed: int = 0) -> None:
        if plan.schedule.stages > 1 or plan.schedule.micro_batches > 1:
            raise UsageError(
                f"the plan has {plan.schedule.stages} pipeline stages and {plan.schedule.micro_batches} micro-batches; "
                "one micro-batch on one stage can be run so far: search without --stages and --micro-batches"
            )
        if plan.mesh.devices != workers.count:
            raise UsageError(
                f"the plan is for {plan.mesh.devices} devices, and {workers.count} processes were started; "
                f"start {plan.mesh.devices}"
            )
        self.workers, self.plan = workers, plan
        self.graph = _graph(model, tuple(sorted(plan.model.bind.items())), plan.model.batch)
        self.key = f"{model}:{id(self)}"
        text = plan.model_dump_json(by_alias=True)
        workers.call(_prepare, self.key, model, text, seed)

    def step(self, count: int = 1) -> list[float]:
        """Seconds of each of `count` steps: from all ranks' begin to the last one's end.  What others disturbed
        meanwhile is in `workers.disturbance`."""
        times = self.workers.call(_step, self.key, count)
        return [max(each) for each in zip(*times, strict=True)]

    def instruction_seconds(self) -> list[float]:
        """Seconds of each instruction of the program in one step, the mean over the ranks."""
        found = self.workers.call(_instructions, self.key)
        return [sum(each) / len(each) for each in zip(*found, strict=True)]

    def results(self) -> Results:
        """What one more step computes, put together from all ranks.

        VerificationError where ranks that should hold replicas differ.
        """
        found = self.workers.call(_results, self.key)
        outputs, gradients = ([f[k] for f in found] for k in (0, 1))
        return Results(self._whole(outputs), self._whole(gradients), frozenset().union(*(f[2] for f in found)))

    def traffic(self) -> Traffic:
        """What the last step communicated, the same on every rank, and what the plan has for it.

        VerificationError where ranks differ.
        """
        found = self.workers.call(_traffic, self.key)
        if any(f != found[0] for f in found):
            raise VerificationError("ranks communicated differently in one step; the program is the same on all")
        return found[0]

    def close(self) -> None:
        """Frees what the workers hold for it."""
        self.workers.call(_close, self.key)

    def _whole(self, pieces: list[_Pieces]) -> dict[str, Array]:
        out = {}
        for name, (layout, _) in pieces[0].items():
            shape = self.graph.tensors[name].shape or ()
            out[name] = assemble(tuple(p[name][1] for p in pieces), layout, shape, self.plan.mesh, what=name)
        return out


@lru_cache(maxsize=4)
def _graph(model: Path, bind: tuple[tuple[str, int], ...], batch: int | None) -> Graph:
    return load_model(model, bind=dict(bind), batch=batch)


@lru_cache(maxsize=2)
def _values(model: Path, bind: tuple[tuple[str, int], ...], batch: int | None, seed: int) -> Mapping[str, Array]:
    return random_tensors(_graph(model, bind, batch), seed)


def _prepare(context: Context, key: str, model: Path, text: str, seed: int) -> None:
    plan = PlanDocument.model_validate_json(text)
    read = (model, tuple(sorted(plan.model.bind.items())), plan.model.batch)
    context.state[key] = Rank(program_of(plan, _graph(*read)), _values(*read, seed), context)


def _step(context: Context, key: str, count: int) -> list[float]:
    rank: Rank = context.state[key]
    times = []
    for _ in range(count):
        dist.barrier()
        begin = time.perf_counter()
        rank.step()
        context.synchronize()
        times.append(time.perf_counter() - begin)
        rank.release()
    return times


def _instructions(context: Context, key: str) -> list[float]:
    rank: Rank = context.state[key]
    stamps: list[float] = []

    def watch(_: Instruction) -> None:
        context.synchronize()
        stamps.append(time.perf_counter())

    dist.barrier()
    begin = time.perf_counter()
    rank.step(watch)
    rank.release()
    return [b - a for a, b in zip([begin, *stamps], stamps, strict=False)]


def _results(context: Context, key: str) -> tuple[_Pieces, _Pieces, set[str]]:
    rank: Rank = context.state[key]
    rank.step()
    outputs = {}
    for name in rank.graph.outputs:
        held = [k for k in rank.values if k[0] == name]
        layout = min((k[1] for k in held), key=lambda x: len(x.partial))
        outputs[name] = (layout, rank.values[name, layout].cpu().numpy())
    final = rank.program.final_gradients
    gradients = {n: (x, rank.gradients[n, x].cpu().numpy()) for n, x in final.items() if (n, x) in rank.gradients}
    rank.release()
    return outputs, gradients, rank.fallbacks


def _traffic(context: Context, key: str) -> Traffic:
    rank: Rank = context.state[key]
    return Traffic(dict(sorted(context.ledger.steps.items())), dict(sorted(rank.planned().items())),
                   dict(sorted(context.ledger.inside.items())))  # fmt: skip


def _close(context: Context, key: str) -> None:
    context.state.pop(key, None)
