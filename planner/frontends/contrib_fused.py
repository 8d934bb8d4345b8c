"""Shapes of ONNX Runtime's fused and quantised operators: attention, norms, embeddings, products."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import onnx
from onnx import helper

from planner.frontends.draft import split_type
from planner.ir import Op, Tensor

__all__ = ["FUSED"]

Shape = tuple[int, ...]
Inferred = tuple[str | None, Shape | None]
Operands = Sequence[Tensor | None]

_Function = Callable[[Op, Operands], list[Inferred]]

_UNKNOWN: Inferred = (None, None)


def _given(operands: Operands, k: int) -> Tensor | None:
    """Operand k where it is present and its shape known."""
    t = operands[k] if k < len(operands) else None
    return t if t is not None and t.shape is not None else None


def _shape(operands: Operands, k: int) -> Shape | None:
    t = _given(operands, k)
    return None if t is None else t.shape


def _dtype(operands: Operands, k: int, default: str) -> str:
    t = operands[k] if k < len(operands) else None
    return default if t is None else t.dtype


def _first(operands: Operands) -> tuple[str, Shape] | None:
    t = _given(operands, 0)
    return None if t is None or t.shape is None else (t.dtype, t.shape)


def _skip_norm(op: Op, operands: Operands) -> list[Inferred]:
    """Y, mean and inverse deviation per row, and the sum X + skip."""
    x = _first(operands)
    if x is None:
        return [_UNKNOWN]
    rows = ("float32", (*x[1][:-1], 1))
    return [x, rows, rows, x]


def _norm(op: Op, operands: Operands) -> list[Inferred]:
    x = _first(operands)
    if x is None:
        return [_UNKNOWN]
    axis = int(op.attributes.get("axis", -1)) % len(x[1])
    return [x, ("float32", (*x[1][:axis], *(1,) * (len(x[1]) - axis)))]


def _batch_norm(op: Op, operands: Operands) -> list[Inferred]:
    x = _first(operands)
    channels = ("float32", _shape(operands, 3))
    return [x or _UNKNOWN, channels, channels, channels, channels]


def _loss(op: Op, operands: Operands) -> list[Inferred]:
    """The loss, and log-probabilities shaped like the scores."""
    x = _first(operands)
    if x is None:
        return [_UNKNOWN]
    none = str(op.attributes.get("reduction", "mean")) == "none"
    return [(x[0], _shape(operands, 1) if none else ()), x]


def _bias_dropout(op: Op, operands: Operands) -> list[Inferred]:
    x = _first(operands)
    return [_UNKNOWN] if x is None else [x, ("bool", x[1])]


def _dequantize(op: Op, operands: Operands) -> list[Inferred]:
    return [(_dtype(operands, 1, "float32"), _shape(operands, 0))]


def _quantize(op: Op, operands: Operands) -> list[Inferred]:
    return [(_dtype(operands, 2, "uint8"), _shape(operands, 0))]


def _broadcast(second: int) -> _Function:
    def infer(op: Op, operands: Operands) -> list[Inferred]:
        a, b = _shape(operands, 0), _shape(operands, second)
        try:
            shape = None if a is None or b is None else np.broadcast_shapes(a, b)
        except ValueError:
            shape = None
        return [(_dtype(operands, 0, "uint8"), shape)]

    return infer


def _product(second: int, dtype: Callable[[Operands], str]) -> _Function:
    """A matrix product of operands 0 and `second`, transposed as trans{A,B} say."""

    def infer(op: Op, operands: Operands) -> list[Inferred]:
        a, b = _shape(operands, 0), _shape(operands, second)
        if a is None or b is None or len(a) < 2 or len(b) < 2:
            return [(dtype(operands), None)]
        rows = a[-1] if op.attributes.get("transA", 0) else a[-2]
        columns = b[-2] if op.attributes.get("transB", 0) else b[-1]
        try:
            batch = np.broadcast_shapes(a[:-2], b[:-2])
        except ValueError:
            return [(dtype(operands), None)]
        return [(dtype(operands), (*batch, rows, columns))]

    return infer


def _quantised_gemm(operands: Operands) -> str:
    """Scaled back to integers where the result has a zero point, else to floats."""
    return _dtype(operands, 8, "float32")


def _weight_bits(op: Op, operands: Operands) -> list[Inferred]:
    """MatMulNBits: the columns are an attribute."""
    x = _first(operands)
    return [_UNKNOWN] if x is None else [(x[0], (*x[1][:-1], int(op.attributes.get("N", 0))))]


def _attention(op: Op, operands: Operands) -> list[Inferred]:
    """X (b, s, d) with a weight (d, q + k + v); results (b, s, v) and what is handed on."""
    x, w = _first(operands), _shape(operands, 1)
    if x is None or w is None or len(x[1]) != 3:
        return [_UNKNOWN]
    sizes = op.attributes.get("qkv_hidden_sizes")
    values = int(sizes[2]) if sizes else w[-1] // 3
    quantised = split_type(op.type)[1] == "QAttention"
    dtype = _dtype(operands, 3, "float32") if quantised else x[0]
    heads = int(op.attributes.get("num_heads", 1))
    past = _shape(operands, 8 if quantised else 4)
    total = x[1][1] + (past[3] if past and len(past) == 5 else 0)
    return [(dtype, (*x[1][:2], values)), (dtype, (2, x[1][0], heads, total, values // heads))]


def _multi_head(op: Op, operands: Operands) -> list[Inferred]:
    """Q (b, s, d), or packed (b, s, h, 3, e); keys and values apart, as heads, or packed (b, t, h, 2, e)."""
    q, k, v = _first(operands), _shape(operands, 1), _shape(operands, 2)
    if q is None:
        return [_UNKNOWN]
    heads = int(op.attributes.get("num_heads", 1))
    if len(q[1]) == 5:
        b, s, h, _, e = q[1]
        return [(q[0], (b, s, h * e))]
    if len(q[1]) != 3 or k is None:
        return [_UNKNOWN]
    b, s, hidden = q[1]
    if len(k) == 5 or v is None:
        return [(q[0], (b, s, hidden))]
    values = v[2] if len(v) == 3 else v[1] * v[3]
    past = _shape(operands, 6)
    tokens = (v[1] if len(v) == 3 else v[2]) + (past[2] if past and len(past) == 4 else 0)
    if past and (op.attributes.get("past_present_share_buffer", 0) or len(operands) > 8):
        tokens = past[2]  # the cache is written in place
    present = (b, heads, tokens, hidden // heads), (b, heads, tokens, values // heads)
    return [(q[0], (b, s, values)), (q[0], present[0]), (q[0], present[1])]


def _group_query(op: Op, operands: Operands) -> list[Inferred]:
    """Q (b, s, h·e), or Q, K and V packed in its last dimension; what is handed on is as long as the cache."""
    q = _first(operands)
    if q is None or len(q[1]) != 3:
        return [_UNKNOWN]
    heads, key_heads = int(op.attributes.get("num_heads", 1)), int(op.attributes.get("kv_num_heads", 1))
    b, s, hidden = q[1]
    packed = _given(operands, 1) is None
    depth = hidden // (heads + 2 * key_heads if packed else heads)
    past = _shape(operands, 3)
    total = operands[6].value if len(operands) > 6 and operands[6] is not None else None
    length = None
    if past is None:
        length = s
    elif total is not None:
        length = max(past[2], int(np.max(total)))
    present = (q[0], None if length is None else (b, key_heads, length, depth))
    return [(q[0], (b, s, heads * depth)), present, present]


def _embedding(op: Op, operands: Operands) -> list[Inferred]:
    """Ids (b, s) and a table (v, h): the normalised sum, a mask index, the sum."""
    ids, table = _shape(operands, 0), _given(operands, 2)
    if ids is None or table is None or table.shape is None:
        return [_UNKNOWN]
    embedded = (table.dtype, (*ids, table.shape[-1]))
    return [embedded, ("int32", ids[:1]), embedded]


def _as_onnx(name: str, *, operands: Sequence[int] = (0, 1, 2), last: bool = False) -> _Function:
    """As ONNX's own operator `name` of the operands given; `last`: channels are last where the attribute says so."""

    def infer(op: Op, given: Operands) -> list[Inferred]:
        schema = onnx.defs.get_schema(name, 21)
        chosen = [given[k] if k < len(given) else None for k in operands]
        if chosen[0] is None or any(t is not None and t.shape is None for t in chosen):
            return [_UNKNOWN]
        channels_last = last or bool(op.attributes.get("channels_last", 0))
        attributes = {k: v for k, v in op.attributes.items() if k in schema.attributes}
        types = {}
        for i, t in enumerate(chosen):
            if t is not None and t.shape is not None:
                shape = _channels_first(t.shape) if channels_last and i == 0 else t.shape
                types[f"i{i}"] = helper.make_tensor_type_proto(onnx.TensorProto.FLOAT, shape)
        names = [f"i{i}" if f"i{i}" in types else "" for i in range(len(chosen))]
        while names and not names[-1]:
            names.pop()
        node = helper.make_node(name, names, ["o0"], **attributes)
        try:
            found = onnx.shape_inference.infer_node_outputs(schema, node, types)["o0"].tensor_type.shape
        except (onnx.shape_inference.InferenceError, KeyError, RuntimeError):
            return [_UNKNOWN]
        if not all(d.HasField("dim_value") for d in found.dim):
            return [_UNKNOWN]
        result = tuple(d.dim_value for d in found.dim)
        return [(chosen[0].dtype, (result[0], *result[2:], result[1]) if channels_last else result)]

    return infer


