"""Random numbers that do not depend on how a tensor is split.

A generator without state: the number at an index is a function of the operator, its seed and the index in the whole
tensor.  Ranks that hold replicas draw alike, and shards are shards of the whole.  Real runtimes reach the same by
offsets into counter-based streams (DTensor's tracker) or by one stream per shard (Megatron's); their numbers are
others, since the contract of these operators is a distribution.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from planner.ir import Op

__all__ = ["Index", "dropout_mask", "global_index", "normal", "uniform"]

Index = NDArray[np.uint64]
Array = NDArray[Any]


def global_index(local: Sequence[int], offset: Sequence[int], whole: Sequence[int]) -> Index:
    """Row-major places in a tensor of shape `whole` of the elements of a shard that begins at `offset`."""
    index = np.zeros(tuple(local), dtype=np.uint64)
    stride = 1
    for d in reversed(range(len(local))):
        places = (np.arange(local[d], dtype=np.uint64) + np.uint64(offset[d])) * np.uint64(stride)
        index += places.reshape((-1,) + (1,) * (len(local) - d - 1))
        stride *= whole[d]
    return index


def uniform(op: Op, index: Index, stream: int = 0) -> NDArray[np.float64]:
    """In [0, 1), by SplitMix64 (Steele, Lea, Flood 2014) of the index."""
    seed = op.attributes.get("seed", "")
    digest = hashlib.blake2b(f"{op.name}|{seed}|{stream}".encode(), digest_size=8).digest()
    with np.errstate(over="ignore"):
        z = (index + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15) + np.frombuffer(digest, dtype=np.uint64)[0]
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        z ^= z >> np.uint64(31)
    return (z >> np.uint64(11)).astype(np.float64) * 2.0**-53


def normal(op: Op, index: Index) -> NDArray[np.float64]:
    """Standard normal, by the transform of Box and Muller."""
    radius = np.sqrt(-2 * np.log(1 - uniform(op, index)))
    return np.asarray(radius * np.cos(2 * math.pi * uniform(op, index, 1)))


def dropout_mask(op: Op, ratio: float, index: Index) -> NDArray[np.bool_]:
    """Which elements a dropout leaves."""
    return np.asarray(uniform(op, index) >= ratio)
