"""What operators take, forward and backward, run as the interpreter runs them.

Work and traffic of a sample are those of the kernels that plans are priced by (`planner.work.operators`), where every
operator runs by itself.
"""

from __future__ import annotations

import time
from statistics import median
from typing import Any

import numpy as np
import torch.distributed as dist

from planner.cost_models.calibrate import ComputeSample
from planner.errors import InputError
from planner.ir import DeviceMesh, Graph, Layout
from planner.lowering import Instruction, Load, Program, Run, Seed
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
_ATTEMPTS = 6  # as often where others disturb it
_COLD_BYTES = (
    32 << 20
)  # copies of the operands that take turns fill as much, so that caches hold no more than in a step


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
    for _ in range(_ATTEMPTS):
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


def _measure(context: Context, case: Case) -> dict[str, float]:
    """Median seconds forward and backward."""
    graph = case.graph()
    program = alone(graph)
    alone_here = Context(0, 1, context.device)
    size = sum(t.bytes for t in graph.tensors.values())
    copies = max(1, min(16, _COLD_BYTES // max(size, 1)))
    ranks = [Rank(program, random_tensors(graph, seed) | _integers(case, graph), alone_here) for seed in range(copies)]
    times: dict[str, list[float]] = {"forward": [], "backward": []}
    begin = 0.0

    def watch(i: Instruction) -> None:
        nonlocal begin
        context.synchronize()
        if isinstance(i, Run):
            times["backward" if i.backward else "forward"].append(time.perf_counter() - begin)
        begin = time.perf_counter()

    for rank in ranks:
        rank.step(watch)
    for each in times.values():
        each.clear()
    dist.barrier()
    end = time.perf_counter() + _ENOUGH_S
    count = 0
    while count < max(5, copies) or (time.perf_counter() < end and count < 1000):
        ranks[count % copies].step(watch)
        count += 1
    return {k: median(v) for k, v in times.items() if v}


def _integers(case: Case, graph: Graph) -> dict[str, Any]:
    """Indices for the operands that hold some."""
    rng = np.random.default_rng(0)
    return {graph.ops[0].inputs[i]: rng.integers(0, below, size=case.operands[i]) for i, below in case.integers.items()}
