"""Normalisations and softmax."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from planner.errors import InputError
from planner.torch.capture.operators.elementwise import binary
from planner.torch.capture.operators.reductions import reduced
from planner.torch.capture.registry import aten
from planner.torch.capture.writer import Value, Writer

__all__ = ["vector_norm"]


def _ones(shape: Sequence[int], dtype: torch.dtype, value: float = 1.0) -> Value:
    return Value("", tuple(shape), dtype, torch.full(tuple(shape), value, dtype=dtype))


@aten("layer_norm.default")
def _layer_norm(
    w: Writer, x: Value, shape: Sequence[int], weight: Value | None = None, bias: Value | None = None,
    eps: float = 1e-5, cudnn: bool = True,
) -> Value:  # fmt: skip
    scale = _ones(shape, x.dtype) if weight is None else weight
    return w.op("LayerNormalization", x, scale, bias, shape=x.shape, axis=-len(shape), epsilon=eps)


@aten("rms_norm.default")
def _rms_norm(
    w: Writer, x: Value, shape: Sequence[int], weight: Value | None = None, eps: float | None = None
) -> Value:
    scale = _ones(shape, x.dtype) if weight is None else weight
    eps = torch.finfo(x.dtype).eps if eps is None else eps
    return w.op("RMSNormalization", x, scale, shape=x.shape, axis=-len(shape), epsilon=eps)


@aten("group_norm.default")
def _group_norm(
    w: Writer, x: Value, groups: int, weight: Value | None = None, bias: Value | None = None, eps: float = 1e-5,
    cudnn: bool = True,
) -> Value:  # fmt: skip
    channels = [x.shape[1]]
    scale = _ones(channels, x.dtype) if weight is None else weight
    shift = _ones(channels, x.dtype, 0.0) if bias is None else bias
    return w.op("GroupNormalization", x, scale, shift, shape=x.shape, num_groups=groups, epsilon=eps)


@aten("_native_batch_norm_legit_functional.default", "_native_batch_norm_legit.default")
def _batch_norm(
    w: Writer, x: Value, weight: Value | None, bias: Value | None, mean: Value, variance: Value, training: bool,
    momentum: float, eps: float,
) -> tuple[Value | None, ...]:  # fmt: skip
    """ONNX's running variance is that of the samples as they are, torch's that of what they are drawn from, n / (n - 1)
    times as much: the writer notes from what it was counted."""
    channels = [x.shape[1]]
    scale = _ones(channels, x.dtype) if weight is None else weight
    shift = _ones(channels, x.dtype, 0.0) if bias is None else bias
    operands = [x, scale, shift, mean, variance]
    if not training:
        y = w.op("BatchNormalization", *operands, shape=x.shape, epsilon=eps)
        return y, None, None, mean, variance
    if momentum is None:
        raise InputError(f"{w.path or 'the module'}: a batch norm with momentum=None cannot be planned for; give one")
    statistics = (channels, mean.dtype)
    y, new_mean, new_variance = w.ops(
        "BatchNormalization", operands, [(x.shape, x.dtype), statistics, statistics],
        training_mode=1, momentum=1.0 - momentum, epsilon=eps,
    )  # fmt: skip
    w.counted[new_variance.name] = x.name
    return y, None, None, new_mean, new_variance


@aten("native_batch_norm.default", "_native_batch_norm_legit_no_training.default")
def _batch_norm_still(
    w: Writer, x: Value, weight: Value | None, bias: Value | None, mean: Value, variance: Value, *numbers: float
) -> tuple[Value | None, ...]:
    return _batch_norm(w, x, weight, bias, mean, variance, False, 0.0, numbers[-1])


@aten("softmax.int", "_softmax.default", "log_softmax.int", "_log_softmax.default")
def _softmax(w: Writer, x: Value, dim: int, *dtypes: object, dtype: torch.dtype | None = None) -> Value:
    given = next((d for d in dtypes if isinstance(d, torch.dtype)), dtype)
    type_ = "LogSoftmax" if "log" in w.operator else "Softmax"
    return w.op(type_, w.cast(x, given or x.dtype), shape=x.shape, dtype=given or x.dtype, axis=x.dim(dim))


@aten("linalg_vector_norm.default")
def vector_norm(
    w: Writer, x: Value, order: float = 2, dim: Sequence[int] | None = None, keepdim: bool = False, *,
    dtype: torch.dtype | None = None,
) -> Value:  # fmt: skip
    """The length of vectors along dimensions."""
    x = w.cast(x, dtype or x.dtype)
    if order in (1, 2):
        return reduced(w, f"ReduceL{order:.0f}", x, dim, keepdim)
    size = w.op("Abs", x, shape=x.shape)
    if abs(order) == math.inf:
        return reduced(w, "ReduceMax" if order > 0 else "ReduceMin", size, dim, keepdim)
    if order <= 0:
        raise InputError(f"{w.path or 'the module'}: a norm of order {order} has no translation; expected a larger one")
    return binary(w, "Pow", reduced(w, "ReduceSum", binary(w, "Pow", size, order), dim, keepdim), 1 / order)


@aten("instance_norm.default")
def _instance_norm(
    w: Writer, x: Value, weight: Value | None, bias: Value | None, mean: Value | None, variance: Value | None,
    of_input: bool, momentum: float, eps: float, cudnn: bool = True,
) -> Value:  # fmt: skip
    if mean is not None:
        raise InputError(
            f"{w.path or 'the module'}: an instance norm with track_running_stats=True has no translation; leave it out"
        )
    channels = [x.shape[1]]
    scale = _ones(channels, x.dtype) if weight is None else weight
    shift = _ones(channels, x.dtype, 0.0) if bias is None else bias
    return w.op("InstanceNormalization", x, scale, shift, shape=x.shape, epsilon=eps)


@aten("_native_batch_norm_legit.no_stats")
def _batch_norm_without(
    w: Writer, x: Value, weight: Value | None, bias: Value | None, training: bool, momentum: float, eps: float
) -> tuple[Value | None, ...]:
    """Running statistics that nobody keeps."""
    channels = [x.shape[1]]
    kept = _ones(channels, x.dtype, 0.0), _ones(channels, x.dtype)
    y, *_ = _batch_norm(w, x, weight, bias, *kept, True, momentum, eps)
    return y, None, None


@aten("local_response_norm.default")
def _response(w: Writer, x: Value, size: int, alpha: float = 1e-4, beta: float = 0.75, k: float = 1.0) -> Value:
    return w.op("LRN", x, shape=x.shape, size=size, alpha=alpha, beta=beta, bias=k)
