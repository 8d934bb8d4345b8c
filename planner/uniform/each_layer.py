"""What a rank does for each layer of a model whose layers differ, such as the blocks of an encoder and of a decoder."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from planner.clock import Configuration
from planner.clock.memory import chunk_activation_bytes
from planner.clock.passes import passes_of
from planner.clock.ranks import handover_seconds
from planner.clock.stages import layers_of
from planner.cost_models import HardwareProfile
from planner.trace import Workload
from planner.uniform.beside import Beside, Exchanged, alone, exchanged_in
from planner.uniform.load import Load, weights_bytes
from planner.uniform.once import ByRank, once_by_rank, shares_added, tied_seconds, updates_of

__all__ = ["EachLayer", "each_layer"]

_Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class EachLayer:
    """By layer, with the units since the layer before it, and with those behind the last one: seconds of its `passes`
    (forward, and back as gradients of values and of weights), at least, with what data-parallel ranks exchange in them;
    seconds of what is done for it `once` a step; bytes that its weights hold all the time (`static`), and that it
    `saved` for the backward pass of a micro-batch, at least; seconds in which activations are `handed` to a chunk that
    begins with it.  `beside`: seconds that each rank does once a step beside its layers."""

    passes: _Floats  # (layers, 3)
    once: _Floats  # (layers,)
    static: _Floats  # (layers,)
    saved: _Floats  # (layers,)
    handed: _Floats  # (layers,)
    beside: ByRank


def each_layer(
    workload: Workload,
    load: Load,
    c: Configuration,
    profile: HardwareProfile,
    exchanged: Exchanged | None = None,
    *,
    least_once: float,
    larger: float = 0.0,
) -> EachLayer:
    """Of the workload that `load` is of; `least_once`: seconds that are known of what happens once a step; `larger`:
    how much too much, relative, it may hold.  Where a part of the blocks runs again or waits elsewhere, none takes
    longer for it, and all hold as little as if they did."""
    part = c.recompute == "full" and c.recompute_blocks < 1
    run = alone(c)
    passes = passes_of(workload, run, profile)
    beside = Beside(workload, run, passes, exchanged or exchanged_in((workload,), c, profile))
    updates, added = updates_of(workload, c, profile), shares_added(c, profile)
    blocks = layers_of(workload)
    rows = [range(a + 1, b + 1) for a, b in zip([-1, *blocks], blocks, strict=False)]
    rows[-1] = range(rows[-1].start, len(workload.units))

    def passed(row: range) -> tuple[float, float, float]:
        forward = sum(passes.units[u].forward.seconds for u in row)
        computed = sum(passes.units[u].backward.seconds if part else passes.units[u].back for u in row)
        both = beside.passes(dict.fromkeys(row, 1), forward, computed)
        if row.start == 0:
            both = beside.at_first(both, dict.fromkeys(range(blocks[0]), 1))
        if row.stop == len(workload.units):
            both = beside.at_last(both, dict.fromkeys(range(blocks[-1] + 1, row.stop), 1))
        return both[0], *beside.split_of(row, both[1])

    def once(row: range) -> float:
        exchanges = zip(added, (beside.sums, beside.gathers_once), strict=True)
        return updates(dict.fromkeys(row, 1)) + sum(share * sum(way[u] for u in row) for share, way in exchanges)

    def static(row: range) -> float:
        units = [workload.units[u] for u in row]
        frozen = sum(u.frozen_stored_bytes if c.zero == 3 else u.frozen_bytes for u in units)
        return weights_bytes(sum(u.weights for u in units), sum(u.stored for u in units), c) + frozen

    def saved(u: int) -> float:
        ways = [run.with_(recompute="none"), run] if part else [run]
        held = min(chunk_activation_bytes(workload, way, (u,)) for way in ways)
        return 0.0 if c.offload else c.copies * held * (1 - larger)

    hands_over = c.pp > 1 and c.overlap_pipeline
    entered = [workload.units[row.start] for row in rows]
    own = passes_of(workload, c, profile)
    handed = [handover_seconds(workload, u, c.copies, own) if hands_over else 0.0 for u in entered]
    ends = (0.0, 0.0), (0.0, 0.0)
    of_ranks = replace(load.once, layer=(0.0, 0.0), ends=ends, update=(0.0, 0.0, 0.0))
    tied = tied_seconds(workload, c, profile)
    return EachLayer(
        passes=np.array([passed(row) for row in rows]),
        once=np.array([once(row) for row in rows]),
        static=np.array([static(row) for row in rows]),
        saved=np.array([saved(u) for u in blocks]),
        handed=np.array([0.0, *handed[1:]]),
        beside=once_by_rank(of_ranks, load.inner, load.layers, least_once, tied, c, profile),
    )
