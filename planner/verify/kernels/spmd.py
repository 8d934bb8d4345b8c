"""Operators that communicate inside: coroutines that yield their all-reduces, and the driver of all ranks.

A kernel is a generator: it yields what it contributes to an all-reduce and is resumed with the reduced value;
what it returns are its local results.  One that never yields only needs to know its place (`ShardContext`).
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field

from planner.errors import VerificationError
from planner.ir import DeviceMesh, Op, Reduction
from planner.verify.shards import Array, combine

__all__ = ["AllReduce", "Coroutine", "ShardContext", "SpmdBackward", "SpmdForward", "run_ranks"]


@dataclass(frozen=True, slots=True)
class AllReduce:
    """Contribution of one rank to a reduction over the ranks of the axes that split `factor`."""

    value: Array
    reduction: str  # sum, max, min
    factor: str


@dataclass(frozen=True, slots=True)
class ShardContext:
    """Where a rank stands: of each split factor, the first index it holds and the number of shards."""

    offset: Mapping[str, int] = field(default_factory=dict)
    shards: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def of(
        cls, factors: Mapping[str, int], split: Mapping[str, Sequence[str]], mesh: DeviceMesh, rank: int
    ) -> ShardContext:
        """Context of `rank` where `split` names the mesh axes of each split factor (major first), sized `factors`."""
        at = mesh.coordinates(rank)
        offset, shards = {}, {}
        for factor, axes in split.items():
            index = 0
            for a in axes:
                index = index * mesh.sizes[a] + at[a]
            shards[factor] = mesh.size(axes)
            offset[factor] = index * (factors[factor] // shards[factor])
        return cls(offset, shards)


Coroutine = Generator[AllReduce, Array, "list[Array | None]"]
# (operator, local operands, place) → local results
SpmdForward = Callable[[Op, "Sequence[Array | None]", ShardContext], Coroutine]
# (operator, local operands, local results, gradients of results, wanted operands, place) → gradients of operands
SpmdBackward = Callable[
    [Op, "Sequence[Array | None]", "Sequence[Array | None]", "Sequence[Array | None]", Sequence[bool], ShardContext],
    Coroutine,
]


def run_ranks(
    kernels: Sequence[Coroutine], mesh: DeviceMesh, axes: Mapping[str, Sequence[str]]
) -> list[list[Array | None]]:
    """Run one kernel per rank in lock-step; index = rank.

    `axes` names the mesh axes that split each factor.  VerificationError where ranks do not meet at the same
    collective, which on real devices would hang.
    """
    results: list[list[Array | None] | None] = [None] * len(kernels)
    pending: dict[int, AllReduce] = {}

    def advance(rank: int, value: Array | None) -> None:
        try:
            # Resuming a generator that has not started is spelt send(None).
            pending[rank] = kernels[rank].send(value)  # type: ignore[arg-type]
        except StopIteration as stop:
            results[rank] = stop.value

    for rank in range(len(kernels)):
        advance(rank, None)
    while pending:
        met = {(c.factor, c.reduction) for c in pending.values()}
        if len(pending) != len(kernels) or len(met) != 1:
            raise VerificationError(
                f"ranks do not meet at one collective: {len(pending)} of {len(kernels)} wait, at {sorted(met)}"
            )
        factor, reduction = next(iter(met))
        contributions, pending = pending, {}
        for group in mesh.groups(axes[factor]):
            total = combine([contributions[r].value for r in group], Reduction(reduction))
            for r in group:
                advance(r, total)
    return [r if r is not None else [] for r in results]
