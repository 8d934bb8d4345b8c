"""Expansion of a rule over a mesh.

Every mesh axis plays one *role* for an operator.  With X an operand, Y a result, dX and dY their
gradients, and S, R, P for split, replicated and partial (pending sum):

| role      | X has f | X lacks f | X added* | Y has f | Y lacks f | dX (has, lacks, added) | dY has f | dY lacks f |
|-----------|---------|-----------|----------|---------|-----------|------------------------|----------|------------|
| split f   | S       | R         | P        | S       | P         | S, P, R                | S        | R          |
| replicate | R       | R         | R        | R       | R         | R                      | R        | R          |
| defer     | R       | R         | R        | R       | R         | P                      | P        | P          |

(* an additive operand such as a bias, where f is contracted)

and `linear g`: operands of the group g arrive P (dX R), the others R (dX P), Y is P and dY is R.

`defer` exists because a vector-Jacobian product is linear in dY: a gradient that is still a pending sum
may flow through an operator whose work is replicated, and be reduced later, or never.

The roles of different axes are independent, apart from composite dimensions: an axis may split a minor
factor of a dimension only when every more major factor is already split down to single elements, or where the
dimension may be split in parts (`Rule.parts`) and the major factors that count the parts are whole.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

from planner.ir import DeviceMesh, Layout, Reduction
from planner.rules.rule import Combine, Dims, Rule

__all__ = [
    "DEFER",
    "REPLICATE",
    "AxisRole",
    "BoundCollective",
    "Strategy",
    "axis_roles",
    "bind",
    "inner_collectives",
    "operand_pending",
    "placed",
    "result_pending",
    "strategies",
]

_REDUCTION = {
    Combine.SUM: Reduction.SUM,
    Combine.MEAN: Reduction.SUM,
    Combine.MAX: Reduction.MAX,
    Combine.MIN: Reduction.MIN,
}


@dataclass(frozen=True, slots=True)
class AxisRole:
    """What one mesh axis does for an operator: split `factor` (each of its equal `parts` by itself), or be linear in
    `Rule.linear[group]`, …"""

    kind: Literal["split", "replicate", "defer", "linear"]
    factor: str = ""
    group: int = -1
    parts: int = 1

    def __str__(self) -> str:
        if self.kind == "split":
            return self.factor if self.parts == 1 else f"{self.factor}:{self.parts}"
        return {"replicate": "_", "defer": "d~", "linear": f"+{self.group}"}[self.kind]


REPLICATE = AxisRole("replicate")
DEFER = AxisRole("defer")


@dataclass(frozen=True, slots=True)
class BoundCollective:
    """An inner collective of a strategy: `elements` is the payload of one rank, over the group of `axes`.

    `statistic`, `width` and `fixed_bytes` are as of `InnerCollective`.
    """

    kind: str
    axes: tuple[str, ...]
    elements: int
    item_bytes: int
    backward: bool
    reduction: str
    count: int
    statistic: bool = False
    width: int = 4
    fixed_bytes: int = 0

    @property
    def bytes(self) -> int:
        """In the graph's own precision."""
        return self.elements * self.item_bytes

    def bytes_of(self, float_bytes: int) -> int:
        """Where floating-point values take `float_bytes` each."""
        if self.statistic or not self.width:
            return self.bytes
        return self.elements * (self.fixed_bytes + (self.item_bytes - self.fixed_bytes) * float_bytes // self.width)


@dataclass(frozen=True, slots=True)
class Strategy:
    """One way to run an operator on a mesh: `roles[a]` is what mesh axis a does.

    Layouts are None where the rule leaves the tensor out.  `parallelism` is the number of ranks
    among which the work is divided; `scale` multiplies the local results (mean reductions).
    """

    roles: tuple[AxisRole, ...]
    operands: tuple[Layout | None, ...]
    results: tuple[Layout | None, ...]
    operand_gradients: tuple[Layout | None, ...]
    result_gradients: tuple[Layout | None, ...]
    parallelism: int
    scale: float
    inner: tuple[BoundCollective, ...]
    splits: tuple[tuple[str, tuple[str, ...]], ...] = ()

    @property
    def split(self) -> dict[str, tuple[str, ...]]:
        """Factor, or mode, → the mesh axes that split it."""
        return dict(self.splits)

    def text(self, mesh: DeviceMesh) -> str:
        """One line: `m=x k=y`; axes that replicate are left out."""
        named = zip(mesh.names, self.roles, strict=True)
        return " ".join(f"{role}={name}" for name, role in named if role.kind != "replicate") or "replicated"


def axis_roles(rule: Rule, *, training: bool) -> tuple[AxisRole, ...]:
    """All roles that one mesh axis can play, sizes aside."""
    ways = rule.cuts.items()
    roles = [AxisRole("split", factor=name) for name, way in ways if all(rule.factors[f] > 1 for f in way.factors)]
    if training and rule.differentiable:
        # The gradient of a maximum needs to know which rank held it: rules offer a mode for that.
        roles = [r for r in roles if rule.combine(r.factor) not in (Combine.MAX, Combine.MIN)]
    roles += [AxisRole("split", factor=d[0], parts=n) for d, n in rule.parts.items() if len(d) == 1]
    roles += [AxisRole("linear", group=g) for g in range(len(rule.linear))]
    roles.append(REPLICATE)
    if training and rule.differentiable:
        roles.append(DEFER)
    return tuple(roles)


def strategies(rule: Rule, mesh: DeviceMesh, *, training: bool) -> tuple[Strategy, ...]:
    """Every strategy of the rule on the mesh, in a fixed order; full replication is always among them.

    An axis of one rank has nothing to do.  `expansion` finds the same ones for many meshes at once.
    """
    roles = axis_roles(rule, training=training)
    found = []
    for combination in itertools.product(*(roles if a.size > 1 else (REPLICATE,) for a in mesh.axes)):
        strategy = bind(rule, mesh, combination)
        if strategy is not None:
            found.append(strategy)
    return tuple(found)


_BOUND: dict[tuple[int, DeviceMesh, tuple[AxisRole, ...]], tuple[Rule, Strategy | None]] = {}
_MOST: Final = 1 << 14  # strategies remembered


def bind(rule: Rule, mesh: DeviceMesh, roles: tuple[AxisRole, ...]) -> Strategy | None:
    """The strategy in which mesh axis a plays `roles[a]`; None where its factors or their sizes do not allow it.

    The last ones are remembered, since configurations of a model run most operators in the same few ways.
    """
    key = id(rule), mesh, roles
    known = _BOUND.get(key)
    if known is None:
        if len(_BOUND) >= _MOST:
            _BOUND.clear()
        known = _BOUND[key] = rule, _bound(rule, mesh, roles)  # with the rule, so that its number is not another's
    return known[1]


def _bound(rule: Rule, mesh: DeviceMesh, roles: tuple[AxisRole, ...]) -> Strategy | None:
    over, split = _axes_of(rule, mesh, roles)
    parts = _parts_of(roles)
    if parts is None or any(rule.parts.get((f,)) != n for f, n in parts.items() if n > 1):
        return None
    for factor, named in split.items():
        if factor not in rule.factors or rule.factors[factor] % (mesh.size(named) * parts.get(factor, 1)):
            return None
    if any(split[rule.members(m)[-1]] != over[m] for m in over if m not in rule.factors):
        return None
    if split:
        for dims in (*rule.operands, *rule.results):
            if dims is not None and not _composites_allow(rule, mesh, split, dims):
                return None

    def place(dims: Dims | None, partial: list[str], reduction: Reduction = Reduction.SUM) -> Layout | None:
        if dims is None:
            return None
        return placed(rule, dims, split, parts, tuple((a, reduction) for a in partial))

    operands, gradients = [], []
    for i, dims in enumerate(rule.operands):
        sides = [operand_pending(rule, role, i) for role in roles]
        operands.append(place(dims, [a for a, (forward, _) in zip(mesh.names, sides, strict=True) if forward]))
        gradients.append(place(dims, [a for a, (_, backward) in zip(mesh.names, sides, strict=True) if backward]))
    results, result_gradients = [], []
    for dims in rule.results:
        pending: dict[Reduction, list[str]] = {}
        deferred = []
        for name, role in zip(mesh.names, roles, strict=True):
            combined = result_pending(rule, role, dims)
            if combined is not None:
                pending.setdefault(combined, []).append(name)
            elif role.kind == "defer":
                deferred.append(name)
        if len(pending) > 1:
            return None  # sums of maxima: the order of reduction would matter
        reduction, axes = next(iter(pending.items())) if pending else (Reduction.SUM, [])
        results.append(place(dims, axes, reduction))
        result_gradients.append(place(dims, deferred))
    scale = math.prod(
        1 / mesh.sizes[name]
        for name, role in zip(mesh.names, roles, strict=True)
        if role.kind == "split" and rule.combine(role.factor) is Combine.MEAN
    )
    return Strategy(
        roles,
        tuple(operands),
        tuple(results),
        tuple(gradients),
        tuple(result_gradients),
        math.prod(mesh.size(a) for a in over.values()),
        scale,
        inner_collectives(rule, mesh, roles),
        # A factor split both by itself and as part of a mode is split over the axes of both.
        tuple({**over, **split}.items()),
    )


def inner_collectives(rule: Rule, mesh: DeviceMesh, roles: tuple[AxisRole, ...]) -> tuple[BoundCollective, ...]:
    """The collectives inside the operator of a strategy that `bind` allows."""
    over, split = _axes_of(rule, mesh, roles)
    bound = (
        BoundCollective(
            c.kind,
            over[c.factor],
            math.prod(rule.factors[f] // mesh.size(split.get(f, ())) for f in c.dims)
            * (c.extent(mesh.size(over[c.factor])) if c.extent is not None else 1)
            * (c.corner[1](mesh.size(split.get(c.corner[0], ()))) if c.corner is not None else 1),
            c.item_bytes,
            c.backward,
            c.reduction,
            c.count * (mesh.size(over[c.factor]) - 1 if c.ring else 1),
            c.statistic,
            c.width,
            c.fixed_bytes,
        )
        for c in rule.inner
        if c.factor in over
    )
    return tuple(c for c in bound if c.elements)


def _axes_of(
    rule: Rule, mesh: DeviceMesh, roles: tuple[AxisRole, ...]
) -> tuple[dict[str, tuple[str, ...]], dict[str, tuple[str, ...]]]:
    """Role → its axes, and factor → its axes, of all roles."""
    over: dict[str, tuple[str, ...]] = {}
    split: dict[str, tuple[str, ...]] = {}
    for name, role in zip(mesh.names, roles, strict=True):
        if role.kind == "split":
            over[role.factor] = (*over.get(role.factor, ()), name)
            for factor in rule.members(role.factor):
                split[factor] = (*split.get(factor, ()), name)
    return over, split


def operand_pending(rule: Rule, role: AxisRole, index: int) -> tuple[bool, bool]:
    """Whether operand `index` arrives pending over an axis of this role, and whether its gradient leaves pending."""
    if role.kind == "defer":
        return False, True
    if role.kind == "linear":
        joint = index in rule.linear[role.group]
        return joint, not joint
    dims = rule.operands[index]
    if role.kind == "replicate" or dims is None or _has(dims, rule.members(role.factor)):
        return False, False
    contracted = not any(r is not None and _has(r, rule.members(role.factor)) for r in rule.results)
    added = index in rule.additive and contracted
    return added, not added


def result_pending(rule: Rule, role: AxisRole, dims: Dims | None) -> Reduction | None:
    """How a result of these dimensions is left pending over an axis of this role; None where it is not."""
    if role.kind == "linear":
        return Reduction.SUM
    if role.kind != "split" or dims is None or _has(dims, rule.members(role.factor)):
        return None
    return _REDUCTION.get(rule.combine(role.factor))


def _has(dims: Dims, factors: tuple[str, ...]) -> bool:
    """Some dimension carries one of the factors."""
    for d in dims:
        for f in factors:
            if f in d:
                return True
    return False


def _parts_of(roles: tuple[AxisRole, ...]) -> dict[str, int] | None:
    """In how many parts each factor is split; None where two axes disagree."""
    parts: dict[str, int] = {}
    for role in roles:
        if role.kind == "split" and parts.setdefault(role.factor, role.parts) != role.parts:
            return None
    return parts


def placed(
    rule: Rule,
    dims: Dims,
    split: Mapping[str, tuple[str, ...]],
    parts: Mapping[str, int],
    partial: tuple[tuple[str, Reduction], ...],
) -> Layout:
    """The layout of a tensor whose factors are split over these axes, those alone in a dimension in so many parts."""
    if not split:
        return Layout(((),) * len(dims), partial)
    axes = tuple(
        [split.get(d[0], ()) if len(d) == 1 else tuple([a for f in d for a in split.get(f, ())]) for d in dims]
    )
    if not rule.parts:
        return Layout(axes, partial)
    counts = tuple(
        (parts.get(d[0], 1) if len(d) == 1 else _parts_between(rule, d, split)) if over else 1
        for d, over in zip(dims, axes, strict=True)
    )
    return Layout(axes, partial, counts if any(n > 1 for n in counts) else ())


def _joined(dim: tuple[str, ...], split: Mapping[str, tuple[str, ...]]) -> tuple[str, ...]:
    return tuple([a for f in dim for a in split.get(f, ())])


def _parts_between(rule: Rule, dim: tuple[str, ...], split: Mapping[str, tuple[str, ...]]) -> int:
    """The parts in which a composite dimension is split: those that its major factors count, while they are whole."""
    return 1 if any(f in split for f in rule.heads(dim)) else rule.parts.get(dim, 1)


def _composites_allow(rule: Rule, mesh: DeviceMesh, split: dict[str, tuple[str, ...]], dims: Dims) -> bool:
    for d in dims:
        if len(d) == 1:
            continue
        whole_so_far = False  # a more major factor has more than one element per shard
        for f in minor_factors(rule, d, split):
            shards = mesh.size(split.get(f, ()))
            if shards > 1 and whole_so_far:
                return False
            whole_so_far = whole_so_far or rule.factors[f] // shards > 1
    return True


def minor_factors(rule: Rule, dim: tuple[str, ...], split: Mapping[str, tuple[str, ...]]) -> tuple[str, ...]:
    """The factors of a dimension among which a split goes from major to minor: those that count equal parts, while
    they are whole, do not stand in the way of the others."""
    heads = rule.heads(dim)
    return dim if any(f in split for f in heads) else dim[len(heads) :]
