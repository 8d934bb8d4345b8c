"""Operators that draw random numbers: of the whole tensor, or of the shard at an offset in it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from onnx import helper

from planner.ir import Op
from planner.kernels.attributes import Array
from planner.kernels.draws import Index, dropout_mask, global_index, normal, uniform
from planner.kernels.local import in_place_of_runtime

__all__ = ["DRAWING", "Part", "drawn", "dropout_ratio"]

Operands = Sequence["Array | None"]


@dataclass(frozen=True, slots=True)
class Part:
    """The part of the first result that is drawn: its shape, where it begins, and the shape of the whole."""

    shape: tuple[int, ...]
    offset: tuple[int, ...]
    whole: tuple[int, ...]

    @classmethod
    def all(cls, shape: Sequence[int]) -> Part:
        return cls(tuple(shape), (0,) * len(shape), tuple(shape))

    @property
    def index(self) -> Index:
        return global_index(self.shape, self.offset, self.whole)


def _type(op: Op, default: np.dtype[Any]) -> np.dtype[Any]:
    stated = op.attributes.get("dtype")
    return default if stated is None else helper.tensor_dtype_to_np_dtype(int(stated))


def _random(op: Op, inputs: Operands, part: Part) -> list[Array | None]:
    """RandomNormal(Like), RandomUniform(Like)."""
    like = inputs[0].dtype if inputs and inputs[0] is not None else np.dtype(np.float32)
    if "Normal" in op.type:
        drawn_ = normal(op, part.index) * op.attributes.get("scale", 1.0) + op.attributes.get("mean", 0.0)
    else:
        low, high = op.attributes.get("low", 0.0), op.attributes.get("high", 1.0)
        drawn_ = uniform(op, part.index) * (high - low) + low
    return [drawn_.astype(_type(op, like))]


def _bernoulli(op: Op, inputs: Operands, part: Part) -> list[Array | None]:
    p = np.asarray(inputs[0])
    return [(uniform(op, part.index) < p.astype(np.float64)).astype(_type(op, p.dtype))]


def _multinomial(op: Op, inputs: Operands, part: Part) -> list[Array | None]:
    """Inverse of the cumulative distribution; operand 0 holds unnormalised log-probabilities per row."""
    logits = np.asarray(inputs[0]).astype(np.float64)
    bounds = np.cumsum(np.exp(logits - logits.max(axis=1, keepdims=True)), axis=1)
    at = uniform(op, part.index) * bounds[:, -1:]
    found = (at[:, :, None] >= bounds[:, None, :]).sum(axis=2)
    return [np.minimum(found, logits.shape[1] - 1).astype(_type(op, np.dtype(np.int32)))]


def dropout_ratio(op: Op, inputs: Operands, first: int = 1) -> float:
    """The probability with which elements are dropped, 0 where none are; ratio and mode are operands from `first`."""
    if op.opset < 12 and "::" not in op.type:
        drops = op.opset < 7 and not op.attributes.get("is_test", 0)
        return float(op.attributes.get("ratio", 0.5)) if drops else 0.0
    ratio, training = (*inputs[first:], None, None)[:2]
    if training is None or not np.any(training):
        return 0.0
    return 0.5 if ratio is None else float(np.reshape(ratio, ()))


def _dropout(op: Op, inputs: Operands, part: Part) -> list[Array | None]:
    x, ratio = np.asarray(inputs[0]), dropout_ratio(op, inputs)
    mask = dropout_mask(op, ratio, part.index)
    return [_scaled(x, mask, ratio), mask.astype(x.dtype) if op.opset < 12 else mask]


def _bias_dropout(op: Op, inputs: Operands, part: Part) -> list[Array | None]:
    """Dropout of X + bias, plus a residual."""
    x, residual, ratio = np.asarray(inputs[0]) + np.asarray(inputs[1]), inputs[2], dropout_ratio(op, inputs, 3)
    mask = dropout_mask(op, ratio, part.index)
    y = _scaled(x, mask, ratio)
    return [y if residual is None else y + residual, mask]


def _scaled(x: Array, mask: Array, ratio: float) -> Array:
    return np.where(mask, x / x.dtype.type(1 - ratio or 1), np.zeros((), dtype=x.dtype)).astype(x.dtype)


_DRAWS: Mapping[str, Callable[[Op, Operands, Part], list[Array | None]]] = {
    "Bernoulli": _bernoulli,
    "Dropout": _dropout,
    "Multinomial": _multinomial,
    "RandomNormal": _random,
    "RandomNormalLike": _random,
    "RandomUniform": _random,
    "RandomUniformLike": _random,
    "com.microsoft::BiasDropout": _bias_dropout,
}


def drawn(op: Op, inputs: Operands, part: Part) -> list[Array | None]:
    """Results of the operator on the operands' shards that belong to `part`."""
    return _DRAWS[op.type](op, inputs, part)


def _whole(op: Op, inputs: Operands) -> list[Array | None] | None:
    if op.type == "Dropout" and dropout_ratio(op, inputs) == 0:
        return None  # the identity, in every runtime
    if op.type in ("RandomNormal", "RandomUniform"):
        shape = tuple(op.attributes["shape"])
    elif op.type == "Multinomial":
        shape = (np.asarray(inputs[0]).shape[0], int(op.attributes.get("sample_size", 1)))
    else:
        shape = np.asarray(inputs[0]).shape
    return drawn(op, inputs, Part.all(shape))


DRAWING = frozenset(_DRAWS)
in_place_of_runtime(dict.fromkeys(_DRAWS, _whole))
