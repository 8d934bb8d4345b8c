"""Rounding of pending sums, whose terms are free; and words for who contributed to a gradient."""

from __future__ import annotations

import numpy as np

from planner.kernels.shards import Array, Shards
from planner.lowering import Redistribute
from planner.verify.compare import Rounding

__all__ = ["Contributions", "names", "reader", "summed", "with_terms"]

Contributions = tuple[str, ...]


def summed(shards: Shards | None) -> Rounding | None:
    """Rounding of a redistribution: of the terms of its pending sums."""
    if shards is None:
        return None
    distinct = {id(s): s for s in shards if s.dtype.kind == "f"}
    if not distinct:
        return None

    def rounding() -> Array:
        largest = sum(float(np.max(np.abs(s), initial=0.0, where=np.isfinite(s))) for s in distinct.values())
        return np.asarray(largest * np.finfo(np.float64).eps)

    return rounding


def with_terms(rounding: Rounding, terms: Rounding | None) -> Rounding:
    """Of a result in terms, which are free: they may be large where their sum is nothing, and round on their scale."""
    return rounding if terms is None else lambda: np.maximum(rounding(), terms())


def reader(move: Redistribute) -> str:
    return f" for {move.reader}" if move.reader else ""


def names(contributions: Contributions) -> str:
    listed = ", ".join(contributions[:4]) or "nothing"
    return listed if len(contributions) <= 4 else f"{listed} and {len(contributions) - 4} more"
