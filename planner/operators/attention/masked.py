"""Softmax attention of a block of queries over a block of keys, forward and backward.

Queries are (b, h, g, s, e), keys (b, h, t, e) and values (b, h, t, f): query head (h, g) reads key head h.  A block
gives its output, normalised by itself, and the logarithm of its normaliser (`lse`); blocks over parts of the keys are
merged by these, and the backward of each follows from the `lse` of all (FlashAttention-2, Dao 2023).

What the forward needs is written over the Python array API standard: kernels that are written once run it on numpy
arrays, tensors and arrays that write a graph.  Positions are known beforehand, and always numpy's.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from planner.kernels.attributes import Array
from planner.kernels.namespaces import array_namespace, device

__all__ = [
    "BlockGradients",
    "Frontier",
    "Scoring",
    "attend",
    "attend_back",
    "by_group",
    "constant",
    "hiding",
    "is_boolean",
    "merge",
    "merge_heads",
    "merge_lse",
    "probabilities",
    "split_heads",
    "weighted",
]

Indices = NDArray[np.int64]

_ZERO, _ONE, _LEAST = np.array(0.0), np.array(1.0), np.array(-math.inf)


@dataclass(frozen=True, slots=True)
class Scoring:
    """Scores are `scale`·Q Kᵀ, then `cap`·tanh(·/`cap`) where there is a cap."""

    scale: float
    cap: float = 0.0

    def raw(self, q: Any, k: Any) -> Any:
        xp = array_namespace(q)
        return self.scale * (q @ xp.matrix_transpose(xp.expand_dims(k, axis=2)))

    def capped(self, raw: Any) -> Any:
        return self.cap * array_namespace(raw).tanh(raw / self.cap) if self.cap else raw


@dataclass(frozen=True, slots=True)
class Frontier:
    """Which keys a query may see: query i stands at position i + `offset` among the keys, 0 … `valid` of which exist.

    `offset` and `valid` are numbers, or one per batch element.
    """

    offset: Any = 0
    valid: Any = None
    left: int = -1  # keys before the own position; −1: all
    right: int = -1

    def shows(self, queries: Indices, keys: Indices, like: Any) -> Any:
        """Whether a query may see a key, [s, t] or, where batch elements differ, [b, 1, s, t], beside another array;
        None where all may see all."""
        if self.valid is None and self.left < 0 and self.right < 0:
            return None
        xp = array_namespace(like)
        if isinstance(self.offset, int):
            distance = keys - (queries[:, None] + self.offset)
        else:
            distance = constant(keys - queries[:, None], like) - xp.reshape(self.offset, (*self.offset.shape, 1, 1, 1))
        seen: Any = np.ones((len(queries), len(keys)), dtype=np.bool_)
        if self.left >= 0:
            seen = distance >= -self.left
        if self.right >= 0:
            before = distance < self.right + 1
            seen = before & seen if self.left >= 0 else before
        seen = constant(seen, like) if isinstance(seen, np.ndarray) else seen
        if self.valid is not None:
            seen = seen & (constant(keys, like) < xp.reshape(self.valid, (*self.valid.shape, 1, 1, 1)))
        return seen

    def hides(self, queries: Indices, keys: Indices, like: Any) -> Any:
        """−∞ where a key is hidden, to be added to scores, in the element type of another array; None where nothing
        ever is."""
        seen = self.shows(queries, keys, like)
        if seen is None:
            return None
        hidden = hiding(seen, like)
        return array_namespace(like).expand_dims(hidden, axis=1) if hidden.ndim == 4 else hidden


@dataclass(frozen=True, slots=True)
class BlockGradients:
    """`biased` is that of the scores with their bias."""

    q: Array
    k: Array
    v: Array
    biased: Array


def constant(value: Array, like: Any, dtype: Any = None) -> Any:
    """A numpy array, of integers, truth values or of a type of its own, where another array lies."""
    xp = array_namespace(like)
    if dtype is None:
        dtype = xp.bool if value.dtype == np.bool_ else xp.int64
    return xp.asarray(value, dtype=dtype, device=device(like))


def is_boolean(x: Any) -> bool:
    """Whether a mask holds truth values.  By name, since `isdtype` refuses the types that numpy lacks."""
    return _is_boolean(x.dtype)


@lru_cache(maxsize=256)
def _is_boolean(dtype: Any) -> bool:
    return str(dtype).rpartition(".")[2] == "bool"


def hiding(seen: Any, like: Any) -> Any:
    """0 where a key is seen, −∞ where it is hidden, in the element type of another array."""
    zero, least = (constant(n, like, like.dtype) for n in (_ZERO, _LEAST))
    return array_namespace(like).where(seen, zero, least)


def split_heads(x: Any, heads: int) -> Any:
    """[b, s, (h e)] → [b, h, s, e]; four dimensions pass."""
    if x.ndim == 4:
        return x
    xp = array_namespace(x)
    return xp.permute_dims(xp.reshape(x, (*x.shape[:2], heads, x.shape[2] // heads)), (0, 2, 1, 3))


def merge_heads(x: Any, rank: int) -> Any:
    """The inverse, for a tensor of `rank` dimensions."""
    if rank == 4:
        return x
    xp = array_namespace(x)
    return xp.reshape(xp.permute_dims(x, (0, 2, 1, 3)), (x.shape[0], x.shape[2], x.shape[1] * x.shape[3]))


def by_group(bias: Any, heads: int, groups: int) -> Any:
    """A bias that broadcasts to [b, (h g), s, t], for scores [b, h, g, s, t]."""
    if bias.ndim < 3:
        return bias
    apart = (1, 1) if bias.shape[-3] == 1 else (heads, groups)
    return array_namespace(bias).reshape(bias, (*bias.shape[:-3], *apart, *bias.shape[-2:]))


def attend(q: Any, k: Any, v: Any, bias: Any, scoring: Scoring) -> tuple[Any, Any]:
    """(output, lse).  Rows that see no key give zeros, and −∞."""
    scores = scoring.capped(scoring.raw(q, k))
    if bias is not None:
        scores = scores + bias
    lse = _log_sum_exp(scores, -1)
    return probabilities(scores, lse) @ array_namespace(v).expand_dims(v, axis=2), lse


def probabilities(scores: Any, lse: Any) -> Any:
    xp = array_namespace(scores)
    return xp.exp(scores - xp.expand_dims(_finite(lse), axis=-1))


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


def merge_lse(parts: Sequence[Any]) -> Any:
    """The lse of all keys from those of its parts."""
    return _log_sum_exp(array_namespace(parts[0]).stack(parts, axis=0), 0)


def weighted(y: Any, lse: Any, whole: Any) -> Any:
    """The share of a part in the output of all keys."""
    return y * probabilities(array_namespace(lse).expand_dims(lse, axis=-1), whole)


def merge(parts: Sequence[tuple[Any, Any]]) -> tuple[Any, Any]:
    """(output, lse) of all keys from those of its parts."""
    if len(parts) == 1:
        return parts[0]
    whole = merge_lse([lse for _, lse in parts])
    first, *rest = (weighted(y, lse, whole) for y, lse in parts)
    return sum(rest, first), whole


def _finite(x: Any) -> Any:
    """0 in place of −∞."""
    return array_namespace(x).where(x == -math.inf, constant(_ZERO, x, x.dtype), x)


def _log_sum_exp(x: Any, axis: int) -> Any:
    xp = array_namespace(x)
    base = _finite(xp.max(x, axis=axis, keepdims=True))
    sums = xp.sum(xp.exp(x - base), axis=axis, keepdims=True)
    # The logarithm of nothing is taken of one instead: its gradient would be endless, and times zero no number.
    zero, one, least = (constant(n, x, x.dtype) for n in (_ZERO, _ONE, _LEAST))
    none = sums == zero
    return xp.squeeze(xp.where(none, least, xp.log(xp.where(none, one, sums)) + base), axis=axis)
