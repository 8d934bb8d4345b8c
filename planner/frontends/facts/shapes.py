"""Shapes of operators of which ONNX gives none: ONNX Runtime's contributed and gradient types, our own, and few others.

Most of them give results shaped like one of their operands (`shaped_like`); the others have a function (`infers`).
Families register theirs (`planner.plugins`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import onnx
from onnx import helper

from planner.ir import Op, Tensor
from planner.plugins import load_operators

__all__ = [
    "UNKNOWN",
    "Inference",
    "Inferred",
    "Operands",
    "Shape",
    "as_onnx",
    "broadcast",
    "dtype_of",
    "first_of",
    "given",
    "infer",
    "infers",
    "product",
    "shape_of",
    "shaped_like",
]

Shape = tuple[int, ...]
Inferred = tuple[str | None, Shape | None]
Operands = Sequence["Tensor | None"]
# Element type and shape of each result; None where it is for ONNX to say.
Inference = Callable[[Op, Operands], "list[Inferred] | None"]

UNKNOWN: Inferred = (None, None)

_INFERENCES: dict[str, Inference] = {}


def infers(*types: str) -> Callable[[Inference], Inference]:
    """Register a function for operator types, with their domain where it is not ONNX's own.  ValueError for a type that
    has one already."""

    def register(function: Inference) -> Inference:
        for t in types:
            if t in _INFERENCES:
                raise ValueError(f"the shapes of operator {t} are inferred twice; keep one")
            _INFERENCES[t] = function
        return function

    return register


def shaped_like(operands: Sequence[int], *types: str) -> None:
    """Register types of which result j is shaped like operand `operands[j]`."""
    infers(*types)(lambda op, given: [_like(given, k) for k in operands])


def infer(op: Op, operands: Operands) -> list[Inferred] | None:
    """(element type, shape) of each output, or None where no family knows the type."""
    load_operators("shapes")
    function = _INFERENCES.get(op.type)
    if function is None:
        return None
    found = function(op, operands)
    if found is None:
        return None
    found = found[: len(op.outputs)]
    return [*found, *[UNKNOWN] * (len(op.outputs) - len(found))]


def _like(operands: Operands, k: int) -> Inferred:
    t = operands[k] if k < len(operands) else None
    return UNKNOWN if t is None else (t.dtype, t.shape)


def given(operands: Operands, k: int) -> Tensor | None:
    """Operand k where it is present and its shape known."""
    t = operands[k] if k < len(operands) else None
    return t if t is not None and t.shape is not None else None


def shape_of(operands: Operands, k: int) -> Shape | None:
    t = given(operands, k)
    return None if t is None else t.shape


def dtype_of(operands: Operands, k: int, default: str) -> str:
    t = operands[k] if k < len(operands) else None
    return default if t is None else t.dtype


def first_of(operands: Operands) -> tuple[str, Shape] | None:
    t = given(operands, 0)
    return None if t is None or t.shape is None else (t.dtype, t.shape)


def broadcast(second: int) -> Inference:
    def infer(op: Op, operands: Operands) -> list[Inferred]:
        a, b = shape_of(operands, 0), shape_of(operands, second)
        try:
            shape = None if a is None or b is None else np.broadcast_shapes(a, b)
        except ValueError:
            shape = None
        return [(dtype_of(operands, 0, "uint8"), shape)]

    return infer


def product(second: int, dtype: Callable[[Operands], str]) -> Inference:
    """A matrix product of operands 0 and `second`, transposed as trans{A,B} say."""

    def infer(op: Op, operands: Operands) -> list[Inferred]:
        a, b = shape_of(operands, 0), shape_of(operands, second)
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


def as_onnx(name: str, *, operands: Sequence[int] = (0, 1, 2), last: bool = False) -> Inference:
    """As ONNX's own operator `name` of the operands given; `last`: channels are last where the attribute says so."""

    def infer(op: Op, given: Operands) -> list[Inferred]:
        schema = onnx.defs.get_schema(name, 21)
        chosen = [given[k] if k < len(given) else None for k in operands]
        if chosen[0] is None or any(t is not None and t.shape is None for t in chosen):
            return [UNKNOWN]
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
            return [UNKNOWN]
        if not all(d.HasField("dim_value") for d in found.dim):
            return [UNKNOWN]
        result = tuple(d.dim_value for d in found.dim)
        return [(chosen[0].dtype, (result[0], *result[2:], result[1]) if channels_last else result)]

    return infer


def _channels_first(shape: Shape) -> Shape:
    return (shape[0], shape[-1], *shape[1:-1])
