"""The best alternatives to an operator's split, each as the search finds it with the alternative pinned.

Which ones are best is found by asking the same search for the best plan in which the operator is split in another way
than those known so far: over all meshes, with everything else free to follow, so the order is exact wherever these
searches close their gap.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

import numpy as np

from planner.errors import InfeasibleError, PlannerError
from planner.explain.case import Case, Found
from planner.explain.document import AlternativeDocument, OutcomeDocument, RefusedDocument
from planner.explain.splits import OtherThan, Split, pin_text, split_text, splits_into
from planner.explain.wording import why
from planner.planning.constraints import Constraints, parse_pin
from planner.planning.constraints.values import OperatorPin
from planner.search.problem import FORBIDDEN

__all__ = ["Alternatives", "alternatives", "outcome"]

MOST_REFUSED = 3  # whose reason is asked for


@dataclass(frozen=True, slots=True)
class Alternatives:
    """Best first; `refused`: what no plan of the request can have, with reasons, and how many `more` of these."""

    best: tuple[AlternativeDocument, ...]
    refused: tuple[RefusedDocument, ...] = ()
    more: int = 0


def outcome(found: Found, base: Found) -> OutcomeDocument:
    """A search beside the plan that is explained."""
    planned, unit = found.planned, found.unit_s
    parts, known = asdict(planned.parts), asdict(base.planned.parts)
    step, known_step = found.step_parts_s, base.step_parts_s
    return OutcomeDocument(
        mesh=str(found.mesh),
        objective_s=planned.objective_s,
        difference_s=(found.step - base.step) * unit,
        step_parts_difference_s={n: step.get(n, 0.0) - known_step.get(n, 0.0) for n in (*step, *known_step)},
        objective_difference_s=(planned.parts.total - base.planned.parts.total) * unit,
        parts_difference_s={name: (parts[name] - known[name]) * unit for name in parts},
        objective_lower_bound_s=planned.bound_s,
        gap=planned.gap,
        status=planned.status,
        step_time_s=found.step_time_s,
        peak_memory_bytes=found.peak_memory_bytes,
    )


def alternatives(case: Case, base: Found, operator: str, most: int) -> Alternatives:
    """The `most` best of them; `base` is the plan as the search finds it today."""
    priced = base.planned.priced
    if operator in priced.fixed:
        return Alternatives(())
    known = [splits_into(base.planned.assignment.strategies[operator], base.mesh)]
    best: list[AlternativeDocument] = []
    while len(best) < most:
        other = OperatorPin("other splits", OtherThan(known=tuple(known)), (operator,))
        splits = " or ".join(map(split_text, known))
        try:
            found = case.search(
                case.with_pins(Constraints("other splits", operators=(other,))), f"{operator} other than {splits}"
            )
        except PlannerError:
            return Alternatives(_ranked(best), *_refused(case, base, operator, known))
        split = splits_into(found.planned.assignment.strategies[operator], found.mesh)
        known.append(split)
        text = pin_text(operator, split, case.graph)
        if text is None:
            continue  # no pin can say it: a name of the model's is in the way
        pinned = case.search(case.with_pins(parse_pin(text)), f"{operator} pinned to {split_text(split)}")
        document = outcome(pinned, base)
        best.append(
            AlternativeDocument(
                **document.model_dump(),
                split=dict(split),
                pin=text,
                why=why(document.difference_s, document.step_parts_difference_s, document.parts_difference_s),
                command=case.command([text]),
            )
        )
    return Alternatives(_ranked(best))


def _ranked(found: list[AlternativeDocument]) -> tuple[AlternativeDocument, ...]:
    return tuple(sorted(found, key=lambda a: a.difference_s))


def _refused(case: Case, base: Found, operator: str, known: list[Split]) -> tuple[tuple[RefusedDocument, ...], int]:
    """What the rule offers and no plan has: pins, memory or what surrounds the operator forbid it."""
    left: dict[Split, int] = {}
    for option in base.planned.options:
        priced = option.unpinned or option.priced
        if priced is None:
            continue
        costs = priced.problem.nodes[priced.op_nodes[operator]].costs
        for k in np.flatnonzero(costs < FORBIDDEN).tolist():
            split = splits_into(priced.tables[operator].strategies[k], option.mesh)
            if split not in known:
                left[split] = min(left.get(split, FORBIDDEN), int(costs[k]))
    ranked = sorted(left, key=lambda s: (left[s], s))
    return tuple(_why_not(case, operator, split) for split in ranked[:MOST_REFUSED]), len(ranked[MOST_REFUSED:])


def _why_not(case: Case, operator: str, split: Split) -> RefusedDocument:
    text = pin_text(operator, split, case.graph)
    reason = "its name cannot stand in a pin"
    if text is not None:
        try:
            case.search(case.with_pins(parse_pin(text)), f"{operator} pinned to {split_text(split)}")
            reason = "no plan was found without it being pinned"
        except InfeasibleError as e:
            reason = f"does not fit in memory: at least {e.lower_bound_bytes} bytes per device are needed"
        except PlannerError as e:
            reason = _short(str(e), text)
    return RefusedDocument(split=dict(split), reason=reason)


def _short(message: str, pin: str) -> str:
    """The error without the pin that is tried: it is said already."""
    head, *lines = [line.strip() for line in message.splitlines()]
    others = [line for line in lines[:-1] if repr(pin) not in line]
    return f"contradicts {'; '.join(others)}" if others and "contradict" in head else " ".join((head, *lines))
