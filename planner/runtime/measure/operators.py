"""What operators take, forward and backward, run as the interpreter runs them.

On a host that is the time of the call.  On a GPU it is the device's own: between two events in its queue, which the
host hands over while the device waits, since what the host adds per kernel is another value of a profile
(`host.dispatch_interval_s`) and hides behind the device's work wherever that takes longer.

Work and traffic of a sample are those of the kernels that plans are priced by (`planner.work.operators`), where every
operator runs by itself.
"""

from __future__ import annotations

import math
import time
from itertools import pairwise
from statistics import median
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from planner.cost_models.calibrate import ComputeSample
from planner.errors import InputError
from planner.ir import DeviceMesh, Graph, Layout
from planner.lowering import Instruction, Load, Program, Run, Seed
from planner.lowering.program import StageInstruction
from planner.rules import Rule, rule_for
from planner.rules.strategy import REPLICATE, bind
from planner.runtime.measure.cases import Case, operator_cases
from planner.runtime.quiet import CLEAN, Timed, steady
from planner.runtime.rank import Rank
from planner.runtime.workers import Context, Workers
from planner.verify.data import random_tensors
from planner.work.fusion import fuse
from planner.work.operators import Operator, kernels

__all__ = ["alone", "measure_operators", "work"]

Amount = tuple[float, float, int]
_ENOUGH_S = 0.03  # measuring one case goes on for as long,
# As often where others disturb it: on a host, whose cores and memory they share.
_ATTEMPTS = {"cpu": 6, "cuda": 1}
# Copies of the operands that take turns fill as much, so that caches hold no more than in a step: the second level of a
# GPU's holds some 50 MB.
_COLD_BYTES = {"cpu": 32 << 20, "cuda": 160 << 20}
_DRAWN = 1 << 20  # elements of an operand that are drawn one by one; a larger one repeats them
_HOLD_S, _LONGEST_HOLD_S = 0.2e-3, 20e-3  # a GPU waits about so long, and as long as the host needs, for its work
_CYCLES_PER_S = 1.8e9


def measure_operators(workers: Workers, *, scale: int, quick: bool = False) -> list[ComputeSample]:
    """Samples of every case, measured on all workers at once: they share a host's memory as they do in a step."""
    cases = list(operator_cases(scale, quick=quick))
    out = []
    for case in cases:
        found = _undisturbed(workers, case)
        graph = case.graph()
        rule = _rule(graph)
        for direction, (flops, moved, launches) in zip(("forward", "backward"), work(graph, rule), strict=True):
            if direction == "backward" and case.forward_only:
                continue
            if direction in found:
                label = f"{case.label} {direction}"
                out.append(ComputeSample(label, rule.cost.kind, flops, moved, "fp32", found[direction], launches))
    return out


def _undisturbed(workers: Workers, case: Case) -> dict[str, float]:
    """Seconds forward and backward, the mean over the ranks, of the attempts that others disturbed least."""
    timed: dict[str, list[Timed]] = {}
    for _ in range(_ATTEMPTS[workers.device]):
        found = workers.call(_measure, case)
        for direction in found[0]:
            seconds = sum(ranks[direction] for ranks in found) / len(found)
            timed.setdefault(direction, []).append((seconds, workers.disturbance))
        if workers.disturbance <= CLEAN:
            break
    return {direction: steady(each) for direction, each in timed.items()}


def work(graph: Graph, rule: Rule) -> tuple[Amount, Amount]:
    """(operations, bytes, kernels) of a graph's only operator, forward and backward, with gradients for all but
    constants."""
    (op,) = graph.ops
    active = frozenset(t.name for t in graph.tensors.values() if t.is_float and t.value is None)
    part = fuse(graph, {op.name: rule}, active, chains=False, attention=False, copies=True).parts[op.name]
    read, written = ([float(graph.tensors[t].bytes) if t else 0.0 for t in names] for names in (op.inputs, op.outputs))
    ways = kernels(Operator(rule, part, read, written, 4.0), _Whole())
    forward, backward = (
        (sum(k.flops for k in way), sum(k.bytes for k in way), sum(k.launches for k in way)) for way in ways
    )
    return forward, backward


class _Whole:
    """Nothing is cut (`planner.work.operators.Shards`)."""

    parallelism = 1.0

    def operand(self, slot: int) -> float:
        return 1.0

    def result(self, output: int) -> float:
        return 1.0

    def factor(self, name: str) -> float:
        return 1.0


