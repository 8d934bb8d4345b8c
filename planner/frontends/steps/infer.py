"""Shapes of everything, in one forward pass.

All input dimensions are bound, so every `Shape` has a value and folding runs in step with inference: one
pass in topological order reaches the fixpoint that separate inference and folding would iterate towards.
An operator's shape comes from, in this order: our own functions for types ONNX does not define
(`planner.frontends.facts.shapes`), onnx's C++ function for the type, the shape the file records.  What is left
depends on data and stays None.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import onnx
from onnx import helper, shape_inference

from planner.errors import InputError
from planner.frontends.facts.shapes import infer
from planner.frontends.file.dtypes import ELEM_TYPE, array_dtype_name, content_of, dtype_name
from planner.frontends.file.nodes import node_of, tensor_of
from planner.frontends.file.parse import MAX_RANK
from planner.frontends.steps.draft import Draft, captured_by, split_type
from planner.frontends.steps.fold import fold, fold_shape
from planner.frontends.steps.quantized import NARROW
from planner.frontends.steps.sequences import Sequences
from planner.ir import Op, Role, Tensor
from planner.ir.tensor import ITEM_BYTES

__all__ = ["Inferred", "Shape", "infer_op", "propagate"]

Shape = tuple[int, ...] | None
Inferred = tuple[str | None, Shape]
Array = np.ndarray[Any, Any]
# How onnx says that an operator does not fit its operands.
_REFUSALS = (onnx.checker.ValidationError, shape_inference.InferenceError, RuntimeError, ValueError)

# They read or make a value of many tensors, for which shape inference wants other types than ours.
_OF_SEQUENCES = frozenset({
    "ConcatFromSequence", "SequenceAt", "SequenceConstruct", "SequenceEmpty", "SequenceErase", "SequenceInsert",
    "SequenceLength", "SequenceMap", "SplitToSequence",
})  # fmt: skip
MAX_ELEMENTS = 2**62  # beyond, sizes in bytes leave 64 bits


def propagate(draft: Draft, sizes: Mapping[str, int]) -> None:
    """Fill `draft.tensors` and drop the operators whose results are known.

    `sizes` are the bound symbolic dimensions, which also resolve the names in the file's own shapes.
    InputError where an operator's operands do not fit each other.
    """
    tensors = draft.tensors
    values: dict[str, Array] = {}  # what inference may look at
    weights: set[str] = set()  # values that may be trained and so must not be folded
    for s in draft.sources.values():
        shape = None if s.dims is None else tuple(int(d) for d in s.dims)
        tensors[s.name] = Tensor(s.name, shape, s.dtype, Role.INPUT if s.fed else Role.CONSTANT, s.value)
        _check_size(tensors[s.name])
        if s.value is not None:
            values[s.name] = s.value
            if (s.value.dtype.kind not in "iub" or s.dtype in NARROW) and s.value.size > 1:
                weights.add(s.name)
    ops = []
    captured = {t for op in draft.ops for t in captured_by(op)}
    sequences = Sequences(tensors, captured.union(draft.outputs))
    for op in _each(draft.ops, sequences):
        values.update((t, v) for t in op.inputs if t and t not in values and (v := tensors[t].value) is not None)
        known = _known(op, tensors)
        if known is not None:
            results: dict[str, Array] | None = {op.outputs[0]: known}
            inferred: Sequence[Inferred] = [("int64", known.shape)]
        else:
            inferred = _with_hints(op, infer_op(op, tensors, values), draft, sizes)
            _check_reshape(op, tensors, inferred)
            results = None
            if _foldable(op) and weights.isdisjoint(op.inputs):
                bytes_out = sum(_bytes(i) for i, o in zip(inferred, op.outputs, strict=True) if o)
                results = fold(op, values, bytes_out)
        for o, (dtype, shape) in zip(op.outputs, inferred, strict=True):
            if not o:
                continue
            value = None if results is None else results[o]
            if value is not None:
                tensors[o] = Tensor(o, value.shape, _dtype_of(value, dtype), Role.CONSTANT, value)
                values[o] = value
            else:
                tensors[o] = Tensor(o, shape, dtype or "float32", Role.ACTIVATION)
                _check_size(tensors[o])
        if results is None:
            ops.append(op)
    draft.ops = ops


def _each(ops: Sequence[Op], sequences: Sequences) -> Iterator[Op]:
    for op in ops:
        yield from sequences.rewrite(op)
    yield from sequences.rest()


def infer_op(op: Op, tensors: Mapping[str, Tensor], values: Mapping[str, Array] | None = None) -> list[Inferred]:
    """(element type, shape) of every output; None for what is not known.

    `values` default to those the tensors carry.  InputError when the operands contradict each other.
    """
    domain, name = split_type(op.type)
    operands = [tensors.get(t) for t in op.inputs]
    own = infer(op, operands)
    if own is not None:
        return own
    unknown: list[Inferred] = [(None, None)] * len(op.outputs)
    if name in _OF_SEQUENCES:
        return unknown
    if not onnx.defs.has(name, op.opset, domain):
        return unknown
    if any(isinstance(v, bytes) for v in op.attributes.values()):
        return _infer_control_flow(op, tensors) or unknown
    types: list[tuple[str, Shape] | None] = []
    data: list[tuple[str, tuple[int, ...], bytes] | None] = []
    for t, tensor in zip(op.inputs, operands, strict=True):
        if tensor is None:
            types.append(None)
            data.append(None)
            continue
        value = tensor.value if values is None else values.get(t)
        small = value is not None and value.dtype.kind in "iubf" and value.size <= 1024
        types.append((tensor.dtype, tensor.shape))
        data.append(content_of(value) if value is not None and small else None)
    template = (op.type, op.opset, tuple(bool(t) for t in op.inputs), tuple(bool(t) for t in op.outputs))
    attributes = tuple((k, _Attribute(v)) for k, v in sorted(op.attributes.items()))
    outcome = _infer(template, attributes, tuple(types), tuple(data))
    if not isinstance(outcome, str):
        negative = [s for _, s in outcome if s is not None and min(s, default=0) < 0]
        if negative:  # a window larger than what it slides over; onnx aborts the process on what reads it
            outcome = f"a result would have the shape {list(negative[0])}"
    if isinstance(outcome, str):
        raise _misfit(op, outcome, operands)
    _check_reshape(op, tensors, outcome)
    return list(outcome)


def _misfit(op: Op, why: str, operands: Sequence[Tensor | None]) -> InputError:
    shapes = ", ".join(f"{t.name} {list(t.shape) if t.shape is not None else '?'}" for t in operands if t)
    return InputError(
        f"{op.type} '{op.name}' does not fit its operands: {why} (operands {shapes}). Check the sizes given with "
        "--bind and --batch, or re-export the model."
    )


def _check_reshape(op: Op, tensors: Mapping[str, Tensor], inferred: Sequence[Inferred]) -> None:
    """InputError where a reshape makes more or fewer elements than there are: onnx does not count them."""
    if op.type != "Reshape" or not op.inputs or op.inputs[0] not in tensors:
        return
    source, target = tensors[op.inputs[0]].shape, inferred[0][1]
    if source is not None and target is not None and math.prod(source) != math.prod(target):
        why = f"the shape {list(source)} has {math.prod(source)} elements, and {list(target)} has {math.prod(target)}"
        raise _misfit(op, why, [tensors.get(t) for t in op.inputs])


class _Attribute:
    """Hashable view of an attribute value."""

    __slots__ = ("key", "value")

    def __init__(self, value: Any) -> None:
        self.value = value
        plain = content_of(value) if isinstance(value, np.ndarray) else value
        self.key = (type(value), repr(plain))

    def __hash__(self) -> int:
        return hash(self.key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Attribute) and self.key == other.key


@lru_cache(maxsize=8192)
def _infer(
    template: tuple[str, int, tuple[bool, ...], tuple[bool, ...]],
    attributes: tuple[tuple[str, _Attribute], ...],
    types: tuple[tuple[str, Shape] | None, ...],
    data: tuple[tuple[str, tuple[int, ...], bytes] | None, ...],
) -> tuple[Inferred, ...] | str:
    """Inference by onnx, once for each distinct operator: layers repeat, so most calls are answered from the cache."""
    op_type, opset, has_in, has_out = template
    domain, name = split_type(op_type)
    ins = tuple(f"i{k}" if given else "" for k, given in enumerate(has_in))
    outs = tuple(f"o{k}" if given else "" for k, given in enumerate(has_out))
    op = Op(next(o for o in outs if o), op_type, ins, outs, {k: a.value for k, a in attributes}, opset)
    input_types, input_data = {}, {}
    for k, t in enumerate(ins):
        entry, known = types[k], data[k]
        if entry is not None:
            input_types[t] = helper.make_tensor_type_proto(ELEM_TYPE[entry[0]], entry[1])
        elif t:
            input_types[t] = onnx.TypeProto()
        if known is not None:
            array = np.frombuffer(known[2], dtype=np.dtype(known[0])).reshape(known[1])
            input_data[t] = tensor_of(array, t)
    imports = [helper.make_opsetid(domain, opset)]
    if domain:
        imports.append(helper.make_opsetid("", onnx.defs.onnx_opset_version()))
    schema = onnx.defs.get_schema(name, opset, domain)
    try:
        found = shape_inference.infer_node_outputs(
            schema, node_of(op), input_types, input_data, opset_imports=imports, ir_version=onnx.IR_VERSION
        )
    except _REFUSALS as error:
        return " ".join(str(error).split())[:300]
    return tuple(_read(found.get(o)) if o else (None, None) for o in outs)


def _infer_control_flow(op: Op, tensors: Mapping[str, Tensor]) -> list[Inferred] | None:
    """Operators with sub-graphs: what onnx finds through them, or None; it is lenient because bodies may be, too."""
    known = [tensors[t] for t in op.inputs if t]
    types = {t.name: helper.make_tensor_type_proto(ELEM_TYPE[t.dtype], t.shape) for t in known}
    schema = onnx.defs.get_schema(split_type(op.type)[1], op.opset, split_type(op.type)[0])
    imports = [helper.make_opsetid("", op.opset)]
    try:
        found = shape_inference.infer_node_outputs(schema, node_of(op), types, opset_imports=imports)
    except (*_REFUSALS, KeyError):
        return None
    return [_read(found.get(o)) if o else (None, None) for o in op.outputs]


def _read(found: onnx.TypeProto | None) -> Inferred:
    if found is None or not found.HasField("tensor_type"):
        return None, None
    dtype = dtype_name(found.tensor_type.elem_type)
    if not found.tensor_type.HasField("shape"):
        return dtype, None
    dims = found.tensor_type.shape.dim
    if not all(d.HasField("dim_value") for d in dims):
        return dtype, None
    return dtype, tuple(d.dim_value for d in dims)


def _known(op: Op, tensors: Mapping[str, Tensor]) -> Array | None:
    if op.type in ("Shape", "Size") and op.inputs and op.inputs[0]:
        shape = tensors[op.inputs[0]].shape
        return None if shape is None else fold_shape(op, shape)
    return None


def _foldable(op: Op) -> bool:
    """Fills of float elements stay: graphs without weights make the weights that way; so do quantised weights."""
    if split_type(op.type)[1] in ("DequantizeLinear", "QuantizeLinear"):
        return False
    return op.type != "ConstantOfShape" or _fill_dtype(op) not in ("float32", "float64", "float16")


def _fill_dtype(op: Op) -> str:
    value = op.attributes.get("value")
    return array_dtype_name(value.dtype) if isinstance(value, np.ndarray) else "float32"


def _with_hints(op: Op, inferred: Sequence[Inferred], draft: Draft, sizes: Mapping[str, int]) -> list[Inferred]:
    out: list[Inferred] = []
    for o, (dtype, shape) in zip(op.outputs, inferred, strict=True):
        hinted_dtype, dims = draft.hints.get(o, (None, None))
        if shape is None and dims is not None:
            resolved = tuple(sizes.get(d) if isinstance(d, str) else d for d in dims)
            if None not in resolved:
                shape = tuple(d for d in resolved if d is not None)
        out.append((dtype or hinted_dtype, shape))
    return out


def _bytes(inferred: Inferred) -> int:
    dtype, shape = inferred
    if shape is None:
        return 0  # data-dependent results of small operands are small
    count = 1
    for s in shape:
        count *= s
    return count * ITEM_BYTES.get(dtype or "float32", 8)


def _dtype_of(value: Array, dtype: str | None) -> str:
    name = array_dtype_name(value.dtype)
    return name if name in ITEM_BYTES else dtype or "float32"


def _check_size(t: Tensor) -> None:
    if t.rank > MAX_RANK:
        raise InputError(f"tensor '{t.name}' has {t.rank} dimensions; at most {MAX_RANK} are accepted.")
    if t.elements > MAX_ELEMENTS:
        raise InputError(f"tensor '{t.name}' of shape {list(t.shape or ())} has more than 2^62 elements.")
