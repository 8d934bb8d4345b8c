"""What every operator of a plan answers for, in whole units, so that sums are exact.

An operator answers for its own runs, for the redistributions of what it makes (of one that serves a single reader, the
reader), and for the parameters that it reads first: gathers, synchronisation, update.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from fractions import Fraction
from typing import Final

from cost_models.memory import parameter_bytes
from planner.errors import InputError
from planner.ir.tensor import ITEM_BYTES
from planner.planning import PlanDocument
from planner.planning.document import OperatorDocument, ParameterDocument, RedistributionDocument
from planner.redistribute.steps import FREE

__all__ = ["PARTS", "Bill", "Ledger", "common_unit", "converter", "ledger", "total"]

# Of cost.parts_s, in its order.
PARTS: Final = (
    "compute_forward",
    "compute_backward",
    "inside_operators",
    "activations",
    "activation_gradients",
    "parameters",
    "parameter_gradients",
    "optimizer",
)
_FINEST: Final = Fraction(1, 10**18)


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
    """Seconds of the largest unit of which all times of both plans are multiples, and whether both say theirs; else
    the unit is an attosecond, to which times are rounded."""
    sizes = [_resolution(p) for p in (a, b)]
    if any(s is None for s in sizes):
        return _FINEST, False
    first, second = (Fraction(str(s)) for s in sizes)
    common = math.lcm(first.denominator, second.denominator)
    return Fraction(math.gcd(int(first * common), int(second * common)), common), True


def _resolution(plan: PlanDocument) -> float | None:
    size = plan.cost.price_resolution_s
    return size if size is not None and 0 < size < math.inf else None


def converter(plan: PlanDocument, unit: Fraction) -> Callable[[float], int]:
    """Seconds of a plan's file → units.  InputError where they are no number."""
    size = _resolution(plan) if unit != _FINEST else None
    each = 1 if size is None else int(Fraction(str(size)) / unit)

    def units(seconds: float) -> int:
        if not math.isfinite(seconds if size is None else seconds / size):
            raise InputError(f"plan of {plan.model.name}: expected times in seconds, found {seconds}; search again")
        return round(Fraction(seconds) / unit) if size is None else round(seconds / size) * each

    return units


def ledger(plan: PlanDocument, unit: Fraction) -> Ledger:
    """Bills of the plan in `unit` (`common_unit`)."""
    units = converter(plan, unit)
    owner = _Owners(plan)
    lists: dict[str, tuple[list[RedistributionDocument], list[str]]] = {n: ([], []) for n in plan.operators}
    loose: list[Bill] = []
    found: dict[str, list[Bill]] = defaultdict(list)
    for name, op in plan.operators.items():
        found[name].append(_runs(plan, name, op, units))
    for r in plan.redistributions:
        bill = _move(r, r.tensor in plan.parameters, units)
        holder = owner.of(r)
        if holder is None:
            loose.append(bill)
        else:
            found[holder].append(bill)
            lists[holder][0].append(r)
    for tensor, p in plan.parameters.items():
        state = Bill(optimizer=units(p.optimizer_s), parameter_bytes=_state(plan, tensor, p))
        holder = owner.of_parameter.get(tensor)
        if holder is None:
            loose.append(state)
        else:
            found[holder].append(state)
            lists[holder][1].append(tensor)
    return Ledger({n: total(bills) for n, bills in found.items()}, total(loose), lists)


class _Owners:
    def __init__(self, plan: PlanDocument) -> None:
        self.plan = plan
        self.maker: dict[str, str] = {}
        self.reader: dict[str, str] = {}
        for name, op in plan.operators.items():
            self.maker.setdefault(name, name)
            for t in op.outputs:
                self.maker.setdefault(t, name)
            for t in op.inputs:
                self.reader.setdefault(t, name)
        order = {name: i for i, name in enumerate(plan.operators)}
        self.of_parameter: dict[str, str] = {}
        for tensor, p in plan.parameters.items():
            readers = [r.operator for r in p.readers] + [x.rpartition(":")[0] for x in p.aliases]
            known = [n for n in (self.reader.get(tensor), *readers) if n in order]
            if known:
                self.of_parameter[tensor] = min(known, key=lambda n: order[n or ""]) or ""

    def of(self, r: RedistributionDocument) -> str | None:
        if r.reader in self.plan.operators:
            return r.reader
        if r.tensor in self.plan.parameters:
            return self.of_parameter.get(r.tensor)
        return self.maker.get(r.tensor) or self.reader.get(r.tensor)


def _runs(plan: PlanDocument, name: str, op: OperatorDocument, units: Callable[[float], int]) -> Bill:
    forward = backward = inside = 0
    for r in op.runs:
        within = units(r.inside_s)
        inside += within
        if r.phase == "backward":
            backward += units(r.seconds) - within
        else:
            forward += units(r.seconds) - within
    times = {False: sum(r.phase != "backward" for r in op.runs), True: sum(r.phase == "backward" for r in op.runs)}
    if not op.runs:
        again = any(name in block for block in plan.schedule.recompute)
        times = {False: 1 + again, True: int(plan.schedule.mode == "training")}
    sizes = plan.mesh.sizes
    moved = 0
    for c in op.inner:
        ranks = 1 if c.kind in ("all_reduce", "permute") else math.prod(sizes.get(a, 1) for a in c.axes)
        moved += c.count * c.bytes * ranks * times[c.backward]
    return Bill(compute_forward=forward, compute_backward=backward, inside_operators=inside, bytes_moved=moved)


def _move(r: RedistributionDocument, parameter: bool, units: Callable[[float], int]) -> Bill:
    kinds = {
        (False, False): "activations",
        (False, True): "activation_gradients",
        (True, False): "parameters",
        (True, True): "parameter_gradients",
    }
    moved = sum(s.bytes for s in r.steps if s.kind not in FREE)
    part = kinds[parameter, r.direction == "gradient"]
    return Bill(**{part: units(r.seconds), "bytes_moved": moved})


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
