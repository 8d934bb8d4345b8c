"""Shapes of operators of which ONNX gives none: ONNX Runtime's contributed and gradient types, our own, and few others.

Most of them give results shaped like one of their operands; those are one line in a table, `output ←
operand`.  The others have a function.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress

import numpy as np

from planner.frontends.contrib_fused import FUSED
from planner.frontends.draft import split_type
from planner.ir import Op, Tensor

__all__ = ["infer"]

Inferred = tuple[str | None, tuple[int, ...] | None]
Operands = Sequence[Tensor | None]

# Type → for each output the operand it is shaped like.
_LIKE: dict[str, tuple[int, ...]] = {
    "BatchNormalizationGrad": (1, 2, 2),
    "BiasGelu": (0,),
    "ConvGrad": (1, 2),
    "DropoutGrad": (0,),
    "FastGelu": (0,),
    "FastGeluGrad": (0,),
    "Gelu": (0,),
    "GeluGrad": (0,),
    "InPlaceAccumulator": (0,),
    "LayerNormalizationGrad": (1, 2, 2),
    "LogSoftmaxGrad": (0,),
    "LogSoftmaxGrad_13": (0,),
    "MoE": (0,),
    "QMoE": (0,),
    "QuickGelu": (0,),
    "QuickGeluGrad": (0,),
    "ReluGrad": (0,),
    "Scale": (0,),
    "SigmoidGrad": (0,),
    "SimplifiedLayerNormalizationGrad": (1, 2),
    "SoftmaxCrossEntropyLossGrad": (1,),
    "SoftmaxGrad": (0,),
    "SoftmaxGrad_13": (0,),
    "TanhGrad": (0,),
    "ZeroGradient": (0,),
}  # fmt: skip


def infer(op: Op, operands: Operands) -> list[Inferred] | None:
    """(element type, shape) of each output, or None when the type is not one of these."""
    domain, name = split_type(op.type)
    if domain not in ("com.microsoft", "ai.onnx.ml", "planner", ""):
        return None
    if not domain:
        return _standard(name, operands, len(op.outputs))
    function = (FUSED.get(name) if domain == "com.microsoft" else None) or _FUNCTIONS.get(name)
    if function is not None:
        found = function(op, operands)
    elif domain == "com.microsoft" and name in _LIKE:
        found = [_shape(operands, k) for k in _LIKE[name]]
    else:
        return None
    found = found[: len(op.outputs)]
    return [*found, *[(None, None)] * (len(op.outputs) - len(found))]


def _standard(name: str, operands: Operands, outputs: int) -> list[Inferred] | None:
    """Of standard operators that ONNX defines by a function alone, and of a mask that it leaves without a shape."""
    dtype, shape = _shape(operands, 0)
    if name == "Dropout":
        return [(dtype, shape), ("bool", shape)][:outputs]
    if name in ("GroupNormalization", "MeanVarianceNormalization"):
        return [(dtype, shape)]
    if name in ("GreaterOrEqual", "LessOrEqual"):
        other = _shape(operands, 1)[1]
        if shape is None or other is None:
            return [("bool", None)]
        with suppress(ValueError):  # what does not fit is for ONNX to say
            return [("bool", np.broadcast_shapes(shape, other))]
    return None


def _shape(operands: Operands, k: int) -> Inferred:
    t = operands[k] if k < len(operands) else None
    return (None, None) if t is None else (t.dtype, t.shape)


def _conv_grad(op: Op, operands: Operands) -> list[Inferred]:
    dy, weight = operands[0], operands[2]
    bias = None if weight is None or not weight.shape else (weight.shape[0],)
    return [_shape(operands, 1), _shape(operands, 2), (None if dy is None else dy.dtype, bias)]


def _fused_matmul(op: Op, operands: Operands) -> list[Inferred]:
    a, b = operands[0], operands[1]
    if a is None or b is None or not a.shape or not b.shape or len(a.shape) < 2 or len(b.shape) < 2:
        return [(None, None)]
    sa, sb = _transposed(a.shape, op, "A"), _transposed(b.shape, op, "B")
    try:
        batch = np.broadcast_shapes(sa[:-2], sb[:-2])
    except ValueError:
        return [(a.dtype, None)]
    return [(a.dtype, (*batch, sa[-2], sb[-1]))]


def _transposed(shape: tuple[int, ...], op: Op, side: str) -> tuple[int, ...]:
    """transBatch moves the first dimension behind the other batch dimensions and the row; trans swaps the last two."""
    if op.attributes.get(f"transBatch{side}", 0):
        shape = (*shape[1:-1], shape[0], shape[-1])
    if op.attributes.get(f"trans{side}", 0):
        shape = (*shape[:-2], shape[-1], shape[-2])
    return shape


def _expert_matmul(op: Op, operands: Operands) -> list[Inferred]:
    x, w, indices = operands[:3]
    if x is None or w is None or indices is None or x.shape is None or w.shape is None or indices.shape is None:
        return [(None if x is None else x.dtype, None)]
    tokens = np.broadcast_shapes(x.shape[:-1], indices.shape[: len(x.shape) - 1])
    return [(x.dtype, (*tokens, w.shape[1 if op.attributes["transB"] else 2]))]


def _from_shape_operand(op: Op, operands: Operands) -> list[Inferred]:
    """GatherGrad(shape, indices, dY), SliceGrad(dY, shape, …): the result has the shape that an operand states."""
    name = split_type(op.type)[1]
    shape, dy = (operands[0], operands[2]) if name == "GatherGrad" else (operands[1], operands[0])
    value = None if shape is None else shape.value
    return [(None if dy is None else dy.dtype, None if value is None else tuple(int(v) for v in value))]


def _matmul_integer_to_float(op: Op, operands: Operands) -> list[Inferred]:
    _, shape = _fused_matmul(op, operands)[0]
    scale = operands[2] if len(operands) > 2 else None
    return [("float32" if scale is None else scale.dtype, shape)]


def _dynamic_quantize_lstm(op: Op, operands: Operands) -> list[Inferred]:
    x = operands[0]
    if x is None or x.shape is None or len(x.shape) != 3:
        return [(None, None)] * 3
    directions = 2 if op.attributes.get("direction") == "bidirectional" else 1
    hidden = int(op.attributes.get("hidden_size", 0))
    state = (directions, x.shape[1], hidden)
    return [(x.dtype, (x.shape[0], directions, x.shape[1], hidden)), (x.dtype, state), (x.dtype, state)]


def _linear_classifier(op: Op, operands: Operands) -> list[Inferred]:
    x = operands[0]
    if x is None or not x.shape:
        return [(None, None)] * 2
    labels = op.attributes.get("classlabels_ints")
    strings = op.attributes.get("classlabels_strings")
    scores = max(len(op.attributes.get("intercepts", ())), len(labels or strings or ()))
    return [("int64" if labels else "string", (x.shape[0],)), ("float32", (x.shape[0], scores))]


def _normalizer(op: Op, operands: Operands) -> list[Inferred]:
    return [("float32", _shape(operands, 0)[1])]


_FUNCTIONS: dict[str, Callable[[Op, Operands], list[Inferred]]] = {
    "ConvGrad": _conv_grad,
    "DynamicQuantizeLSTM": _dynamic_quantize_lstm,
    "ExpertMatMul": _expert_matmul,
    "FusedMatMul": _fused_matmul,
    "GatherGrad": _from_shape_operand,
    "LinearClassifier": _linear_classifier,
    "MatMulIntegerToFloat": _matmul_integer_to_float,
    "Normalizer": _normalizer,
    "SliceGrad": _from_shape_operand,
}