def _channels_first(shape: Shape) -> Shape:
    return (shape[0], shape[-1], *shape[1:-1])


def _concat(op: Op, operands: Operands) -> list[Inferred]:
    """QLinearConcat: scale and zero point of the result, then tensor, scale and zero point of each part."""
    parts = [_shape(operands, k) for k in range(2, len(operands), 3)]
    if not parts or any(p is None for p in parts):
        return [_UNKNOWN]
    known = [p for p in parts if p is not None]
    axis = int(op.attributes.get("axis", 0)) % len(known[0])
    shape = list(known[0])
    shape[axis] = sum(p[axis] for p in known)
    return [(_dtype(operands, 2, "uint8"), tuple(shape))]


def _like(k: int) -> _Function:
    return lambda op, operands: [(_dtype(operands, k, "float32"), _shape(operands, k))]


# Type of the domain com.microsoft → element types and shapes of its results.
FUSED: dict[str, _Function] = {
    "Attention": _attention,
    "BatchNormInternal": _batch_norm,
    "BiasDropout": _bias_dropout,
    "BiasFastGeluGrad_dX": _like(0),
    "BiasGeluGrad_dX": _like(0),
    "BiasSoftmax": _like(0),
    "DecoderMaskedMultiHeadAttention": _multi_head,
    "DequantizeLinear": _dequantize,
    "DynamicQuantizeMatMul": _product(1, lambda operands: _dtype(operands, 0, "float32")),
    "EmbedLayerNormalization": _embedding,
    "FusedConv": _as_onnx("Conv"),
    "FusedGemm": _product(1, lambda operands: _dtype(operands, 0, "float32")),
    "GatedAdd": _like(0),
    "GemmFastGelu": _product(1, lambda operands: _dtype(operands, 0, "float32")),
    "GroupNorm": _like(0),
    "GroupQueryAttention": _group_query,
    "Inverse": _like(0),
    "LeakyReluGrad": _like(0),
    "MatMulInteger16": _product(1, lambda operands: "int32"),
    "MatMulNBits": _weight_bits,
    "MultiHeadAttention": _multi_head,
    "NhwcMaxPool": _as_onnx("MaxPool", operands=(0,), last=True),
    "QAttention": _attention,
    "QGemm": _product(3, _quantised_gemm),
    "QLinearAdd": _broadcast(3),
    "QLinearAveragePool": _as_onnx("AveragePool", operands=(0,)),
    "QLinearConcat": _concat,
    "QLinearGlobalAveragePool": _as_onnx("GlobalAveragePool", operands=(0,)),
    "QLinearLeakyRelu": _like(0),
    "QLinearMul": _broadcast(3),
    "QLinearSigmoid": _like(0),
    "QLinearSoftmax": _like(0),
    "QuantizeLinear": _quantize,
    "RotaryEmbedding": _like(0),
    "ScaledSiLU": _like(0),
    "SimplifiedLayerNormalization": _norm,
    "SkipLayerNormalization": _skip_norm,
    "SkipSimplifiedLayerNormalization": _skip_norm,
    "SoftmaxCrossEntropyLossInternal": _loss,
    "SoftmaxCrossEntropyLossInternalGrad": _like(1),
    "TransposeMatMul": _product(1, lambda operands: _dtype(operands, 0, "float32")),
}  # fmt: skip
