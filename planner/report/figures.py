"""What everything in a plan costs, as whole numbers of its price resolution, so that sums are exact."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from planner.errors import InputError
from planner.planning.document import PlanDocument

__all__ = ["PARTS", "Event", "Figures", "figures", "part_of_move"]

# Parts of the objective → the stream of the simulated step that they occupy.
PARTS: Mapping[str, str] = {
    "compute_forward": "compute",
    "compute_backward": "compute",
    "inside_operators": "compute",
    "activations": "activations",
    "activation_gradients": "activations",
    "parameters": "parameters",
    "parameter_gradients": "parameters",
    "optimizer": "compute",
}
_FALLBACK_S = 1e-12  # of a plan that does not say in what its seconds are counted


@dataclass(frozen=True, slots=True)
class Event:
    """One execution of an operator.  All in units; `units` includes `inside`, its collectives."""

    phase: str
    begin: int
    units: int
    inside: int


@dataclass(frozen=True, slots=True)
class Figures:
    """`unit_s`: seconds of one unit.  `timed`: whether the plan says when operators run; else `runs` and `optimizer`
    are empty and only redistributions have a cost.  `moved[i]`, `begins[i]`: of the plan's redistribution i.
    `owner[i]`: the operator on whose account it stands: the tensor's producer, else its first reader; none where no
    operator has to do with it.  `updated`: parameter → the operator on whose account its optimizer stands."""

    unit_s: float
    timed: bool
    runs: Mapping[str, tuple[Event, ...]]
    moved: tuple[int, ...]
    begins: tuple[int, ...]
    owner: tuple[str, ...]
    optimizer: Mapping[str, int]
    updated: Mapping[str, str]

    def of_operators(self) -> dict[str, dict[str, int]]:
        """Operator → units by `forward` (run again included, as in the plan's parts), `backward`, `inside`, `moved` and
        `optimizer`.  The sum over operators, and what has no owner (the empty name), is the objective."""
        out: dict[str, dict[str, int]] = {}

        def add(name: str, what: str, units: int) -> None:
            entry = out.setdefault(name, {})
            entry[what] = entry.get(what, 0) + units

        for name, events in self.runs.items():
            for e in events:
                add(name, "backward" if e.phase == "backward" else "forward", e.units - e.inside)
                if e.inside:
                    add(name, "inside", e.inside)
        for parameter, units in self.optimizer.items():
            add(self.updated.get(parameter, ""), "optimizer", units)
        for i, units in enumerate(self.moved):
            add(self.owner[i], "moved", units)
        return out


def figures(plan: PlanDocument) -> Figures:
    """Reads the plan's seconds as units.  InputError where they are too many to count."""
    unit = plan.cost.price_resolution_s or _FALLBACK_S

    def units(seconds: float) -> int:
        if not math.isfinite(seconds / unit):
            raise InputError(f"plan of {plan.model.name}: {seconds} s cannot be counted in {unit} s; search again")
        return round(seconds / unit)

    producer = {t: name for name, o in plan.operators.items() for t in o.outputs}
    reader: dict[str, str] = {}
    for name, o in plan.operators.items():
        for t in o.inputs:
            reader.setdefault(t, name)
    return Figures(
        unit_s=unit,
        timed=any(o.runs for o in plan.operators.values()),
        runs={
            name: tuple(Event(r.phase, units(r.begin_s), units(r.seconds), units(r.inside_s)) for r in o.runs)
            for name, o in plan.operators.items()
        },
        moved=tuple(units(r.seconds) for r in plan.redistributions),
        begins=tuple(units(r.begin_s) for r in plan.redistributions),
        owner=tuple(producer.get(r.tensor) or reader.get(r.tensor, "") for r in plan.redistributions),
        optimizer={name: units(p.optimizer_s) for name, p in plan.parameters.items() if p.optimizer_s},
        updated={name: reader.get(name, "") for name in plan.parameters},
    )


def part_of_move(plan: PlanDocument, index: int) -> str:
    """The part of the objective that a redistribution counts in."""
    move = plan.redistributions[index]
    if move.tensor in plan.parameters:
        return "parameters" if move.direction == "forward" else "parameter_gradients"
    return "activations" if move.direction == "forward" else "activation_gradients"
