"""Ranges of a flattened tensor as boxes of it."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from planner.transfer.pieces import Boxes

__all__ = ["flat_boxes"]


def flat_boxes(shape: Sequence[int], start: int, stop: int) -> Boxes:
    """Elements `start` to `stop` of a row-major tensor: boxes that lie behind each other in that order, at most
    2 d - 1 of d dimensions.

    From the beginning the boxes grow, each to the end of a row, of a matrix of rows and so on, and then they shrink.
    """
    d = len(shape)
    if not d:
        return Boxes(np.zeros((int(start < stop), 0), np.int64), np.zeros((int(start < stop), 0), np.int64))
    steps = [math.prod(shape[k + 1 :]) for k in range(d)]
    lows: list[list[int]] = []
    highs: list[list[int]] = []
    at = start
    while at < stop:
        # The outermost dimension of which a whole slice begins here and ends within the range.
        k = next(k for k in range(d) if at % steps[k] == 0 and at + steps[k] <= stop)
        index = [at // steps[j] % shape[j] for j in range(k + 1)]
        count = min((stop - at) // steps[k], shape[k] - index[k])
        lows.append(index + [0] * (d - k - 1))
        highs.append([i + 1 for i in index[:k]] + [index[k] + count] + list(shape[k + 1 :]))
        at += count * steps[k]
    return Boxes(np.array(lows, np.int64).reshape(len(lows), d), np.array(highs, np.int64).reshape(len(lows), d))
