"""Boxes of a tensor that lie together in memory."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

__all__ = ["blocks"]

Range = tuple[int, int]  # start, stop


def blocks(shape: Sequence[int], elements: int) -> Iterator[list[Range]]:
    """The tensor in boxes of at most so many elements, each one range of a row-major array."""
    yield from _blocks(list(shape), max(1, elements), [])


def _blocks(shape: list[int], elements: int, front: list[Range]) -> Iterator[list[Range]]:
    if not shape or math.prod(shape) <= elements:
        yield [*front, *((0, n) for n in shape)]
        return
    row = math.prod(shape[1:])
    if row <= elements:
        step = elements // row
        for low in range(0, shape[0], step):
            yield [*front, (low, min(low + step, shape[0])), *((0, n) for n in shape[1:])]
        return
    for i in range(shape[0]):
        yield from _blocks(shape[1:], elements, [*front, (i, i + 1)])
