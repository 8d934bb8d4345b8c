"""The unsharded model, which every proof compares with: values by two ways, gradients by a reverse sweep.

`run_whole` is ONNX Runtime on the whole model, with its own kernels and nothing of ours; `run_ops` runs the same
graph operator by operator and keeps every tensor.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Collection, Container, Mapping

import numpy as np
import onnxruntime as ort

from planner.errors import VerificationError
from planner.frontends.file.export import to_model
from planner.ir import Graph, Op
from planner.kernels import NoKernelError, run_local
from planner.kernels.gradients import vjp
from planner.kernels.session import runtime_failures
from planner.kernels.shards import Array
from planner.verify.data import numpy_dtype
from planner.work.activity import gradient_sources

__all__ = ["active_tensors", "differentiable_operands", "gradients", "incoming_gradient", "run_ops", "run_whole"]

# Operators whose results do not vary with their operands, or are no numbers: no gradient passes them.
_CUTS = frozenset(
    {
        "And", "ArgMax", "ArgMin", "BitShift", "BitwiseAnd", "BitwiseNot", "BitwiseOr", "BitwiseXor", "Ceil",
        "Constant", "ConstantOfShape", "Equal", "EyeLike", "Floor", "Greater", "GreaterOrEqual", "IsInf", "IsNaN",
        "Less", "LessOrEqual", "NonZero", "Not", "OneHot", "Or", "RandomNormal", "RandomNormalLike", "RandomUniform",
        "RandomUniformLike", "Range", "Round", "Shape", "Sign", "Size", "Xor",
    }
)  # fmt: skip


def run_whole(graph: Graph, values: Mapping[str, Array]) -> dict[str, Array]:
    """Graph outputs by ONNX Runtime on the whole model; `values` feed the tensors that have no value in the graph.

    NoKernelError where ONNX Runtime cannot run the model (gradient operators of exported training graphs).
    """
    model = to_model(graph)
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    try:
        session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    except runtime_failures() as error:
        raise NoKernelError(f"ONNX Runtime cannot run {graph.name or 'the model'} as a whole: {error}") from error
    names = [i.name for i in session.get_inputs()]
    missing = [n for n in names if n not in values]
    if missing:
        raise VerificationError(f"the model reads {missing}, for which no values are given; see random_tensors")
    feed = {n: np.asarray(values[n], order="C") for n in names}
    outputs = [o.name for o in session.get_outputs()]
    return dict(zip(outputs, session.run(outputs, feed), strict=True))


def run_ops(graph: Graph, values: Mapping[str, Array], wanted: Container[str] | None = None) -> dict[str, Array]:
    """Every tensor of the graph, operator by operator; the dictionary holds the given values, too.  Where some alone
    are `wanted`, the others are let go behind their last readers."""
    found: dict[str, Array] = {t.name: np.asarray(t.value) for t in graph.tensors.values() if t.value is not None}
    found |= values
    last = {t: op.name for op in graph.ops for t in op.inputs}
    for op in graph.ops:
        shapes = [graph.tensors[t].shape if t else None for t in op.outputs]
        results = run_local(op, [found[t] if t else None for t in op.inputs], output_shapes=shapes)
        found.update((t, r) for t, r in zip(op.outputs, results, strict=True) if t and r is not None)
        if wanted is not None:
            for t in op.inputs:
                if t in graph.producers and last[t] == op.name and t not in wanted:
                    found.pop(t, None)
    return found


def differentiable_operands(op: Op) -> frozenset[int]:
    """All operands of an operator through which a gradient may pass, none where it cuts the path."""
    return frozenset() if op.type in _CUTS else frozenset(range(len(op.inputs)))


def active_tensors(
    graph: Graph, differentiable: Callable[[Op], Collection[int]] = differentiable_operands
) -> frozenset[str]:
    """Tensors that receive a gradient: float, reached from a parameter, and leading to `graph.loss`.

    `differentiable` says which operands of an operator receive one (`Rule.differentiable`).
    """
    if graph.loss is None:
        raise VerificationError(f"graph {graph.name or '(unnamed)'} has no loss: there are no gradients to compute")
    reached = {t.name for t in graph.parameters if t.is_float}
    for op in graph.ops:
        operands = differentiable(op)
        if any(t in reached for i, t in enumerate(op.inputs) if i in operands):
            reached.update(t for t in op.outputs if t and graph.tensors[t].is_float)
    leading = {graph.loss}
    for op in reversed(graph.ops):
        if any(t in leading for t in op.outputs):
            operands = differentiable(op)
            leading.update(t for i, t in enumerate(op.inputs) if t and i in operands and graph.tensors[t].is_float)
    return frozenset(reached & leading)


def incoming_gradient(graph: Graph, tensor: str) -> Array:
    """Gradient that enters at `tensor`: one at the loss; at an output of a graph that ends before it, fixed
    random numbers, which no symmetry of the operators before it can cancel."""
    t = graph.tensors[tensor]
    if tensor == graph.loss:
        return np.ones(t.shape or (), dtype=numpy_dtype(t.dtype))
    rng = np.random.default_rng(zlib.crc32(tensor.encode()))
    return rng.standard_normal(t.shape or ()).astype(numpy_dtype(t.dtype))


def gradients(
    graph: Graph,
    values: Mapping[str, Array],
    activations: Mapping[str, Array],
    wrt: Collection[str] | None = None,
    *,
    active: frozenset[str] | None = None,
) -> dict[str, Array]:
    """Gradients of the loss (or from every float output, see `incoming_gradient`): reverse sweep over the
    operators, added up over the consumers of a tensor.

    `activations` are every tensor's values (`run_ops`); `active` the tensors that receive gradients (default
    `active_tensors`).  Only those in `wrt` are kept and returned, all of them by default; an active tensor that
    the loss does not depend on at these values has zeros.
    """
    active = active_tensors(graph) if active is None else active
    known: dict[str, Array] = {**values, **activations}
    sources = [t for t in gradient_sources(graph) if t in active]
    unknown = [t for t in sources if t not in known]
    if unknown:
        raise VerificationError(f"{', '.join(unknown)} has no value; run the graph forward first")
    found: dict[str, Array] = {t: incoming_gradient(graph, t) for t in sources}
    for op in reversed(graph.ops):
        results = [found.get(t) if t else None for t in op.outputs]
        wanted = [t in active for t in op.inputs]
        if any(wanted) and any(g is not None for g in results):
            operands = [known[t] if t else None for t in op.inputs]
            outputs = [known.get(t) if t else None for t in op.outputs]
            for t, g in zip(op.inputs, vjp(op, operands, outputs, results, wanted), strict=True):
                if g is not None:
                    found[t] = g if t not in found else np.add(found[t], g)
        if wrt is not None:
            for t in op.outputs:
                if t not in wrt:
                    found.pop(t, None)
    differentiated = active if wrt is None else active.intersection(wrt)
    return {t: found[t] if t in found else np.zeros_like(known[t]) for t in sorted(differentiated)}
