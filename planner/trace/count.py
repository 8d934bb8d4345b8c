"""Program → `Workload`: every kernel and transfer of one rank, counted by unit of the model."""

from __future__ import annotations

from collections.abc import Mapping

from planner.lowering import Program
from planner.pricing import Settings
from planner.trace.facts import facts_of
from planner.trace.holding import workload_of
from planner.trace.kernels import count_core, count_operator, count_region, kernels_of
from planner.trace.placed import Placed, resting_layouts
from planner.trace.tally import Tally
from planner.trace.transfers import count_inner, count_redistributions, runs_again
from planner.trace.workload import Workload
from planner.work.fusion import fusion_of

__all__ = ["trace"]


def trace(
    program: Program,
    settings: Settings,
    *,
    chains: bool = True,
    attention: bool = True,
    copies: bool = False,
    gathered_again: bool = False,
    stage_of: Mapping[str, int] | None = None,
) -> Workload:
    """The workload of one rank for one micro-batch.

    Args:
        settings: precision, and with it the bytes of tensors.
        chains, attention, copies: as of `planner.work.fusion.fuse`.
        gathered_again: whether what is gathered for an operator is gathered once more for its backward pass, rather
            than kept; what a configuration computes again is then up to it, and not to the program.
        stage_of: the pipeline stage of each operator, at whose ends units end.
    """
    graph = program.graph
    facts = facts_of(graph)
    if stage_of is not None:
        facts = facts.cut(stage_of)
    fusion = fusion_of(graph, program.rules, program.active, chains=chains, attention=attention, copies=copies)
    at = Placed(program, facts, fusion, settings, resting_layouts(program))
    tally = Tally(len(facts.repeated))
    count_redistributions(tally, at, gathered_again=gathered_again)
    again = set[str]() if gathered_again else runs_again(program)
    count_inner(tally, at, again)
    cores = {name for core in fusion.cores for name in (core.scores, core.output)}
    cores |= {op.name for core in fusion.cores for op in fusion.members[core.region]}
    joined = {core.region for core in fusion.cores} if attention else set[int]()
    for core in fusion.cores if attention else ():
        count_core(tally, at, core)
    made = kernels_of(at)
    for op in graph.ops:
        if op.name in fusion.parts:
            count_operator(tally, at, op, made[op.name], op.name in cores)
    for number, (first, *_) in enumerate(fusion.members):
        if number not in joined:
            count_region(tally, at, number, first.name in cores)
    for name in again & made.keys():
        tally.again[facts.unit[name]].update(made[name][0])
    return workload_of(tally, at, recomputed=bool(again))
