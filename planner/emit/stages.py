"""A plan in pipeline stages, stage by stage: what a stage reads and runs."""

from __future__ import annotations

from planner.planning.document import PlanDocument

__all__ = ["holders", "stage_of_plan"]


def stage_of_plan(plan: PlanDocument, stage: int) -> PlanDocument:
    """The part of the plan that one stage runs: its operators, and the parameters that they read."""
    operators = {n: o for n, o in plan.operators.items() if o.stage == stage}
    parameters = {}
    for name, p in plan.parameters.items():
        readers = [r for r in p.readers if r.operator in operators or r.operator not in plan.operators]
        if readers:
            parameters[name] = p.model_copy(update={"readers": readers})
    return plan.model_copy(update={"operators": operators, "parameters": parameters})


def holders(plan: PlanDocument) -> dict[str, tuple[int, ...]]:
    """Parameter → the stages that read it, in order; several hold a copy each."""
    return {
        n: tuple(sorted({plan.operators[r.operator].stage for r in p.readers if r.operator in plan.operators}))
        for n, p in plan.parameters.items()
    }
