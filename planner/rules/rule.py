"""What the planner knows of an operator: a sharding rule over named index dimensions (factors).

A rule is bound to one operator's shapes.  It names, for every dimension of every operand and result,
the factors that make it up; splitting a factor over a mesh axis splits every dimension that carries it.
From this alone follow all layouts, forward and backward (see `strategy`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, Literal

from planner.rules.cost import Cost

__all__ = ["MULTIPLIED", "Combine", "Cut", "Dims", "InnerCollective", "Rule"]

MULTIPLIED: Final = frozenset({0, 1})  # the operands that a product multiplies
Dims = tuple[tuple[str, ...], ...]  # per tensor dimension, its factors from major to minor


class Combine(StrEnum):
    """What becomes of a result that lacks a split factor."""

    SUM = "sum"  # pending sum of the local results
    MEAN = "mean"  # pending sum of the local results, each divided by the number of shards
    MAX = "max"  # pending maximum
    MIN = "min"  # pending minimum
    INNER = "inner"  # whole on every rank: it does not depend on the factor, or the operator communicates (see `inner`)


@dataclass(frozen=True, slots=True)
class Cut:
    """A way to split: what one mesh axis splits at once.

    factors   one factor; of a mode several, queries together with keys in a ring, or one with another `combine` than
              that of its own cut.  The last factor of a mode is split by that mode alone
    combine   what becomes of results that lack all of them
    aware     the operator must be told: it communicates, or acts on indices of the whole
    """

    factors: tuple[str, ...]
    combine: Combine = Combine.SUM
    aware: bool = False


@dataclass(frozen=True, slots=True)
class InnerCollective:
    """Communication inside an operator while `factor` (or a mode of `Rule.cuts`) is split.

    The payload of one rank has the dimensions `dims` (factors, sharded as the strategy says) and `item_bytes`
    each; it travels among the ranks of the axes that split `factor`.

    kind       all_reduce (payload: what a rank adds), all_gather (what it contributes), all_to_all (what it
               distributes, its own part included), permute (what it sends to its neighbours)
    extent     further elements per payload, as a function of the number of shards: of a halo, how many
               elements of the split dimension travel
    corner     a further factor, and how many elements of its dimension travel along, as a function of its number of
               shards: a halo that was fetched before is passed on
    statistic  the payload keeps its width, whatever the precision that is planned for
    ring       performed (number of shards − 1) times
    width      bytes of one of the floating-point values that the payload consists of, which take the width of the
               precision that is planned for; 0: it holds none.  Rules leave it to `sharded`
    fixed_bytes  bytes of `item_bytes` that keep their width beside such values: an index
    """

    factor: str
    kind: Literal["all_reduce", "all_gather", "all_to_all", "permute"]
    dims: tuple[str, ...]
    item_bytes: int
    backward: bool = False
    reduction: str = "sum"
    count: int = 1
    extent: Callable[[int], int] | None = None
    corner: tuple[str, Callable[[int], int]] | None = None
    statistic: bool = False
    ring: bool = False
    width: int = 4
    fixed_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Rule:
    """`operands[i]` and `results[j]` are None for tensors that take no part in sharding (shape
    arguments, absent optionals): they stay whole.

    factors        name → size, in the order in which strategies are listed
    cuts           name → a way to split, in that order, too: of factors by their names, then modes by names of their
                   own.  A factor without a cut is never split by itself
    additive       operands that are added to the result (a bias): they arrive partial where the
                   result is partial, and their gradient then needs no reduction
    linear         groups of operands in which the operator is jointly linear: all of a group may
                   arrive partial and the result is partial, too
    differentiable operands that receive a gradient
    saved_operands, saved_results   what the backward reads
    cost           what it computes, whatever is split
    shape_operand  operand that states the result's shape; executed with the local shape instead
    counts         attribute → factors: an integer attribute that counts these factors (`group`,
                   `num_heads`); executed divided by their number of shards
    inner          communication inside the operator, by cut; these are aware
    parts          dimensions, by their factors, that may be split in so many equal parts, each by itself
                   (`Layout.parts`): one factor alone, by a role of its own; of a composite the minor factors, while
                   the major ones, which count the parts, stay whole
    """

    factors: Mapping[str, int]
    operands: tuple[Dims | None, ...]
    results: tuple[Dims | None, ...]
    cuts: Mapping[str, Cut] = field(default_factory=dict)
    additive: frozenset[int] = frozenset()
    linear: tuple[frozenset[int], ...] = ()
    differentiable: frozenset[int] = frozenset()
    saved_operands: frozenset[int] = frozenset()
    saved_results: frozenset[int] = frozenset()
    cost: Cost = field(default_factory=Cost)
    shape_operand: int | None = None
    inner: tuple[InnerCollective, ...] = ()
    text: str = ""
    counts: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    parts: Mapping[tuple[str, ...], int] = field(default_factory=dict)

    @property
    def is_whole(self) -> bool:
        """It only says why the operator cannot be split (`registry.replicated`)."""
        return not self.factors and self.text.startswith("whole: ")

    @property
    def modes(self) -> tuple[str, ...]:
        """The names of cuts that are none of one factor with its own name."""
        return tuple(name for name in self.cuts if name not in self.factors)

    def members(self, factor: str) -> tuple[str, ...]:
        """The factors that a split of `factor`, or of a mode of that name, splits."""
        return self.cuts[factor].factors if factor in self.cuts else (factor,)

    def combine(self, factor: str) -> Combine:
        """What becomes of results that lack `factor`, or all that a mode of that name splits."""
        return self.cuts[factor].combine if factor in self.cuts else Combine.SUM

    def aware(self, split: Iterable[str]) -> bool:
        """Whether the operator must be told of the split of one of these factors or modes."""
        return any(f in self.cuts and self.cuts[f].aware for f in split)

    def heads(self, dim: tuple[str, ...]) -> tuple[str, ...]:
        """The major factors of a composite dimension that count the parts in which it may be split."""
        count = self.parts.get(dim, 1) if len(dim) > 1 else 1
        heads = 0
        while count > 1:
            count //= self.factors[dim[heads]]
            heads += 1
        return dim[:heads]

    def splits_parts(self, operand: int, dim: int) -> bool:
        """A dimension of an operand is composite, and may be split in parts."""
        dims = self.operands[operand]
        return dims is not None and len(dims[dim]) > 1 and dims[dim] in self.parts