def alone(graph: Graph) -> Program:
    """A program of one rank that runs a graph's operators forward and backward."""
    mesh = DeviceMesh.of(1)
    rules = {op.name: _rule(graph) for op in graph.ops}
    strategies = {}
    for op in graph.ops:
        found = bind(rules[op.name], mesh, (REPLICATE,))
        assert found is not None  # replication always holds
        strategies[op.name] = found
    active = frozenset(t.name for t in graph.tensors.values() if t.is_float and t.value is None)
    whole = {t.name: Layout.replicated(t.rank) for t in graph.tensors.values()}
    out: list[Instruction] = [Load(n, whole[n]) for n in graph.tensors if n not in graph.producers]
    out += [Run(op.name) for op in graph.ops]
    out += [Seed(n, whole[n]) for n in graph.outputs]
    out += [Run(op.name, backward=True) for op in reversed(graph.ops) if rules[op.name].differentiable]
    return Program(graph, mesh, rules, strategies, tuple(out), active, {})


def _rule(graph: Graph) -> Rule:
    rule = rule_for(graph.ops[0], graph)
    if rule is None:
        raise InputError(f"operator {graph.ops[0].type} has no rule, so that no plan prices it; measure another")
    return rule


class _HostWatch:
    """Seconds of forward and backward runs by the host's clock, which waits for each."""

    def __init__(self, context: Context) -> None:
        self.context, self.times, self._begin = context, _no_times(), 0.0

    def step(self, rank: Rank) -> None:
        rank.step(self._told)

    def _told(self, i: StageInstruction) -> None:
        self.context.synchronize()
        if isinstance(i, Run):
            self.times[_direction(i)].append(time.perf_counter() - self._begin)
        self._begin = time.perf_counter()


class _DeviceWatch:
    """The same by events in the queue of a GPU.  A kernel that only waits goes before a step, so that the device begins
    when the host has handed over all of it, as far as nothing in the step waits for the device."""

    def __init__(self, context: Context) -> None:
        self.context, self.times, self._hold_s = context, _no_times(), _HOLD_S

    def step(self, rank: Rank) -> None:
        marks: list[tuple[str | None, Any]] = []

        def mark(what: str | None) -> None:
            event = torch.cuda.Event(enable_timing=True)
            event.record()
            marks.append((what, event))

        self.context.synchronize()
        torch.cuda._sleep(int(self._hold_s * _CYCLES_PER_S))
        begin = time.perf_counter()
        mark(None)
        rank.step(lambda i: mark(_direction(i) if isinstance(i, Run) else None))
        self._hold_s = min(_LONGEST_HOLD_S, _HOLD_S + 2 * (time.perf_counter() - begin))
        self.context.synchronize()
        for (_, before), (what, after) in pairwise(marks):
            if what is not None:
                self.times[what].append(before.elapsed_time(after) * 1e-3)


def _no_times() -> dict[str, list[float]]:
    return {"forward": [], "backward": []}


def _direction(i: Run) -> str:
    return "backward" if i.backward else "forward"


def _measure(context: Context, case: Case) -> dict[str, float]:
    """Median seconds forward and backward."""
    graph = case.graph()
    program = alone(graph)
    alone_here = Context(0, 1, context.device)
    size = sum(t.bytes for t in graph.tensors.values())
    copies = max(1, min(16, _COLD_BYTES[context.device.type] // max(size, 1)))
    ranks = [Rank(program, _floats(graph, seed) | _integers(case, graph), alone_here) for seed in range(copies)]
    watch = _DeviceWatch(context) if context.device.type == "cuda" else _HostWatch(context)
    for rank in ranks:
        watch.step(rank)
    for each in watch.times.values():
        each.clear()
    dist.barrier()
    end = time.perf_counter() + _ENOUGH_S
    count = 0
    while count < max(5, copies) or (time.perf_counter() < end and count < 1000):
        watch.step(ranks[count % copies])
        count += 1
    return {k: median(v) for k, v in watch.times.items() if v}


def _floats(graph: Graph, seed: int) -> dict[str, Any]:
    """Random values as `random_tensors` draws them; of large operands the first million, over and over.  To draw
    hundreds of millions takes a host much longer than a GPU takes to use them."""
    large = {n for n in graph.inputs if graph.tensors[n].is_float and math.prod(graph.tensors[n].shape or ()) > _DRAWN}
    drawn = random_tensors(graph, seed, only=[n for n in graph.tensors if n not in large and n not in graph.producers])
    rng = np.random.default_rng(seed)
    return drawn | {
        n: np.resize(rng.standard_normal(_DRAWN, dtype=np.float32), graph.tensors[n].shape or ()) for n in sorted(large)
    }


def _integers(case: Case, graph: Graph) -> dict[str, Any]:
    """Indices for the operands that hold some."""
    rng = np.random.default_rng(0)
    return {graph.ops[0].inputs[i]: rng.integers(0, below, size=case.operands[i]) for i, below in case.integers.items()}
