"""The workload of a configuration by that of another one with as many tensor- and context-parallel ranks.

What a rank computes is the same whatever the number of data-parallel ranks, and whether ZeRO divides over all of them
or over groups; so is what it sends for activations, where these do not travel by way of other data-parallel ranks.
Weights are gathered from other parts, and gradients, which are summed over all ranks, end in these parts: both by the
ways that are the shortest among so many ranks (`routes`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from planner.clock import Configuration
from planner.trace import Exchanges, Unit, Workload
from planner.uniform.data_ranks import DataRanks

__all__ = ["regrouped", "with_ranks"]


def with_ranks(few: Workload, c: Configuration, ranks: DataRanks, exchanged: Sequence[Exchanges]) -> Workload:
    """With as many data-parallel ranks as `c` has, over which weights are stored in parts where they are divided;
    `exchanged`: by unit of the workload."""
    share = few.mesh.devices / ranks.mesh.devices if c.zero else 1.0
    of_frozen = share if c.zero == 3 else 1.0
    made: dict[int, Unit] = {}
    for u, x in zip(few.units, exchanged, strict=True):
        if id(u) not in made:
            made[id(u)] = _exchanging(u, x, u.stored * share, u.frozen_stored_bytes * of_frozen)
    tied = tuple(replace(t, stored=t.stored * share) for t in few.tied)
    frozen_tied = tuple(replace(t, stored=t.stored * of_frozen) for t in few.frozen_tied)
    units = tuple(made[id(u)] for u in few.units)
    samples = c.micro_batch * c.dp
    return replace(few, mesh=ranks.mesh, units=units, tied=tied, frozen_tied=frozen_tied, samples=samples, like=few)


def regrouped(over_all: Workload, c: Configuration, ranks: DataRanks, exchanged: Sequence[Exchanges]) -> Workload:
    """With ZeRO over as many ranks as `c` says (`shard_ranks`); `over_all`: over all data-parallel ranks."""
    copies = ranks.mesh.size((ranks.copies,) if ranks.copies is not None else ())
    made: dict[int, Unit] = {}
    for u, x in zip(over_all.units, exchanged, strict=True):
        if id(u) not in made:
            stored = _stored(u.weights, u.stored, c, copies)
            made[id(u)] = _exchanging(u, x, stored, _stored(u.frozen_bytes, u.frozen_stored_bytes, c, copies))
    tied, frozen = (
        tuple(replace(t, stored=_stored(t.weights, t.stored, c, copies)) for t in found)
        for found in (over_all.tied, over_all.frozen_tied)
    )
    units = tuple(made[id(u)] for u in over_all.units)
    return replace(over_all, units=units, tied=tied, frozen_tied=frozen, exchanged_over=ranks.mesh, like=over_all)


def _exchanging(u: Unit, x: Exchanges, stored: float, frozen_stored_bytes: float) -> Unit:
    return replace(
        u, gathers=x.gathers, sums=x.sums, scatters=x.scatters, stored=stored, frozen_stored_bytes=frozen_stored_bytes
    )


def _stored(read: float, stored: float, c: Configuration, copies: int) -> float:
    """Of elements that are read, those that a rank stores where it stores so many over all ranks: what does not divide
    is stored whole."""
    ranks = c.dp * c.cp
    if c.ep > 1 or ranks == 1:
        return min(read, stored * copies)
    divided = (read - stored) / (1 - 1 / ranks)
    return read - divided + divided * copies / ranks
