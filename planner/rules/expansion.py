"""All strategies of a rule on many meshes at once.

What a strategy is (roles, layouts) depends on the names of the mesh axes alone, whether it exists on their sizes.
An `Expansion` holds the first for all meshes of the same names, as arrays over every combination of roles;
`on` answers the second for one mesh.  `strategy.strategies` finds the same strategies in the same order, one by one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from threading import Lock

import numpy as np
from numpy.typing import NDArray

from planner.ir import DeviceMesh, Layout, Reduction
from planner.rules.rule import Dims, Rule
from planner.rules.strategy import (
    AxisRole,
    BoundCollective,
    Strategy,
    axis_roles,
    bind,
    inner_collectives,
    operand_pending,
    placed,
    result_pending,
)

__all__ = ["Choices", "Expansion", "Layouts", "Side"]

IntArray = NDArray[np.int64]
_Effect = tuple[
    tuple[tuple[str, int], ...], Reduction | None
]  # factors split in the tensor, in parts; pending reduction


class Layouts:
    """Numbers layouts in order of appearance.  May be shared by threads."""

    def __init__(self) -> None:
        self.known: list[Layout] = []
        self._number: dict[Layout, int] = {}
        self._lock = Lock()
        self._within: dict[int, tuple[Mapping[Layout, int], IntArray]] = {}

    def number(self, layout: Layout) -> int:
        found = self._number.get(layout)
        if found is None:
            with self._lock:
                found = self._number.get(layout)
                if found is None:
                    self.known.append(layout)
                    found = len(self.known) - 1
                    self._number[layout] = found  # last: a thread that is interrupted before leaves no wrong number
        return found

    def within(self, index: Mapping[Layout, int]) -> IntArray:
        """What `index` says of every layout, by its number; -2 where it does not know it."""
        _, found = self._within.get(id(index), (index, np.zeros(0, dtype=np.int64)))
        if len(found) < len(self.known):
            more = [index.get(x, -2) for x in self.known[len(found) :]]
            found = np.concatenate([found, np.array(more, dtype=np.int64)])
            self._within[id(index)] = index, found  # holds on to the index, so that its id stays its own
        return found


@dataclass(slots=True, eq=False)
class Side:
    """How one tensor (or its gradient) lies, for every combination of roles.

    `codes[c]` classifies the combinations, -1 where the rule leaves the tensor out; `copies[c, a]` counts the
    dimensions that axis a splits.  `numbers[code]` is the layout's number in a `Layouts`, -1 until asked for.
    """

    dims: Dims | None
    effects: tuple[_Effect, ...]  # by role
    codes: IntArray
    first: IntArray
    copies: IntArray
    numbers: IntArray


class Expansion:
    """`names` are the axes of the meshes; those of one rank (not `busy`) have nothing to do.

    `operands`, `operand_gradients`, `results` and `result_gradients` hold a `Side` for each tensor.
    """

    def __init__(
        self, rule: Rule, names: tuple[str, ...], busy: tuple[bool, ...], layouts: Layouts, *, training: bool
    ) -> None:
        self.rule, self.names, self.layouts = rule, names, layouts
        self.roles = axis_roles(rule, training=training)
        idle = next(i for i, r in enumerate(self.roles) if r.kind == "replicate")
        options = [np.arange(len(self.roles)) if b else np.array([idle]) for b in busy]
        grid = np.meshgrid(*options, indexing="ij")
        # [combination, axis]: index of the role, in the order of `strategies`
        self.combinations: IntArray = np.stack([g.reshape(-1) for g in grid], axis=1)
        self._sides: dict[object, Side] = {}
        arrives = [[operand_pending(rule, r, i) for r in self.roles] for i in range(len(rule.operands))]
        leaves = [[result_pending(rule, r, dims) for r in self.roles] for dims in rule.results]
        self.operands = [self._side(d, [_sum(f) for f, _ in w]) for d, w in zip(rule.operands, arrives, strict=True)]
        self.operand_gradients = [
            self._side(d, [_sum(b) for _, b in w]) for d, w in zip(rule.operands, arrives, strict=True)
        ]
        self.results = [self._side(d, w) for d, w in zip(rule.results, leaves, strict=True)]
        self.result_gradients = [self._side(d, [_sum(r.kind == "defer") for r in self.roles]) for d in rule.results]
        self.splits = np.array([r.kind == "split" for r in self.roles])
        self._parts = np.array([r.parts for r in self.roles], dtype=np.int64)
        self.factors = list(dict.fromkeys(f for r in self.roles for f in self._members(r)))
        # [role, factor]
        self._splits_factor = np.array([[f in self._members(r) for f in self.factors] for r in self.roles], dtype=bool)
        self._splits_factor = self._splits_factor.reshape(len(self.roles), len(self.factors))
        self._possible = self._consistent(leaves)

    def on(self, mesh: DeviceMesh) -> Choices:
        """The strategies on a mesh of these names."""
        sizes = np.array(mesh.shape, dtype=np.int64)
        split = self._splits_factor[self.combinations]  # [combination, axis, factor]
        shards = np.where(split, sizes[:, None], 1).prod(axis=1)
        parts = np.where(split, self._parts[self.combinations][:, :, None], 1).max(axis=1)
        whole = np.array([self.rule.factors[f] for f in self.factors], dtype=np.int64)
        found = self._possible & (whole % (shards * parts) == 0).all(axis=1)
        number = {f: i for i, f in enumerate(self.factors)}
        for dim in self._composites:
            unfinished = np.zeros(len(found), dtype=bool)  # a more major factor has more than one element per shard
            heads = self.rule.heads(dim)
            counting = np.ones(len(found), dtype=bool)  # the major factors count parts: they are whole
            for f in heads:
                counting &= (shards[:, number[f]] if f in number else np.int64(1)) == 1
            for f in dim:
                of_factor = shards[:, number[f]] if f in number else np.int64(1)
                found &= ~(unfinished & (of_factor > 1))
                unfinished |= (self.rule.factors[f] // of_factor > 1) & ~(counting & (f in heads))
        return Choices(self, mesh, np.flatnonzero(found))

    @cached_property
    def _composites(self) -> tuple[tuple[str, ...], ...]:
        tensors = [*self.rule.operands, *self.rule.results]
        return tuple(dict.fromkeys(d for dims in tensors if dims is not None for d in dims if len(d) > 1))

    def _members(self, role: AxisRole) -> tuple[str, ...]:
        return self.rule.members(role.factor) if role.kind == "split" else ()

    def _consistent(self, leaves: list[list[Reduction | None]]) -> NDArray[np.bool_]:
        """Combinations that may exist: no sums of maxima, and the last factor of a mode split by that mode alone."""
        possible = np.ones(len(self.combinations), dtype=bool)
        for reductions in leaves:
            kinds = [k for k in dict.fromkeys(reductions) if k is not None]
            if len(kinds) > 1:
                held = [np.array([x is k for x in reductions])[self.combinations].any(axis=1) for k in kinds]
                possible &= np.sum(held, axis=0) <= 1
        for i, role in enumerate(self.roles):
            if role.parts > 1:  # all axes that split a factor do so in the same parts
                one = self.roles.index(AxisRole("split", factor=role.factor))
                possible &= ~((self.combinations == i).any(axis=1) & (self.combinations == one).any(axis=1))
            if role.kind == "split" and role.factor not in self.rule.factors:
                last = self.factors.index(self._members(role)[-1])
                plays = self.combinations == i
                possible &= ~plays.any(axis=1) | (self._splits_factor[self.combinations, last] == plays).all(axis=1)
        return possible

    def _side(self, dims: Dims | None, pending: list[Reduction | None]) -> Side:
        here = () if dims is None else tuple(f for d in dims for f in d)
        split = [tuple((f, r.parts) for f in self._members(r) if f in here) for r in self.roles]
        effects = tuple(zip(split, pending, strict=True))
        key = dims, effects
        if key not in self._sides:
            self._sides[key] = self._new_side(dims, effects, here)
        return self._sides[key]

    def _new_side(self, dims: Dims | None, effects: tuple[_Effect, ...], here: tuple[str, ...]) -> Side:
        n = len(self.combinations)
        if dims is None:
            return Side(
                dims, effects, np.full(n, -1), np.zeros(0, np.int64), np.zeros((n, 0), np.int64), np.zeros(0, int)
            )
        numbers: dict[_Effect, int] = {}
        effect = np.array([numbers.setdefault(e, len(numbers)) for e in effects], dtype=np.int64)
        places = effect[self.combinations] @ (len(numbers) ** np.arange(len(self.names)))
        _, first, codes = np.unique(places, return_index=True, return_inverse=True)
        copies = np.array([sum(here.count(f) for f, _ in factors) for factors, _ in effects], dtype=np.int64)
        return Side(dims, effects, codes.reshape(-1), first, copies[self.combinations], np.full(len(first), -1))

    def numbers(self, side: Side, codes: IntArray) -> IntArray:
        """Numbers of the layouts that belong to `codes`."""
        for code in np.unique(codes[side.numbers[codes] < 0]).tolist():
            side.numbers[code] = self.layouts.number(self._layout(side, self.combinations[side.first[code]]))
        return side.numbers[codes]

    def _layout(self, side: Side, roles: IntArray) -> Layout:
        split: dict[str, tuple[str, ...]] = {}
        parts: dict[str, int] = {}
        partial = []
        for name, role in zip(self.names, roles.tolist(), strict=True):
            factors, reduction = side.effects[role]
            for f, count in factors:
                split[f] = (*split.get(f, ()), name)
                parts[f] = count
            if reduction is not None:
                partial.append((name, reduction))
        assert side.dims is not None, "a side without dimensions has no codes"
        return placed(self.rule, side.dims, split, parts, tuple(partial))


@dataclass(frozen=True, eq=False)
class Choices:
    """The strategies of a rule on one mesh: `indices` are their indices among the combinations of the expansion."""

    expansion: Expansion
    mesh: DeviceMesh
    indices: IntArray
    _shards: dict[int, IntArray] = field(default_factory=dict, repr=False)
    _bound: dict[int, Strategy] = field(default_factory=dict, repr=False)

    def __len__(self) -> int:
        return len(self.indices)

    @cached_property
    def roles(self) -> IntArray:
        """[strategy, axis]: index of the role in `expansion.roles`."""
        return self.expansion.combinations[self.indices]

    @cached_property
    def parallelism(self) -> IntArray:
        """Ranks among which the work is divided."""
        return np.asarray(np.where(self.expansion.splits[self.roles], np.array(self.mesh.shape), 1).prod(axis=1))

    def plays(self, kind: str) -> NDArray[np.bool_]:
        """Strategies in which some axis has a role of this kind."""
        return np.asarray(np.array([r.kind == kind for r in self.expansion.roles])[self.roles].any(axis=1))

    def layouts(self, side: Side, whole: int) -> IntArray:
        """Number of the layout of each strategy; `whole` where the rule leaves the tensor out."""
        if side.dims is None:
            return np.full(len(self.indices), whole)
        return self.expansion.numbers(side, side.codes[self.indices])

    def shards(self, side: Side) -> IntArray:
        """Pieces each strategy cuts the tensor into."""
        if side.dims is None:
            return np.ones(len(self.indices), dtype=np.int64)
        if id(side) not in self._shards:
            sizes = np.array(self.mesh.shape, dtype=np.int64)
            self._shards[id(side)] = (sizes ** side.copies[self.indices]).prod(axis=1)
        return self._shards[id(side)]

    def factor_shards(self, factor: str) -> IntArray:
        """Ranks among which each strategy splits a factor."""
        expansion = self.expansion
        if factor not in expansion.factors:
            return np.ones(len(self.indices), dtype=np.int64)
        split = expansion._splits_factor[:, expansion.factors.index(factor)][self.roles]
        return np.asarray(np.where(split, np.array(self.mesh.shape), 1).prod(axis=1))

    def playing(self, wanted: Iterable[tuple[str, AxisRole]]) -> NDArray[np.bool_]:
        """Strategies in which each of these axes, of those with several ranks, has its role."""
        found = np.ones(len(self.indices), dtype=bool)
        for axis, role in wanted:
            if self.mesh.sizes[axis] > 1:
                known = self.expansion.roles
                here = self.roles[:, self.mesh.names.index(axis)]
                found &= here == (known.index(role) if role in known else -1)
        return found

    def among(self, allowed: NDArray[np.bool_]) -> Choices:
        """Those of the strategies that are allowed."""
        return Choices(self.expansion, self.mesh, self.indices[allowed])

    def strategy(self, number: int) -> Strategy:
        """One of the strategies; always the same object."""
        if number not in self._bound:
            roles = self.expansion.roles
            bound = bind(self.expansion.rule, self.mesh, tuple(roles[r] for r in self.roles[number].tolist()))
            assert bound is not None, "combinations that cannot be bound are not kept"
            self._bound[number] = bound
        return self._bound[number]

    @cached_property
    def strategies(self) -> tuple[Strategy, ...]:
        return tuple(map(self.strategy, range(len(self.indices))))

    def inner(self) -> list[tuple[BoundCollective, ...]]:
        """The collectives inside the operator, by strategy."""
        return [inner_collectives(self.expansion.rule, self.mesh, roles) for roles in self._named]

    @property
    def _named(self) -> Iterator[tuple[AxisRole, ...]]:
        roles = self.expansion.roles
        return (tuple(roles[r] for r in row) for row in self.roles.tolist())


def _sum(pending: bool) -> Reduction | None:
    return Reduction.SUM if pending else None
