"""What every operator of a plan answers for, in whole units, so that sums are exact.

An operator answers for its own runs, for the redistributions of what it makes, and for the parameters that it reads
first: gathers, synchronisation, update (`planner.report.figures`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from fractions import Fraction
from typing import Final

from planner.cost_models.memory import parameter_bytes
from planner.ir.tensor import ITEM_BYTES
from planner.planning import PlanDocument
from planner.planning.document import OperatorDocument, ParameterDocument, RedistributionDocument
from planner.redistribute.steps import FREE
from planner.report.figures import PARTS as NAMED
from planner.report.figures import Figures, figures, part_of_move

__all__ = ["PARTS", "Bill", "Ledger", "common_unit", "counted", "ledger", "total"]

PARTS: Final = tuple(NAMED)  # of cost.parts_s, in its order


@dataclass(frozen=True, slots=True)
class Bill:
    """Units of the objective by part; bytes that collectives move (as counted by the terminal summary of a plan); bytes
    per device of parameters with their gradients and optimizer state, as stored."""

    compute_forward: int = 0
    compute_backward: int = 0
    inside_operators: int = 0
    activations: int = 0
    activation_gradients: int = 0
    parameters: int = 0
    parameter_gradients: int = 0
    optimizer: int = 0
    bytes_moved: int = 0
    parameter_bytes: int = 0

    @property
    def units(self) -> int:
        return sum(getattr(self, p) for p in PARTS)

    def __add__(self, other: Bill) -> Bill:
        return Bill(*(x + y for x, y in zip(self.values(), other.values(), strict=True)))

    def __sub__(self, other: Bill) -> Bill:
        return Bill(*(x - y for x, y in zip(self.values(), other.values(), strict=True)))

    def values(self) -> tuple[int, ...]:
        return tuple(getattr(self, f.name) for f in fields(self))


def total(bills: Iterable[Bill]) -> Bill:
    rows = [b.values() for b in bills]
    return Bill(*map(sum, zip(*rows, strict=True))) if rows else Bill()


@dataclass(frozen=True, slots=True)
class Ledger:
    """`bills` by operator; `loose`: what belongs to none (of a tensor that no operator makes or reads)."""

    bills: Mapping[str, Bill]
    loose: Bill
    owners: Mapping[str, tuple[list[RedistributionDocument], list[str]]] = field(default_factory=dict)

    def redistributions(self, operator: str) -> list[RedistributionDocument]:
        return self.owners[operator][0] if operator in self.owners else []

    def parameters(self, operator: str) -> list[str]:
        return self.owners[operator][1] if operator in self.owners else []


def common_unit(a: PlanDocument, b: PlanDocument) -> tuple[Fraction, bool]:
    """Seconds of the largest unit in which the times of both plans count, and whether both say in what theirs do."""
    first, second = (Fraction(str(figures(p).unit_s)) for p in (a, b))
    common = math.lcm(first.denominator, second.denominator)
    stated = all(p.cost.price_resolution_s for p in (a, b))
    return Fraction(math.gcd(int(first * common), int(second * common)), common), stated


def counted(plan: PlanDocument, unit: Fraction) -> Callable[[float], int]:
    """Seconds of the plan's file → `unit`."""
    size = figures(plan).unit_s
    each = int(Fraction(str(size)) / unit)

    def units(seconds: float) -> int:
        return round(seconds / size) * each

    return units


def ledger(plan: PlanDocument, unit: Fraction, *, timed: bool = True) -> Ledger:
    """Bills of the plan in `unit` (`common_unit`); without runs and updates where not `timed`, as those of a plan that
    does not tell them."""
    costs = figures(plan)
    each = int(Fraction(str(costs.unit_s)) / unit)
    lists: dict[str, tuple[list[RedistributionDocument], list[str]]] = {n: ([], []) for n in plan.operators}
    found: dict[str, list[Bill]] = {n: [_runs(plan, n, o, costs, each * timed)] for n, o in plan.operators.items()}
    found[""] = []  # of no operator
    for i, r in enumerate(plan.redistributions):
        moved = sum(s.bytes for s in r.steps if s.kind not in FREE)
        found[costs.owner[i]].append(Bill(**{part_of_move(plan, i): costs.moved[i] * each, "bytes_moved": moved}))
        if costs.owner[i]:
            lists[costs.owner[i]][0].append(r)
    for tensor, p in plan.parameters.items():
        holder = costs.updated[tensor]
        update = costs.optimizer.get(tensor, 0) * each * timed
        found[holder].append(Bill(optimizer=update, parameter_bytes=_state(plan, tensor, p)))
        if holder:
            lists[holder][1].append(tensor)
    loose = total(found.pop(""))
    return Ledger({n: total(bills) for n, bills in found.items()}, loose, lists)


def _runs(plan: PlanDocument, name: str, op: OperatorDocument, costs: Figures, each: int) -> Bill:
    runs = costs.runs[name]
    own = {back: sum(r.units - r.inside for r in runs if (r.phase == "backward") == back) for back in (False, True)}
    times = {back: sum((r.phase == "backward") == back for r in runs) for back in (False, True)}
    if not runs:
        again = any(name in block for block in plan.schedule.recompute)
        times = {False: 1 + again, True: int(plan.schedule.mode == "training")}
    sizes = plan.mesh.sizes
    moved = 0
    for c in op.inner:
        ranks = 1 if c.kind in ("all_reduce", "permute") else math.prod(sizes.get(a, 1) for a in c.axes)
        moved += c.count * c.bytes * ranks * times[c.backward]
    return Bill(
        compute_forward=own[False] * each,
        compute_backward=own[True] * each,
        inside_operators=sum(r.inside for r in runs) * each,
        bytes_moved=moved,
    )


def _state(plan: PlanDocument, name: str, p: ParameterDocument) -> int:
    """Bytes per device of a stored parameter: with gradient and optimizer state where it is trained."""
    held = math.prod(p.shape) // max(1, p.stored.layout().shards(plan.mesh))
    s = plan.schedule
    if p.gradient is not None:
        each = parameter_bytes(s.precision, s.optimizer)
        return held * (each.gradient + each.optimizer + (each.master or each.compute_copy))
    dtype = plan.tensors[name].dtype if name in plan.tensors else "float32"
    if dtype.startswith(("float", "bfloat")):
        return held * (4 if s.precision == "fp32" else 2)
    return held * ITEM_BYTES.get(dtype, 1)
