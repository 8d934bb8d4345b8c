"""Operators that hold graphs: If, Loop, Scan and attention with bodies; these are run operator by operator.

The names of outer tensors that bodies read follow the operator's own operands, as the import appends them.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
import onnx
from onnx import helper, numpy_helper

from planner.frontends.steps.draft import DOMAINS, read
from planner.ir import Op
from planner.kernels.attributes import Array
from planner.kernels.session import NoKernelError

__all__ = ["BODIES", "FLEX_ATTENTION", "run_bodies"]

Operands = Sequence["Array | None"]
Results = list["Array | None"]
Run = Callable[[Op, Operands], Results]

BODIES = frozenset({"If", "Loop", "Scan"})
FLEX_ATTENTION = "ai.onnx.preview::FlexAttention"
_MOST_ITERATIONS = 2**63 - 1
_OTHER_DOMAINS = ("com.microsoft", "ai.onnx.ml")


@dataclass(frozen=True, eq=False)
class _Body:
    """A graph within an operator; `constants` are its initializers and constant nodes."""

    ops: tuple[Op, ...]
    constants: Mapping[str, Array]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


@lru_cache(maxsize=256)
def _body(text: bytes, opset: int) -> _Body:
    graph = onnx.GraphProto.FromString(text)
    imports = [helper.make_opsetid("", opset or onnx.defs.onnx_opset_version())]
    imports += [helper.make_opsetid(domain, 1) for domain in _OTHER_DOMAINS]
    nodes = onnx.GraphProto(name=graph.name, node=graph.node)  # what a body reads need not have a type
    draft = read(helper.make_model(nodes, opset_imports=imports), graph.name or "body")
    constants = {t.name: _stored(t, t.name) for t in graph.initializer}
    for node in graph.node:
        if node.op_type == "Constant" and node.domain in DOMAINS:
            constants[node.output[0]] = _constant(node)
    return _Body(tuple(draft.ops), constants, tuple(i.name for i in graph.input), tuple(o.name for o in graph.output))


def _stored(tensor: onnx.TensorProto, name: str) -> Array:
    """Values of an initializer or a constant; drawn by its name where the file that holds them was left out."""
    if tensor.data_location != onnx.TensorProto.EXTERNAL:
        return numpy_helper.to_array(tensor)
    dtype = helper.tensor_dtype_to_np_dtype(tensor.data_type)
    if dtype.kind != "f":
        return np.ones(tuple(tensor.dims), dtype=dtype)
    fan_in = math.prod(tensor.dims[1:]) if len(tensor.dims) > 1 else 100
    drawn = np.random.default_rng(zlib.crc32(name.encode())).standard_normal(tuple(tensor.dims))
    return np.asarray(drawn * max(fan_in, 1) ** -0.5).astype(dtype)


def _constant(node: onnx.NodeProto) -> Array:
    (a,) = node.attribute
    value = helper.get_attribute_value(a)
    if isinstance(value, onnx.TensorProto):
        return _stored(value, node.output[0])
    floats = a.name in ("value_float", "value_floats")
    return np.array(value, dtype=np.float32 if floats else None)


def run_bodies(op: Op, inputs: Operands, run: Run) -> Results:
    """Results of an If, a Loop, a Scan or a FlexAttention; `run` executes each operator within.

    NoKernelError names the operator within that has no kernel, or the tensor that is not among the operands.
    """
    if op.type == "If":
        return _if(op, inputs, run)
    if op.type == FLEX_ATTENTION:
        return _flex_attention(op, inputs, run)
    return _loop(op, inputs, run) if op.type == "Loop" else _scan(op, inputs, run)


def _flex_attention(op: Op, inputs: Operands, run: Run) -> Results:
    """Scores and probabilities [batch, heads, queries, keys] pass through bodies of one operand."""
    q, k, v = (np.asarray(x) for x in inputs[:3])
    k, v = (np.repeat(x, q.shape[1] // x.shape[1], axis=1) for x in (k, v))
    scores: Array = q @ np.swapaxes(k, -1, -2) * (op.attributes.get("scale") or q.shape[-1] ** -0.5)
    scores = _changed(op, "score_mod", scores, run)
    p = np.exp(scores - scores.max(axis=-1, keepdims=True))
    p /= p.sum(axis=-1, keepdims=True)
    return [_changed(op, "prob_mod", p, run) @ v]


def _changed(op: Op, name: str, x: Array, run: Run) -> Array:
    if name not in op.attributes:
        return x
    # The domain of the operator is its own: its version is none of ONNX's.
    body = _body(op.attributes[name], 0)
    return np.asarray(_execute(op, body, {body.inputs[0]: x}, run)[0])


def _execute(op: Op, body: _Body, values: dict[str, Array | None], run: Run) -> Results:
    values |= body.constants

    def held(name: str) -> Array | None:
        if name and name not in values:
            raise NoKernelError(
                f"operator {op.name} ({op.type}) has no kernel here: its body reads '{name}', which is not among its "
                f"operands {list(op.inputs)}; import the model so that captured tensors are"
            )
        return values[name] if name else None

    for inner in body.ops:
        results = run(inner, [held(n) for n in inner.inputs])
        values.update((n, r) for n, r in zip(inner.outputs, results, strict=False) if n)
    return [held(n) for n in body.outputs]


def _captured(op: Op, inputs: Operands, own: int) -> dict[str, Array | None]:
    return dict(zip(op.inputs[own:], inputs[own:], strict=True))


def _graph(op: Op, attribute: str) -> _Body:
    return _body(op.attributes[attribute], op.opset)


def _true(x: Array | None) -> bool:
    return x is None or bool(np.reshape(x, ()))


def _if(op: Op, inputs: Operands, run: Run) -> Results:
    body = _graph(op, "then_branch" if _true(inputs[0]) else "else_branch")
    return _execute(op, body, _captured(op, inputs, 1), run)


def _loop(op: Op, inputs: Operands, run: Run) -> Results:
    """(count, condition, carried…) → carried…, and what each iteration adds, stacked."""
    body = _graph(op, "body")
    carried = len(body.inputs) - 2
    outer = _captured(op, inputs, 2 + carried)
    count = _MOST_ITERATIONS if inputs[0] is None else int(np.reshape(inputs[0], ()))
    going, state = _true(inputs[1]), list(inputs[2 : 2 + carried])
    rows: list[Results] = []
    for i in range(count):
        if not going:
            break
        given = [np.array(i, dtype=np.int64), np.array(going), *state]
        condition, *results = _execute(op, body, {**outer, **dict(zip(body.inputs, given, strict=True))}, run)
        going, state = _true(condition), results[:carried]
        rows.append(results[carried:])
    if not rows and len(body.outputs) > 1 + carried:
        raise NoKernelError(f"operator {op.name} (Loop) has no kernel for no iteration: its rows have no shape")
    return [*state, *(np.stack([np.asarray(r) for r in column]) for column in zip(*rows, strict=True))]


def _batched_scan(op: Op, inputs: Operands, run: Run) -> Results:
    """Opset 8: lengths come first, and every state and sequence has a batch."""
    lengths, rest = inputs[0], [np.asarray(x) for x in inputs[1:]]
    own = len(_graph(op, "body").inputs)
    if lengths is not None and np.any(lengths != rest[own - 1].shape[1]):
        raise NoKernelError(
            f"operator {op.name} (Scan, opset {op.opset}) has no kernel for sequences of unequal lengths"
        )
    attributes = {"num_scan_inputs": op.attributes["num_scan_inputs"]}
    if "directions" in op.attributes:
        attributes["scan_input_directions"] = op.attributes["directions"]
    each = replace(op, inputs=op.inputs[1:], attributes={**attributes, "body": op.attributes["body"]}, opset=9)
    rows = [_scan(each, [*(x[i] for x in rest[:own]), *rest[own:]], run) for i in range(len(rest[0]))]
    return [np.stack([np.asarray(r) for r in column]) for column in zip(*rows, strict=True)]


def _scan(op: Op, inputs: Operands, run: Run) -> Results:
    """(states…, sequences…) → states…, and sequences of results."""
    if 0 < op.opset < 9:
        return _batched_scan(op, inputs, run)
    body, a = _graph(op, "body"), op.attributes
    read_, states = int(a["num_scan_inputs"]), len(body.inputs) - int(a["num_scan_inputs"])
    outer, state = _captured(op, inputs, len(body.inputs)), list(inputs[:states])
    axes = a.get("scan_input_axes") or (0,) * read_
    backward = a.get("scan_input_directions") or (0,) * read_
    lines = [
        np.moveaxis(np.asarray(x), axis, 0)[:: -1 if back else 1]
        for x, axis, back in zip(inputs[states : states + read_], axes, backward, strict=True)
    ]
    rows: list[Results] = []
    for given in zip(*lines, strict=True):
        values = {**outer, **dict(zip(body.inputs, [*state, *given], strict=True))}
        results = _execute(op, body, values, run)
        state = results[:states]
        rows.append(results[states:])
    made = len(body.outputs) - states
    if made and not rows:
        raise NoKernelError(f"operator {op.name} (Scan) has no kernel for empty sequences: its rows have no shape")
    out_axes = a.get("scan_output_axes") or (0,) * made
    out_backward = a.get("scan_output_directions") or (0,) * made
    stacked = [
        np.moveaxis(np.stack([np.asarray(r) for r in column])[:: -1 if back else 1], 0, axis)
        for column, axis, back in zip(zip(*rows, strict=True), out_axes, out_backward, strict=True)
    ]
    return [*state, *stacked]
