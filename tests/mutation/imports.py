"""Faults of the import: a graph that is not what the file says, and how ONNX Runtime shows it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np

from planner.errors import PlannerError
from planner.ir import Graph, Op
from planner.verify.data import random_tensors
from planner.verify.imported import check_import
from planner.verify.reference import run_ops
from tests.mutation.collectives import shuffled
from tests.mutation.graphs import model_of

__all__ = ["IMPORTS", "differs", "noticed"]

Wrong = Callable[[Graph, np.random.Generator], Iterator[tuple[str, Graph]]]
IMPORTS: dict[str, Wrong] = {}


def _kind(function: Wrong) -> Wrong:
    IMPORTS[function.__name__.replace("_", " ")] = function
    return function


def _with(graph: Graph, op: Op) -> Graph:
    return replace(graph, ops=tuple(op if o.name == op.name else o for o in graph.ops))


@_kind
def operands_swapped(graph: Graph, rng: np.random.Generator) -> Iterator[tuple[str, Graph]]:
    for op in shuffled(graph.ops, rng):
        shapes = [graph.tensors[t].shape if t else None for t in op.inputs[:2]]
        if len(op.inputs) > 1 and shapes[0] == shapes[1] and op.inputs[0] != op.inputs[1]:
            swapped = (op.inputs[1], op.inputs[0], *op.inputs[2:])
            yield f"{op.type} {op.name}", _with(graph, replace(op, inputs=swapped))


@_kind
def operand_of_another_operator(graph: Graph, rng: np.random.Generator) -> Iterator[tuple[str, Graph]]:
    """Something of the same shape that is there already."""
    for op in shuffled(graph.ops, rng):
        earlier = [t for o in graph.ops[: graph.ops.index(op)] for t in o.outputs if t]
        for k, name in enumerate(op.inputs):
            t = graph.tensors[name] if name else None
            for other in earlier:
                o = graph.tensors[other]
                if t is not None and other != name and (o.shape, o.dtype) == (t.shape, t.dtype):
                    inputs = (*op.inputs[:k], other, *op.inputs[k + 1 :])
                    yield f"{op.type} {op.name}: {other} for {name}", _with(graph, replace(op, inputs=inputs))
                    break


@_kind
def attribute_changed(graph: Graph, rng: np.random.Generator) -> Iterator[tuple[str, Graph]]:
    for op in shuffled(graph.ops, rng):
        for key, value in op.attributes.items():
            if isinstance(value, float):
                attributes = {**op.attributes, key: value * 1.5 + 0.1}
            elif isinstance(value, int) and not isinstance(value, bool):
                attributes = {**op.attributes, key: value + 1}
            else:
                continue
            yield f"{op.type} {op.name}.{key}", _with(graph, replace(op, attributes=attributes))


@_kind
def weights_tied(graph: Graph, rng: np.random.Generator) -> Iterator[tuple[str, Graph]]:
    """One parameter read in place of another."""
    parameters = list(graph.parameters)
    for a in shuffled(parameters, rng):
        for b in parameters:
            if a.name != b.name and (a.shape, a.dtype) == (b.shape, b.dtype):
                ops = tuple(replace(o, inputs=tuple(b.name if t == a.name else t for t in o.inputs)) for o in graph.ops)
                yield f"{b.name} for {a.name}", replace(graph, ops=ops)
                break


@_kind
def operator_of_another_type(graph: Graph, rng: np.random.Generator) -> Iterator[tuple[str, Graph]]:
    others = {
        "Add": "Sub", "Mul": "Add", "Relu": "Sigmoid", "Gelu": "Relu", "Tanh": "Sigmoid", "Sigmoid": "Tanh",
        "MaxPool": "AveragePool", "ReduceMean": "ReduceSum", "ReduceMax": "ReduceMin", "Softmax": "LogSoftmax",
        "Sub": "Add", "Div": "Mul",
    }  # fmt: skip
    for op in shuffled(graph.ops, rng):
        if op.type in others:
            yield f"{op.type} {op.name}", _with(graph, replace(op, type=others[op.type]))


@_kind
def constant_changed(graph: Graph, rng: np.random.Generator) -> Iterator[tuple[str, Graph]]:
    for t in shuffled((t for t in graph.tensors.values() if t.value is not None and t.is_float), rng):
        assert t.value is not None
        changed = replace(t, value=np.asarray(t.value) * np.float32(1.25) + np.float32(0.05))
        yield t.name, replace(graph, tensors={**graph.tensors, t.name: changed})


def noticed(name: str, graph: Graph, seed: int) -> str:
    """How the mutant shows, or that it cannot be run; empty where it passes for right."""
    try:
        verdict = check_import(model_of(name), graph, seed=seed)
    except (PlannerError, ArithmeticError, AssertionError, LookupError, TypeError, ValueError) as e:
        return f"{type(e).__name__}: {e}"
    return "" if verdict.ok else verdict.reason or "failed"


def differs(right: Graph, wrong: Graph, seed: int) -> bool:
    """The two compute different outputs."""
    values = random_tensors(right, seed)
    mine = {**values, **{t.name: np.asarray(t.value) for t in wrong.tensors.values() if t.value is not None}}
    try:
        a, b = run_ops(right, values), run_ops(wrong, mine)
    except (PlannerError, ArithmeticError, AssertionError, LookupError, TypeError, ValueError):
        return True
    return any(a[t].shape != b[t].shape or not np.allclose(a[t], b[t], rtol=1e-5, atol=1e-6) for t in right.outputs)
