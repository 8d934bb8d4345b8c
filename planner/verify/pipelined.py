"""The pipeline that a plan document describes, and how much of it is executed."""

from __future__ import annotations

from dataclasses import replace

from planner.lowering import Program, Staged, passes, staged
from planner.planning import PlanDocument
from planner.verify.run_as import is_plain, run_as_of
from planner.verify.work import Budget, ExecutionCost

__all__ = ["affordable", "fewest_micro_batches", "in_parts", "pipeline_of"]


def in_parts(plan: PlanDocument) -> bool:
    """Whether the plan has stages, more than one micro-batch, or lets go what it makes or gathers again."""
    return plan.schedule.stages > 1 or plan.schedule.micro_batches > 1 or not is_plain(plan)


def fewest_micro_batches(plan: PlanDocument) -> int:
    """As many as let every stage fill up, run forward and backward in turn, and empty."""
    s = plan.schedule
    return min(s.micro_batches, (s.stages * s.chunks + 1) * s.copies)


def affordable(plan: PlanDocument, work: ExecutionCost, budget: Budget, *, whole: bool) -> int:
    """How many micro-batches of so much work each are executed: all of them where `whole` asks for that or the budget
    holds, else as many as it holds, whole passes; 0 where these would not show what a pipeline does."""
    count, fewest, copies = plan.schedule.micro_batches, fewest_micro_batches(plan), plan.schedule.copies
    if whole:
        return count
    most = min(count, max(fewest, int(budget.flops / max(work.flops, 1.0))))
    flying = min(plan.schedule.stages * plan.schedule.chunks * copies, count)
    if plan.schedule.pass_order == "gpipe":  # all of them at once
        each = max(work.held_bytes / budget.held_bytes, work.activation_bytes / budget.activation_bytes)
        flying = most = min(most, int(1 / each)) if each else most
    most -= most % copies
    held, made = work.held_bytes * flying, work.activation_bytes * flying
    together = replace(work, flops=work.flops * fewest, activation_bytes=made, held_bytes=held)
    return most if most >= fewest and budget.holds(together) else 0


def pipeline_of(plan: PlanDocument, program: Program, micro_batches: int) -> Staged:
    """`program` (the plan's, or that of a part of its operators) in the plan's stages, for so many micro-batches.

    The order is that of the schedule, the stages those of the operators and parameters, the sums between stages those
    of the parameters, and what is run again, gathered or scattered when, that of the run, all as the document says
    them."""
    schedule, graph = plan.schedule, program.graph
    stages = schedule.stages
    count = max(1, micro_batches // schedule.copies)
    order = passes(schedule.pass_order, stages, schedule.chunks, count, training=bool(program.active))
    chunk_of = {op.name: plan.chunk(op.name) for op in graph.ops}
    stage_of = {op.name: plan.operators[op.name].stage for op in graph.ops}
    entries = {t.name: plan.parameters[t.name] for t in graph.parameters}
    held = {name: entry.stages if stages > 1 else [0] for name, entry in entries.items()}
    reading = {name: {stage_of[op.name] for op, _ in graph.consumers.get(name, ())} for name in entries}
    if set(stage_of) != set(plan.operators):  # a part of the model: stages may have lost the operators that read it
        held = {name: [s for s in stages if s in reading[name]] for name, stages in held.items()}
    sums = {name: entry.across.groups for name, entry in entries.items() if entry.across is not None}
    return staged(program, chunk_of, order, held, sums, run_as_of(plan, program, chunk_of))
