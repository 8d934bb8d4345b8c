"""A module as a whole: how its operators are divided, what that costs, and what the best plan is in which all of its
products are divided otherwise."""

from __future__ import annotations

import glob
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import reduce

from planner.emit.scheme import PRODUCTS
from planner.errors import InfeasibleError, PlannerError
from planner.explain.alternatives import outcome
from planner.explain.case import Case, Found
from planner.explain.document import ModuleAlternativeDocument, ModuleDocument, SplitDocument
from planner.explain.find import Module
from planner.explain.splits import OtherThan, Split, pin_text, split_text, splits_into
from planner.explain.wording import why
from planner.planning import PlanDocument, Request
from planner.planning.constraints import Constraints
from planner.planning.constraints.values import OperatorPin
from planner.report.degrees import Degrees
from planner.report.diff.ledger import PARTS, Bill, common_unit, ledger, total
from planner.report.held import held_of_parameters, trains
from planner.report.wire import sent_bytes

__all__ = ["explain_module"]

_CONFIGURED = "--strategy "


def explain_module(case: Case, base: Found, plan: PlanDocument, module: Module, most: int) -> ModuleDocument:
    """`plan`: the one at hand with today's figures; `most`: alternatives."""
    unit, _ = common_unit(plan, plan)
    account, held = ledger(plan, unit), held_of_parameters(case.plan)
    bills = account.bills
    own = total(bills[n] for n in module.operators)
    alike = total(bills[n] for names in module.alike for n in names)
    fixed = base.planned.priced.fixed
    products = [n for n in module.operators if plan.operators[n].type in PRODUCTS and n not in fixed]
    document = ModuleDocument(
        module=module.path,
        alike=len(module.alike),
        operators=len(module.operators),
        products=products,
        splits=_splits(plan, module.operators, bills, float(unit)),
        parts_s={p: float(getattr(own, p) * unit) for p in PARTS if getattr(own, p)},
        own_s=float(own.units * unit),
        alike_s=float(alike.units * unit),
        parameter_bytes=round(sum(held[t] for n in module.operators for t in account.parameters(n))),
        trained=trains(case.plan),
        sent_bytes=sum(sent_bytes(plan, frozenset(module.operators)).values()),
    )
    request, document.freed = _freed(case, plan, module)
    document.alternatives, document.reason = _alternatives(case, base, request, products, most)
    return document


def _splits(
    plan: PlanDocument, operators: Sequence[str], bills: Mapping[str, Bill], unit_s: float
) -> list[SplitDocument]:
    """The most expensive first."""
    degrees = Degrees(plan)
    found: dict[str, list[str]] = defaultdict(list)
    for name in operators:
        found[degrees.text(plan.operators[name])].append(name)
    rows = [
        SplitDocument(text=text, operators=names, own_s=sum(bills[n].units for n in names) * unit_s)
        for text, names in found.items()
    ]
    return sorted(rows, key=lambda r: -r.own_s)


def _freed(case: Case, plan: PlanDocument, module: Module) -> tuple[Request, str]:
    """The request without what a known configuration pins of the module's operators and parameters: it pins all, and
    nothing could be otherwise."""
    names = {glob.escape(n) for n in module.operators}
    held = {glob.escape(t) for n in module.operators for t in plan.operators[n].inputs if t in plan.parameters}
    parts, freed = [], ""
    for name, c in case.pinned:
        if name.startswith(_CONFIGURED):
            operators = tuple(p for p in c.operators if not set(p.match) <= names)
            parameters = tuple(p for p in c.parameters if not set(p.match) <= held)
            if len(operators) < len(c.operators):
                freed = name
            c = replace(c, operators=operators, parameters=parameters)
        parts.append(c)
    return (replace(case.request, constraints=reduce(lambda a, b: a + b, parts)) if parts else case.request), freed


def _alternatives(
    case: Case, base: Found, request: Request, products: Sequence[str], most: int
) -> tuple[list[ModuleAlternativeDocument], str]:
    """Best first, and why there are no more of them."""
    if not products:
        return [], "it has no product that could be split otherwise"
    known: dict[str, list[Split]] = {n: [_split(base, n)] for n in products}
    best: list[ModuleAlternativeDocument] = []
    while len(best) < most:
        pins = tuple(OperatorPin("other splits", OtherThan(known=tuple(known[n])), (glob.escape(n),)) for n in products)
        other = Constraints("other splits", operators=pins)
        constraints = other if request.constraints is None else request.constraints + other
        try:
            found = case.search(
                replace(request, constraints=constraints), f"all {len(products)} products split in another way"
            )
        except InfeasibleError as e:
            least = e.lower_bound_bytes
            needed = f": at least {least} bytes per device are needed" if least else ""
            return best, f"what is left does not fit in memory{needed}"
        except PlannerError:
            return best, "no plan of this request splits all of its products in yet another way"
        splits = {n: _split(found, n) for n in products}
        for n, split in splits.items():
            known[n].append(split)
        document = outcome(found, base)
        texts = [pin_text(n, s, case.graph) for n, s in splits.items()]
        said = [t for t in texts if t is not None]
        command = case.command(said) if request is case.request and len(said) == len(texts) else ""
        best.append(
            ModuleAlternativeDocument(
                **document.model_dump(),
                splits={n: dict(s) for n, s in splits.items()},
                text=_together(splits),
                why=why(document.difference_s, document.step_parts_difference_s, document.parts_difference_s),
                command=command,
            )
        )
    return sorted(best, key=lambda a: a.difference_s), ""


def _split(found: Found, operator: str) -> Split:
    return splits_into(found.planned.assignment.strategies[operator], found.mesh)


def _together(splits: Mapping[str, Split]) -> str:
    """`n=8: gate, up; k=8: down`: products that are split alike together."""
    found: dict[str, list[str]] = defaultdict(list)
    for name, split in splits.items():
        found[split_text(split)].append(name)
    common = _common([*splits])
    return "; ".join(f"{text}: {', '.join(n[common:] for n in names)}" for text, names in found.items())


def _common(names: Sequence[str]) -> int:
    """Length of the path that all share."""
    first, last = min(names), max(names)
    same = next((i for i, (x, y) in enumerate(zip(first, last, strict=False)) if x != y), 0)
    return first.rfind(".", 0, same) + 1 if len(names) > 1 else first.rfind(".", 0, first.rfind(".")) + 1
