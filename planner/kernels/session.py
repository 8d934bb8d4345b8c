"""One operator as a one-node ONNX model, run by ONNX Runtime or by the ONNX reference evaluator.

Graph optimisations are off: they may fuse or reorder arithmetic.  Inputs are declared by element type and
rank alone, so that one session serves every local shape.  Both runtimes are imported when the first operator runs:
a family that is one module registers its kernels where a search reads its rules, and a search runs none.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache, lru_cache
from typing import Any

import numpy as np
import onnx
from onnx import helper

from planner.errors import PlannerError
from planner.ir import Op
from planner.kernels.shards import Array
from planner.processors import processors

__all__ = [
    "NoKernelError",
    "attribute_key",
    "attribute_proto",
    "failure",
    "handed_back",
    "run_node",
    "runtime_failures",
    "split_type",
    "without",
]

Runner = Callable[[dict[str, Array]], list[Any]]

# What ONNX Runtime accepts; the file's own versions are kept wherever they are known to it.
_NEWEST_OPSET = min(onnx.defs.onnx_opset_version(), 24)
_IR_VERSION = 10
# Worth more than one thread.
_THREADED = frozenset({"Conv", "ConvTranspose", "MatMul", "Gemm", "Einsum", "Attention", "LSTM", "GRU", "FusedMatMul"})
# onnx 1.23's reference sums LRN's window over the batch, and lays grouped transposed convolutions out wrongly.
_WRONG_IN_REFERENCE = frozenset({"ConvTranspose", "LRN"})
# Element types that numpy has none of: ONNX Runtime fails where it returns one, or hands back bare bytes.
_NOT_HANDED_BACK = ("bfloat16", "float8", "float4")


class NoKernelError(PlannerError):
    """No kernel can run this operator on these operands."""


@cache
def runtime_failures() -> tuple[type[Exception], ...]:
    """What ONNX Runtime raises of models that it cannot run."""
    from onnxruntime.capi import onnxruntime_pybind11_state as raised

    return (raised.NotImplemented, raised.InvalidGraph, raised.InvalidArgument, raised.Fail, raised.RuntimeException)


def handed_back(type_: str) -> bool:
    """Whether ONNX Runtime returns a result of its type `tensor(…)` as an array of numpy's."""
    return not any(element in type_ for element in _NOT_HANDED_BACK)


@dataclass(frozen=True, slots=True)
class _Signature:
    """What a session depends on; `op` is an example of the operators that share it."""

    type: str
    opset: int
    attributes: str
    inputs: tuple[tuple[np.dtype[Any], int] | None, ...]
    outputs: tuple[bool, ...]
    op: Op = field(compare=False)


def run_node(op: Op, inputs: Sequence[Array | None]) -> list[Array | None]:
    """Results of the operator by ONNX Runtime, or by the ONNX reference where it has no kernel."""
    signature = _Signature(
        op.type,
        op.opset,
        attribute_key(op),
        tuple(None if x is None else (x.dtype, x.ndim) for x in inputs),
        tuple(bool(name) for name in op.outputs),
        op,
    )
    runner = _runner(signature)
    feed = {f"i{i}": np.asarray(x, order="C") for i, x in enumerate(inputs) if x is not None}
    try:
        found = iter(runner(feed))
    except Exception as error:  # whatever the other side raises, it cannot run these operands
        raise failure(op, inputs, error) from error
    return [np.asarray(next(found)) if name else None for name in op.outputs]


def failure(op: Op, inputs: Sequence[Array | None], error: Exception) -> NoKernelError:
    """The error that names the operator and the operands on which its kernel fails."""
    shapes = ", ".join("-" if x is None else f"{_name_of(x.dtype)}{list(x.shape)}" for x in inputs)
    return NoKernelError(f"operator {op.name} ({op.type}, opset {op.opset}) fails on ({shapes}): {error}")


@lru_cache(maxsize=256)
def _name_of(dtype: np.dtype[Any]) -> str:
    return str(dtype)


