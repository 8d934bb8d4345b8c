"""In which order the kinds of parallelism of a configuration are axes of a mesh."""

from __future__ import annotations

from planner.clock import Configuration

__all__ = ["rank_axes"]


def rank_axes(c: Configuration, shards: int) -> list[tuple[str, int]]:
    """Names and sizes of those of more than one rank, outermost first: "copies", "data", "expert", "context", "tensor".

    `shards`: into so many ZeRO cuts what all data-parallel ranks hold, beside those that divide experts or positions;
    the other data-parallel ranks are copies.
    """
    inner = [("context", c.cp), ("tensor", c.tp)]
    if c.exchanges_heads:  # of one tensor-parallel rank
        inner.reverse()
    axes = [("copies", c.dp // c.ep // shards), ("data", shards), ("expert", c.ep), *inner]
    return [(name, size) for name, size in axes if size > 1]
