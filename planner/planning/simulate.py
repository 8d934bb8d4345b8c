"""Step time by event simulation.

Three streams per device: compute, collectives of activations, collectives of parameters (prefetched weights,
gradients synchronised while the backward pass goes on).  Instructions of a stream run in program order, each as
soon as what it reads is there.  Contention between the two communication streams is not modelled, so the
simulated time is a lower estimate of a schedule that overlaps perfectly; the additive objective is the upper one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from planner.ir import Layout
from planner.lowering import Convert, Load, Program, Run, Seed
from planner.planning.breakdown import convert_cost, run_cost
from planner.pricing import PricedProblem

__all__ = ["Simulated", "simulate"]

_Key = tuple[str, Layout, bool]


@dataclass(frozen=True, slots=True)
class Simulated:
    """When every instruction of the program begins and when the step ends, in units of the profile's price resolution.
    Parameters are updated behind the last instruction, for `optimizer` units."""

    begins: tuple[int, ...]
    end: int
    optimizer: int


def simulate(priced: PricedProblem, choice: Sequence[int], program: Program) -> Simulated:
    """One step of the program."""
    ready: dict[_Key, int] = {}
    free = {"compute": 0, "activations": 0, "parameters": 0}
    begins: list[int] = []
    for instruction in program.instructions:
        if isinstance(instruction, Load | Seed):
            gradient = isinstance(instruction, Seed)
            begin = free["compute"] if gradient else 0
            ready[instruction.tensor, instruction.layout, gradient] = begin
        elif isinstance(instruction, Convert):
            stream = "parameters" if instruction.tensor in priced.parameter_nodes else "activations"
            source = (instruction.tensor, instruction.source, instruction.gradient)
            target = (instruction.tensor, instruction.target, instruction.gradient)
            cost = convert_cost(priced, instruction)
            begin = max(free[stream], ready.get(source, 0)) if cost else ready.get(source, 0)
            ready[target] = max(begin + cost, ready.get(target, 0))
            if cost:
                free[stream] = begin + cost
        else:
            begin = _run(priced, choice, program, instruction, ready, free)
        begins.append(begin)
    optimizer = sum(int(priced.problem.nodes[n].costs[choice[n]]) for n in priced.parameter_nodes.values())
    return Simulated(tuple(begins), max(free.values()) + optimizer, optimizer)


def _run(
    priced: PricedProblem,
    choice: Sequence[int],
    program: Program,
    run: Run,
    ready: dict[_Key, int],
    free: dict[str, int],
) -> int:
    """Runs the operator; when it begins."""
    op = program.graph.op(run.op)
    strategy = program.strategies[run.op]
    before = [(n, x, False) for n, x in zip(op.inputs, strategy.operands, strict=True) if x is not None]
    after = [(n, x, False) for n, x in zip(op.outputs, strategy.results, strict=True) if x is not None]
    if run.backward:
        before += [(n, x, True) for n, x in zip(op.outputs, strategy.result_gradients, strict=True) if x is not None]
        after = [(n, x, True) for n, x in zip(op.inputs, strategy.operand_gradients, strict=True) if x is not None]
    cost = sum(run_cost(priced, choice, run)) if run.op in priced.op_nodes else 0
    begin = max([free["compute"], *(ready.get(k, 0) for k in before)])
    free["compute"] = begin + cost
    for key in after:
        ready[key] = max(ready.get(key, 0), begin + cost)
    return begin
