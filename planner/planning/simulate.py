"""Step time by event simulation.

Three streams per device: compute, collectives of activations, collectives of parameters (prefetched weights,
gradients synchronised while the backward pass goes on).  Instructions of a stream run in program order, each as
soon as what it reads is there.  Contention between the two communication streams is not modelled, so the
simulated time is a lower estimate of a schedule that overlaps perfectly; the additive objective is the upper one.
"""

from __future__ import annotations

from collections.abc import Sequence

from planner.ir import Layout
from planner.lowering import Convert, Load, Program, Run, Seed
from planner.planning.breakdown import convert_cost
from planner.pricing import PricedProblem

__all__ = ["simulate"]

_Key = tuple[str, Layout, bool]


def simulate(priced: PricedProblem, choice: Sequence[int], program: Program) -> int:
    """End of the last instruction, in units of the profile's price resolution."""
    ready: dict[_Key, int] = {}
    free = {"compute": 0, "activations": 0, "parameters": 0}
    for instruction in program.instructions:
        if isinstance(instruction, Load | Seed):
            gradient = isinstance(instruction, Seed)
            ready[instruction.tensor, instruction.layout, gradient] = free["compute"] if gradient else 0
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
            _run(priced, choice, program, instruction, ready, free)
    optimizer = sum(int(priced.problem.nodes[n].costs[choice[n]]) for n in priced.parameter_nodes.values())
    return max(free.values()) + optimizer


def _run(
    priced: PricedProblem,
    choice: Sequence[int],
    program: Program,
    run: Run,
    ready: dict[_Key, int],
    free: dict[str, int],
) -> None:
    op = program.graph.op(run.op)
    strategy = program.strategies[run.op]
    before = [(n, x, False) for n, x in zip(op.inputs, strategy.operands, strict=True) if x is not None]
    after = [(n, x, False) for n, x in zip(op.outputs, strategy.results, strict=True) if x is not None]
    if run.backward:
        before += [(n, x, True) for n, x in zip(op.outputs, strategy.result_gradients, strict=True) if x is not None]
        after = [(n, x, True) for n, x in zip(op.inputs, strategy.operand_gradients, strict=True) if x is not None]
    cost = 0
    if run.op in priced.op_nodes:
        work, state = priced.tables[run.op].work, choice[priced.op_nodes[run.op]]
        parts = (work.backward, work.inner_backward) if run.backward else (work.forward, work.inner_forward)
        cost = sum(int(p[state]) for p in parts)
    begin = max([free["compute"], *(ready.get(k, 0) for k in before)])
    free["compute"] = begin + cost
    for key in after:
        ready[key] = max(ready.get(key, 0), begin + cost)
