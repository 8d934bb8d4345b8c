"""Program → `Workload`: every kernel and transfer of one rank, counted by unit of the model."""

from __future__ import annotations

from collections.abc import Mapping

from planner.lowering import Program
from planner.pricing import Settings
from planner.trace.alike import condensed
from planner.trace.facts import facts_of
from planner.trace.holding import workload_of
from planner.trace.kernels import Kernels, count_core, count_operator, kernels_of
from planner.trace.lifetimes import Levels, levels_of
from planner.trace.passes import runs_again
from planner.trace.placed import Placed, resting_layouts
from planner.trace.totals import WorkloadTotals
from planner.trace.transfers import count_inner, count_redistributions
from planner.trace.workload import Workload
from planner.work.fusion import Fusion, fusion_of

__all__ = ["placed", "trace", "trace_levels"]


def trace(
    program: Program,
    settings: Settings,
    *,
    chains: bool = True,
    attention: bool = True,
    copies: bool = False,
    gathered_again: bool = False,
    stage_of: Mapping[str, int] | None = None,
    held_alone: bool = False,
) -> Workload:
    """The workload of one rank for one micro-batch.

    Args:
        settings: precision, and with it the bytes of tensors.
        chains, attention, copies: as of `planner.work.fusion.fuse`.
        gathered_again: whether what is gathered for an operator is gathered once more for its backward pass, rather
            than kept; what a configuration computes again is then up to it, and not to the program.
        stage_of: the pipeline stage of each operator, at whose ends units end.
        held_alone: whether only bytes held are wanted, and neither kernels nor transfers.
    """
    few = condensed(program, stage_of, chains=chains, attention=attention, copies=copies)
    if few is None:
        at = placed(program, settings, chains=chains, attention=attention, copies=copies, stage_of=stage_of)
    else:
        fusion = _fusion(few.program, chains, attention, copies)
        at = Placed(few.program, few.facts, fusion, settings, resting_layouts(few.program))
    found = _counted(at, gathered_again, held_alone)
    return found if few is None else few.whole(found, program.graph)


def _counted(at: Placed, gathered_again: bool, held_alone: bool) -> Workload:
    """The workload of what is placed; arguments as of `trace`."""
    program, graph, facts, fusion = at.program, at.graph, at.facts, at.fusion
    totals = WorkloadTotals(at.mesh, len(facts.repeated))
    again = set[str]() if gathered_again else runs_again(program)
    made: Mapping[str, Kernels] = {}
    if not held_alone:
        count_redistributions(totals, at, gathered_again=gathered_again)
        count_inner(totals, at, again)
        made = kernels_of(at)
    cores = {name for core in fusion.cores for name in (core.scores, core.output)}
    cores |= {op.name for core in fusion.cores for op in core.between}
    for core in fusion.cores if fusion.attention else ():
        count_core(totals, at, core)
    for op in graph.ops:
        if op.name in fusion.parts:
            count_operator(totals, at, op, made.get(op.name), op.name in cores)
    for name in again & made.keys():
        totals.again[facts.unit[name]].update(made[name][0])
    levels = levels_of(at, gathered_again=gathered_again)
    return workload_of(totals, at, levels, recomputed=bool(again))


def trace_levels(
    program: Program,
    settings: Settings,
    *,
    chains: bool = True,
    attention: bool = True,
    copies: bool = False,
    gathered_again: bool = False,
) -> Levels:
    """What a rank holds for activations at every instruction; arguments as of `trace`."""
    return levels_of(
        placed(program, settings, chains=chains, attention=attention, copies=copies), gathered_again=gathered_again
    )


def placed(
    program: Program,
    settings: Settings,
    *,
    chains: bool,
    attention: bool,
    copies: bool,
    stage_of: Mapping[str, int] | None = None,
) -> Placed:
    """The program with what is known of it; arguments as of `trace`."""
    facts = facts_of(program.graph)
    if stage_of is not None:
        facts = facts.cut(stage_of)
    return Placed(program, facts, _fusion(program, chains, attention, copies), settings, resting_layouts(program))


def _fusion(program: Program, chains: bool, attention: bool, copies: bool) -> Fusion:
    return fusion_of(program.graph, program.rules, program.active, chains=chains, attention=attention, copies=copies)
