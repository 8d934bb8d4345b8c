"""Softmax attention of a block of queries over a block of keys, forward and backward.

Queries are (b, h, g, s, e), keys (b, h, t, e) and values (b, h, t, f): query head (h, g) reads key head h.  A block
gives its output, normalised by itself, and the logarithm of its normaliser (`lse`); blocks over parts of the keys are
merged by these, and the backward of each follows from the `lse` of all (FlashAttention-2, Dao 2023).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from planner.kernels.attributes import Array

__all__ = [
    "BlockGradients",
    "Frontier",
    "Scoring",
    "attend",
    "attend_back",
    "by_group",
    "merge",
    "merge_heads",
    "merge_lse",
    "probabilities",
    "split_heads",
    "weighted",
]

Indices = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Scoring:
    """Scores are `scale`·Q Kᵀ, then `cap`·tanh(·/`cap`) where there is a cap."""

    scale: float
    cap: float = 0.0

    def raw(self, q: Array, k: Array) -> Array:
        return np.asarray(self.scale * (q @ np.swapaxes(k[:, :, None], -1, -2)), dtype=q.dtype)

    def capped(self, raw: Array) -> Array:
        return np.asarray(self.cap * np.tanh(raw / self.cap), dtype=raw.dtype) if self.cap else raw


@dataclass(frozen=True, slots=True)
class Frontier:
    """Which keys a query may see: query i stands at position i + `offset` among the keys, 0 … `valid` of which exist.

    `offset` and `valid` are numbers, or one per batch element.
    """

    offset: int | Indices = 0
    valid: Indices | None = None
    left: int = -1  # keys before the own position; −1: all
    right: int = -1

    def hides(self, queries: Indices, keys: Indices, dtype: np.dtype[np.generic]) -> Array | None:
        """−∞ where a key is hidden, to be added to scores; None where nothing ever is."""
        if self.valid is None and self.left < 0 and self.right < 0:
            return None
        offset = np.asarray(self.offset, dtype=np.int64).reshape(-1, 1, 1, 1, 1)
        distance = keys - (queries[:, None] + offset)
        seen = np.ones(distance.shape, dtype=np.bool_)
        if self.left >= 0:
            seen &= -distance <= self.left
        if self.right >= 0:
            seen &= distance <= self.right
        if self.valid is not None:
            seen = seen & (keys < np.asarray(self.valid).reshape(-1, 1, 1, 1, 1))
        return np.where(seen, 0.0, -np.inf).astype(dtype)


@dataclass(frozen=True, slots=True)
class BlockGradients:
    """`biased` is that of the scores with their bias."""

    q: Array
    k: Array
    v: Array
    biased: Array


def split_heads(x: Array, heads: int) -> Array:
    """[b, s, (h e)] → [b, h, s, e]; four dimensions pass."""
    return x if x.ndim == 4 else x.reshape(*x.shape[:2], heads, -1).transpose(0, 2, 1, 3)


def merge_heads(x: Array, rank: int) -> Array:
    """The inverse, for a tensor of `rank` dimensions."""
    return x if rank == 4 else x.transpose(0, 2, 1, 3).reshape(x.shape[0], x.shape[2], -1)


def by_group(bias: Array, heads: int, groups: int) -> Array:
    """A bias that broadcasts to [b, (h g), s, t], for scores [b, h, g, s, t]."""
    if bias.ndim < 3:
        return bias
    if bias.shape[-3] == 1:
        return np.expand_dims(bias, -3)
    return bias.reshape(*bias.shape[:-3], heads, groups, *bias.shape[-2:])


def attend(q: Array, k: Array, v: Array, bias: Array | None, scoring: Scoring) -> tuple[Array, Array]:
    """(output, lse).  Rows that see no key give zeros, and −∞."""
    scores = scoring.capped(scoring.raw(q, k))
    if bias is not None:
        scores = scores + bias
    lse = _log_sum_exp(scores, -1)
    return probabilities(scores, lse) @ v[:, :, None], lse


def probabilities(scores: Array, lse: Array) -> Array:
    return np.exp(scores - np.where(np.isneginf(lse), 0, lse)[..., None])


def attend_back(
    q: Array,
    k: Array,
    v: Array,
    bias: Array | None,
    scoring: Scoring,
    lse: Array,
    y: Array,
    dy: Array,
    shown: tuple[int, Array] | None = None,
) -> BlockGradients:
    """Gradients of one block; `lse` and `y` are those of all keys.

    `shown` is the gradient of the scores where the operator hands them out as well: raw (0), capped (1), biased (2)
    or as probabilities (3).
    """
    raw = scoring.raw(q, k)
    capped = scoring.capped(raw)
    p = probabilities(capped if bias is None else capped + bias, lse)
    dp = dy @ np.swapaxes(v[:, :, None], -1, -2)
    along = np.sum(dy * y, axis=-1, keepdims=True)
    if shown is not None and shown[0] == 3:
        dp = dp + shown[1]
        along = along + np.sum(shown[1] * p, axis=-1, keepdims=True)
    biased = p * (dp - along)
    if shown is not None and shown[0] == 2:
        biased = biased + shown[1]
    g = biased + shown[1] if shown is not None and shown[0] == 1 else biased
    if scoring.cap:
        g = g * (1 - np.square(capped / scoring.cap))
    if shown is not None and shown[0] == 0:
        g = g + shown[1]
    g = scoring.scale * g
    dk = (np.swapaxes(g, -1, -2) @ q).sum(axis=2)
    dv = (np.swapaxes(p, -1, -2) @ dy).sum(axis=2)
    return BlockGradients(g @ k[:, :, None], dk, dv, biased)


def merge_lse(parts: Sequence[Array]) -> Array:
    """The lse of all keys from those of its parts."""
    return _log_sum_exp(np.stack(parts), 0)


def weighted(y: Array, lse: Array, whole: Array) -> Array:
    """The share of a part in the output of all keys."""
    return np.asarray(y * probabilities(lse[..., None], whole))


def merge(parts: Sequence[tuple[Array, Array]]) -> tuple[Array, Array]:
    """(output, lse) of all keys from those of its parts."""
    if len(parts) == 1:
        return parts[0]
    whole = merge_lse([lse for _, lse in parts])
    return sum((weighted(y, lse, whole) for y, lse in parts), np.zeros_like(parts[0][0])), whole


def _log_sum_exp(x: Array, axis: int) -> Array:
    highest = x.max(axis=axis, keepdims=True)
    base = np.where(np.isneginf(highest), 0, highest)
    with np.errstate(divide="ignore"):
        return np.asarray(np.squeeze(np.log(np.exp(x - base).sum(axis=axis, keepdims=True)) + base, axis))
