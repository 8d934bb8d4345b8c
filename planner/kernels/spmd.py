"""Operators that communicate inside: coroutines that yield their collectives, and the driver of all ranks.

A kernel is a generator: it yields what it contributes to a collective and is resumed with what it receives;
what it returns are its local results.  One that never yields only needs to know its place (`ShardContext`).
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from planner.errors import VerificationError
from planner.ir import DeviceMesh, Op, Reduction
from planner.kernels.shards import Array, combine
from planner.rules import Combine, Rule

__all__ = [
    "AllGather",
    "AllReduce",
    "Collective",
    "Coroutine",
    "Exchange",
    "Performed",
    "Received",
    "ShardContext",
    "Sizes",
    "SpmdBackward",
    "SpmdForward",
    "all_gather",
    "all_reduce",
    "exchange",
    "run_ranks",
]


@dataclass(frozen=True, slots=True)
class AllReduce:
    """Contribution of one rank to a reduction over the ranks of the axes that split `factor`; resumes with the
    reduced value."""

    value: Array
    reduction: str  # sum, max, min
    factor: str


@dataclass(frozen=True, slots=True)
class AllGather:
    """Resumes with the values of all ranks that split `factor`, in the order of their shards, as a tuple.  `terms`:
    ranks make terms of a sum of them, so that the gradients which they find add up."""

    value: Array
    factor: str
    terms: bool = False


@dataclass(frozen=True, slots=True)
class Sizes:
    """Shapes of what is exchanged, where they are known beforehand: all pieces are like `like` except along `dim`, and
    `arriving[j]` is the length of what shard j sends here."""

    like: Array
    dim: int
    arriving: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Exchange:
    """`pieces[j]` goes to the rank that holds shard j of `factor` (None: nothing); resumes with a tuple of what
    each of them sent here.  A halo, a ring and an all-to-all are exchanges.  Where values decide on what goes where,
    `stays` is what does not travel; `sizes` is stated by kernels that also run where shapes must be known."""

    pieces: Sequence[Array | None]
    factor: str
    stays: Array | None = None
    sizes: Sizes | None = None


Collective = AllReduce | AllGather | Exchange
Received = Array | tuple[Array | None, ...]


def all_reduce(value: Array, reduction: str, factor: str) -> Generator[Collective, Received, Array]:
    """`value` reduced (sum, max, min) over the ranks that split `factor`; to be used with `yield from`."""
    found = yield AllReduce(value, reduction, factor)
    assert not isinstance(found, tuple)
    return found


def all_gather(value: Array, factor: str, *, terms: bool = False) -> Generator[Collective, Received, tuple[Array, ...]]:
    """The values of all ranks that split `factor`, in the order of their shards."""
    found = yield AllGather(value, factor, terms)
    return tuple(v for v in found if v is not None)


def exchange(
    pieces: Sequence[Array | None], factor: str, stays: Array | None = None, sizes: Sizes | None = None
) -> Generator[Collective, Received, tuple[Array | None, ...]]:
    """What the ranks that split `factor` sent here, in the order of their shards; `pieces[j]` goes to shard j.  `stays`
    is given where values decide on what goes where."""
    found = yield Exchange(pieces, factor, stays, sizes)
    assert isinstance(found, tuple)
    return found


@dataclass(frozen=True, slots=True)
class Performed:
    """A collective that took place: `bytes` is the largest payload of a rank, in the convention of
    `planner.rules.InnerCollective`; of an exchange what a rank sends to others.  Where values decide on what goes
    where, it is what a rank distributes on average, with what stays: the largest payload would be one of chance."""

    kind: str  # all_reduce, all_gather, exchange, routed
    factor: str
    bytes: int


@dataclass(frozen=True, slots=True)
class ShardContext:
    """Where a rank stands.  For every split factor, and every mode of that name: its first index and shard (both
    counted in the factor's own elements), and the number of shards.  `rule` is that of the whole operator."""

    offset: Mapping[str, int] = field(default_factory=dict)
    shards: Mapping[str, int] = field(default_factory=dict)
    index: Mapping[str, int] = field(default_factory=dict)
    rule: Rule | None = None

    @classmethod
    def of(cls, rule: Rule, split: Mapping[str, Sequence[str]], mesh: DeviceMesh, rank: int) -> ShardContext:
        """Context of `rank` where `split` names the mesh axes of each split factor or mode (major first)."""
        at = mesh.coordinates(rank)
        offset, shards, position = {}, {}, {}
        for factor, axes in split.items():
            index = 0
            for a in axes:
                index = index * mesh.sizes[a] + at[a]
            shards[factor] = mesh.size(axes)
            position[factor] = index
            if factor in rule.factors:
                offset[factor] = index * (rule.factors[factor] // shards[factor])
        return cls(offset, shards, position, rule)

    def splits(self, factor: str) -> bool:
        return factor in self.shards

    def reduced_factors(self) -> tuple[str, ...]:
        """The split factors (or modes) over which the operator communicates, in the order of its rule."""
        assert self.rule is not None
        communicates = {c.factor for c in self.rule.inner}
        return tuple(f for f in (*self.rule.factors, *self.rule.modes) if f in communicates and self.splits(f))

    def inside(self) -> tuple[str, ...]:
        """The split factors (or modes) that are reduced inside the operator."""
        assert self.rule is not None
        return tuple(f for f in self.shards if self.rule.combine(f) is Combine.INNER)


Coroutine = Generator[Collective, Received, "list[Array | None]"]
# (operator, local operands, place) → local results, and behind those what only the backward reads: it finds all of
# them among the results
SpmdForward = Callable[[Op, "Sequence[Array | None]", ShardContext], Coroutine]
# (operator, local operands, local results, gradients of results, wanted operands, place) → gradients of operands
SpmdBackward = Callable[
    [Op, "Sequence[Array | None]", "Sequence[Array | None]", "Sequence[Array | None]", Sequence[bool], ShardContext],
    Coroutine,
]


def run_ranks(
    kernels: Sequence[Coroutine],
    mesh: DeviceMesh,
    axes: Mapping[str, Sequence[str]],
    performed: list[Performed] | None = None,
) -> list[list[Array | None]]:
    """Run one kernel per rank in lock-step; index = rank.

    `axes` names the mesh axes that split each factor; what is communicated is added to `performed`.
    VerificationError where ranks do not meet at the same collective, which on real devices would hang.
    """
    results: list[list[Array | None] | None] = [None] * len(kernels)
    pending: dict[int, Collective] = {}

    def advance(rank: int, value: Received | None) -> None:
        try:
            # Resuming a generator that has not started is spelt send(None).
            pending[rank] = kernels[rank].send(value)  # type: ignore[arg-type]
        except StopIteration as stop:
            results[rank] = stop.value

    for rank in range(len(kernels)):
        advance(rank, None)
    while pending:
        met = {(type(c).__name__, c.factor, getattr(c, "reduction", "")) for c in pending.values()}
        if len(pending) != len(kernels) or len(met) != 1:
            raise VerificationError(
                f"ranks do not meet at one collective: {len(pending)} of {len(kernels)} wait, at {sorted(met)}"
            )
        waiting, pending = pending, {}
        factor = waiting[0].factor
        if performed is not None:
            performed.append(_account(factor, waiting))
        for group in mesh.groups(tuple(axes[factor])):
            for rank, value in zip(group, _meet([waiting[r] for r in group]), strict=True):
                advance(rank, value)
    return [r if r is not None else [] for r in results]


def _meet(calls: list[Collective]) -> list[Received]:
    """What each rank of a group receives."""
    first = calls[0]
    if isinstance(first, AllReduce):
        values = [c.value for c in calls if isinstance(c, AllReduce)]
        return [combine(values, Reduction(first.reduction))] * len(calls)
    if isinstance(first, AllGather):
        return [tuple(c.value for c in calls if isinstance(c, AllGather))] * len(calls)
    sent = [c.pieces for c in calls if isinstance(c, Exchange)]
    if any(len(pieces) != len(calls) for pieces in sent):
        raise VerificationError(f"an exchange among {len(calls)} ranks needs as many pieces, absent ones included")
    return [tuple(pieces[j] for pieces in sent) for j in range(len(calls))]


def _account(factor: str, calls: Mapping[int, Collective]) -> Performed:
    first = calls[0]
    if isinstance(first, Exchange):
        sent = [sum(p.nbytes for p in c.pieces if p is not None) for c in calls.values() if isinstance(c, Exchange)]
        stays = [c.stays.nbytes for c in calls.values() if isinstance(c, Exchange) and c.stays is not None]
        if stays:
            return Performed("routed", factor, -(-(sum(sent) + sum(stays)) // len(calls)))
        return Performed("exchange", factor, max(sent))
    kind = "all_reduce" if isinstance(first, AllReduce) else "all_gather"
    return Performed(
        kind, factor, max(np.asarray(c.value).nbytes for c in calls.values() if not isinstance(c, Exchange))
    )
