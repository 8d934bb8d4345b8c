"""Which ranks' files are needed, of plans alone: no checkpoint is opened."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from planner.checkpoint.layouts import Layouts, Spread
from planner.errors import InputError
from planner.transfer.holders import fewest
from planner.transfer.overlaps import overlaps

__all__ = ["ranks_needed"]


def ranks_needed(before: Layouts, after: Layouts, ranks: Sequence[int]) -> tuple[int, ...]:
    """The fewest ranks of `before` whose files hold all that these ranks of `after` need: parameters and the state of
    their optimizer.

    InputError where `after` has a parameter that `before` lacks, or of another shape.
    """
    seen: set[tuple[Spread, Spread, tuple[int, ...]]] = set()
    needs: set[frozenset[int]] = set()
    wanted = list(ranks)
    for name, spread in after.parameters.items():
        if name not in before.parameters:
            raise InputError(
                f"{before.said}: has no parameter {name}, which {after.said} lays out; give plans of one model"
            )
        for here, there in ((before.parameters[name], spread), (before.of_slot(name), after.of_slot(name))):
            shape = here.shape or there.shape or _divisible(here, there)
            if there.shape not in (None, shape) or len(there.layout.dims) != len(shape):
                raise InputError(
                    f"parameter {name}: {before.said} has the shape {list(shape)}, {after.said} "
                    f"{list(there.shape or ())}; give plans of one model"
                )
            if (here, there, shape) in seen:
                continue
            seen.add((here, there, shape))
            needs |= _needs(here, there, shape, wanted)
    return fewest(needs)


def _divisible(here: Spread, there: Spread) -> tuple[int, ...]:
    """A shape that both layouts divide, where neither file has the tensor's own."""
    parts = zip(here.layout.counts(here.mesh), there.layout.counts(there.mesh), strict=True)
    return tuple(a * b for a, b in parts)


def _needs(here: Spread, there: Spread, shape: tuple[int, ...], ranks: list[int]) -> set[frozenset[int]]:
    source, target = here.pieces(shape), there.pieces(shape)
    target = target.chosen(np.isin(target.holders, ranks))
    first, which = source.distinct()
    met = overlaps(source.boxes.chosen(first), target.boxes)
    holders: dict[int, set[int]] = {}
    needed = np.isin(which, np.unique(met.left))
    for box, rank in zip(which[needed], source.holders[needed], strict=True):
        holders.setdefault(int(box), set()).add(int(rank))
    return {frozenset(h) for h in holders.values()}
