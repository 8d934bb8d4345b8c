"""The explanation of an operator's choice, or of a plan as a whole."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import replace

from planner.errors import InputError
from planner.explain.alternatives import alternatives
from planner.explain.case import Case, Found
from planner.explain.choice import Costs
from planner.explain.document import ExplanationDocument, MeshDocument, PlanFigures, TopDocument
from planner.explain.find import Module, by_own_name, find_module, find_operator
from planner.explain.limits import binding_text, limits, undivided
from planner.explain.module import explain_module
from planner.planning import PlanDocument, describe
from planner.planning.constraints import constraints_of_plan
from planner.planning.programs import another_model
from planner.report.words import time_text

__all__ = ["explain"]

MOST_MOVES = 5
TOP = 3  # operators whose best alternative is searched for, where the plan is explained as a whole


def explain(case: Case, operator: str | None = None, *, most: int = 3) -> ExplanationDocument:
    """Of `operator` (as `find_operator` understands it), or of the module of that name, with its `most` best
    alternatives; None: of the plan.

    InputError where there is no such operator or module, or the plan is of another model; errors of the search as of
    `make_plan`.
    """
    if case.graph.digest != case.plan.model.digest:
        raise InputError(f"{another_model(case.plan, case.graph)}; give the model that was planned with --model")
    name, module = (None, None) if operator is None else _meant(case.plan, operator)
    base, notes = _again(case)
    plan = case.plan if not notes and case.plan.cost.price_resolution_s else _described(case, base)
    notes += case.notes
    if case.request.constraints is not None and case.request.constraints.rest.kind != "search":
        notes.append(
            f"the rest is {case.request.constraints.rest}: an operator that is pinned is not part of it any more, so "
            "that an alternative may even be better than the plan"
        )
    if module is not None:
        return ExplanationDocument(
            schema="planner.explanation/1",
            plan=_figures(case.plan),
            notes=notes,
            module=explain_module(case, base, plan, module, most),
            binding="",
            searches=case.searches,
        )
    costs = Costs(plan, base.planned.priced.rules)
    limited = limits(case, base, name)
    document = ExplanationDocument(
        schema="planner.explanation/1",
        plan=_figures(case.plan),
        notes=notes,
        limits=limited,
        binding=binding_text(limited, base),
        undivided=undivided(case, base, list(plan.operators) if name is None else [name]),
        searches=0,
    )
    if name is not None:
        others = alternatives(case, base, name, most)
        document.choice = costs.choice(name)
        document.alternatives, document.refused = list(others.best), list(others.refused)
        document.more_refused = others.more
        if name in base.planned.priced.fixed:
            document.notes.append(f"{name} is computed from constants alone, once for all steps, whole on every rank")
    else:
        document.meshes = _meshes(case, base)
        document.operators = _top(case, base, costs)
        document.redistributions = costs.dearest_moves(MOST_MOVES)
    document.searches = case.searches
    return document


def _meant(plan: PlanDocument, text: str) -> tuple[str | None, Module | None]:
    """The operator, or the module, that goes by it: an operator by its own name, a module of several operators by its
    path."""
    try:
        name = find_operator(plan, text)
    except InputError:
        module = find_module(plan, text)
        if module is None:
            raise
        return None, module
    if not by_own_name(plan, name, text):
        module = find_module(plan, text)
        if module is not None and len(module.operators) > 1:
            return None, module
    return name, None


def _again(case: Case) -> tuple[Found, list[str]]:
    """The plan as the search finds it today, or, where that is another one, with all of its strategies pinned."""
    base = case.search(case.request, "the plan itself")
    known, today = case.plan.cost, base.step_time_s
    if _chosen_alike(case, base):
        if (known.objective_s, known.step_time_s) == (base.planned.objective_s, today):
            return base, []
        return base, [f"asked again, the search finds this very plan, with a step of {time_text(today)}{_reason(case)}"]
    pinned = replace(case.request, constraints=constraints_of_plan(case.plan, "the plan"), meshes=None)
    held = case.search(pinned, "the plan with all its strategies pinned")
    note = (
        f"asked again, the search finds a plan whose step takes {time_text(today)}, not the one at "
        f"hand{_reason(case)}; differences are to the plan at hand as it is priced today, {time_text(held.step_time_s)}"
    )
    return held, [note]


def _chosen_alike(case: Case, found: Found) -> bool:
    today = _described(case, found)
    return all(today.operators[n].strategy == op.strategy for n, op in case.plan.operators.items())


def _meshes(case: Case, base: Found) -> list[MeshDocument]:
    """The candidates of the plan, with what their steps take where the search finds them again."""
    today = {(str(c.mesh), c.recompute): c for c in base.planned.candidates if base.pipeline is None}
    found = []
    for c in case.plan.search.candidates:
        known = today.get((c.mesh, c.recompute))
        same = known is not None and known.objective_s == c.objective_s
        found.append(MeshDocument(**c.model_dump(), step_time_s=known.step_time_s if known and same else None))
    return found


def _reason(case: Case) -> str:
    request = case.plan.search.request
    if request is not None and not request.reproducible:
        return " (a limit in seconds, a cancellation or a plan to begin with had a say in it)"
    if case.request.profile.digest != case.plan.cluster.profile_digest:
        return " (it was made for other hardware, or another version of its profile)"
    return ""


def _described(case: Case, found: Found) -> PlanDocument:
    model = case.plan.model
    return describe(found.planned, bind=model.bind, batch=model.batch, pipeline=found.pipeline)


def _figures(plan: PlanDocument) -> PlanFigures:
    return PlanFigures(
        model=plan.model.name,
        operators=plan.model.operators,
        hardware=plan.cluster.hardware,
        devices=plan.cluster.devices,
        mesh=str(plan.mesh),
        stages=plan.schedule.stages,
        micro_batches=plan.schedule.micro_batches,
        objective_s=plan.cost.objective_s,
        objective_lower_bound_s=plan.cost.objective_lower_bound_s,
        gap=plan.cost.gap,
        step_time_s=plan.cost.step_time_s,
        parts_s=plan.cost.parts_s,
        peak_memory_bytes=plan.cost.peak_memory_bytes,
        memory_limit_bytes=plan.cluster.memory_limit_bytes,
    )


def _top(case: Case, base: Found, costs: Costs) -> list[TopDocument]:
    """The most expensive operators, those that look alike and are split alike together; of each kind the first one's
    best alternative."""
    kinds: dict[Hashable, list[str]] = {}
    for name, op in costs.plan.operators.items():
        layouts = tuple(str(x) for x in (*op.operands, *op.results))
        key = op.type, tuple(sorted(costs.rules[name].factors.items())), tuple(op.strategy.items()), layouts
        kinds.setdefault(key, []).append(name)

    def total(names: Sequence[str]) -> float:
        return sum(costs.own_s(n) for n in names)

    ranked = sorted(kinds.values(), key=lambda names: -total(names))[:TOP]
    found = []
    for names in ranked:
        first = max(names, key=costs.own_s)
        others = alternatives(case, base, first, 1)
        reason = "" if others.best else "; ".join(r.reason for r in others.refused) or "its rule offers no other split"
        found.append(
            TopDocument(
                choice=costs.choice(first, alike=len(names)),
                total_s=total(names),
                alternative=others.best[0] if others.best else None,
                reason=reason,
            )
        )
    return found
