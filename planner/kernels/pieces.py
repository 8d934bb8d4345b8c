"""Formulas of many steps, evaluated a piece at a time, so that what lies between the steps stays in a core's cache."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from planner.kernels.attributes import Array

__all__ = ["by_elements", "by_rows", "pieces"]

_ELEMENTS = 1 << 14  # 128 KiB of doubles


def pieces(count: int, width: int) -> list[slice]:
    """Rows 0 … count of `width` elements each, cut up."""
    step = max(1, _ELEMENTS // max(1, width))
    return [slice(i, min(i + step, count)) for i in range(0, count, step)]


def by_elements(function: Callable[..., Array], *operands: Array) -> Array:
    """A function of single elements of operands of one shape; it may overwrite nothing of theirs."""
    first = operands[0]
    if first.size <= _ELEMENTS:
        return function(*operands)
    flat = [x.reshape(-1) for x in operands]
    out = np.empty(first.size, dtype=first.dtype)
    for piece in pieces(first.size, 1):
        out[piece] = function(*(x[piece] for x in flat))
    return out.reshape(first.shape)


def by_rows(function: Callable[..., Array], *operands: Array) -> Array:
    """A function of single entries along the first dimension of all operands, whose result is like the first."""
    first = operands[0]
    if first.size <= _ELEMENTS or not len(first):
        return function(*operands)
    out = np.empty(first.shape, dtype=first.dtype)
    for piece in pieces(len(first), first.size // len(first)):
        out[piece] = function(*(x[piece] for x in operands))
    return out