@lru_cache(maxsize=1024)
def _runner(signature: _Signature) -> Runner:
    if split_type(signature.type)[1] in _WRONG_IN_REFERENCE:
        narrow = _in_float32(signature)
        if narrow is not None:
            return narrow
    model = _model(signature)
    # ONNX Runtime takes numpy's own element types, not those that ml_dtypes registers (2: bfloat16, float8, int4, …).
    # 0 is numpy's own, too: strings, and numbers of an explicit byte order, as onnx reads initializers.
    supported = not any(s is not None and s[0].isbuiltin == 2 for s in signature.inputs)
    reason: Exception | None = None
    if supported:
        import onnxruntime as ort

        options = ort.SessionOptions()
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
        options.log_severity_level = 4
        options.enable_cpu_mem_arena = False
        options.enable_mem_pattern = False
        # One thread means no pool at all: a thousand sessions must not mean a thousand pools.
        threaded = split_type(signature.type)[1] in _THREADED
        options.intra_op_num_threads = min(4, processors()) if threaded else 1
        options.inter_op_num_threads = 1
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        try:
            session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        except runtime_failures() as error:
            reason = error
        else:
            foreign = [o.type for o in session.get_outputs() if not handed_back(o.type)]
            if not foreign:
                return lambda feed: list(session.run(None, feed))
            reason = NotImplementedError(f"{foreign[0]} is not handed back as an array")
    from onnx.reference import ReferenceEvaluator

    try:
        if split_type(signature.type)[1] in _WRONG_IN_REFERENCE:
            raise NotImplementedError("something else than the operator means")
        evaluator = ReferenceEvaluator(model)
    except (ValueError, TypeError, NotImplementedError, RuntimeError, KeyError) as error:
        # ONNX Runtime's own operators, which the reference does not know, are often there in float32 alone.
        alike = "microsoft" in signature.type and len({s[0] for s in signature.inputs if s is not None}) == 1
        if alike and (narrow := _in_float32(signature)) is not None:
            return narrow
        op = signature.op
        raise NoKernelError(
            f"operator {op.name} ({op.type}, opset {op.opset}) has no kernel: "
            f"ONNX Runtime says {reason}; the ONNX reference says {error}"
        ) from error
    return lambda feed: list(evaluator.run(None, feed))


def _in_float32(signature: _Signature) -> Runner | None:
    """ONNX Runtime in float32 for operands of lower precision, rounded to theirs; None for float32 itself."""
    first = signature.inputs[0]
    if first is None or first[0].name not in ("float16", "bfloat16"):
        return None
    inputs = tuple(None if s is None else (np.dtype(np.float32), s[1]) for s in signature.inputs)
    runner = _runner(dataclasses.replace(signature, inputs=inputs))
    given = first[0]
    return lambda feed: [y.astype(given) for y in runner({k: x.astype(np.float32) for k, x in feed.items()})]


def _model(signature: _Signature) -> onnx.ModelProto:
    domain, kind = split_type(signature.type)
    node = onnx.NodeProto(
        op_type=kind,
        domain=domain,
        input=[f"i{i}" if s is not None else "" for i, s in enumerate(signature.inputs)],
        output=[f"o{i}" if given else "" for i, given in enumerate(signature.outputs)],
        attribute=[attribute_proto(signature.op, name, value) for name, value in signature.op.attributes.items()],
    )
    graph = onnx.GraphProto(name="operator", node=[node])
    for i, s in enumerate(signature.inputs):
        if s is not None:
            element = helper.np_dtype_to_tensor_dtype(s[0])
            graph.input.append(helper.make_tensor_value_info(f"i{i}", element, [None] * s[1]))
    graph.output.extend(onnx.ValueInfoProto(name=f"o{i}") for i, given in enumerate(signature.outputs) if given)
    opsets = [helper.make_opsetid(domain, signature.opset or (1 if domain else _NEWEST_OPSET))]
    if domain:
        opsets.append(helper.make_opsetid("", _NEWEST_OPSET))
    return helper.make_model(graph, opset_imports=opsets, ir_version=_IR_VERSION)


def without(op: Op, attribute: str) -> Op:
    """The operator without an attribute that is ours."""
    return dataclasses.replace(op, attributes={k: v for k, v in op.attributes.items() if k != attribute})


def split_type(type_: str) -> tuple[str, str]:
    """(domain, operator) of an `Op.type`; the domain of ONNX's own operators is empty."""
    domain, _, kind = type_.rpartition("::")
    return domain, kind


def attribute_proto(op: Op, name: str, value: Any) -> onnx.AttributeProto:
    """The attribute as protobuf; the operator's schema settles the type where Python's is ambiguous."""
    kind = _attribute_type(op, name)
    if isinstance(value, np.ndarray):
        return helper.make_attribute(name, onnx.numpy_helper.from_array(value))
    if kind == onnx.AttributeProto.GRAPH and isinstance(value, bytes):
        return helper.make_attribute(name, onnx.GraphProto.FromString(value))
    if kind == onnx.AttributeProto.FLOAT:
        value = float(value)
    elif kind == onnx.AttributeProto.FLOATS:
        value = [float(v) for v in value]
    if isinstance(value, tuple | list) and not value:
        return onnx.AttributeProto(name=name, type=kind or onnx.AttributeProto.INTS)
    return helper.make_attribute(name, value)


def _attribute_type(op: Op, name: str) -> int | None:
    domain, kind = split_type(op.type)
    if not onnx.defs.has(kind, domain):
        return None
    try:
        schema = onnx.defs.get_schema(kind, op.opset or onnx.defs.onnx_opset_version(), domain)
    except onnx.defs.SchemaError:
        return None
    found = schema.attributes.get(name)
    return None if found is None else int(found.type.value)


def attribute_key(op: Op) -> str:
    parts = []
    for name, value in sorted(op.attributes.items()):
        if isinstance(value, np.ndarray):
            digest = hashlib.sha256(np.ascontiguousarray(value).tobytes()).hexdigest()
            parts.append(f"{name}={value.dtype}{value.shape}{digest}")
        else:
            parts.append(f"{name}={value!r}")
    return ";".join(parts)
