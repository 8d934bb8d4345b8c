"""Whether a loss is a mean over samples, or their sum: what a step in micro-batches makes of theirs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal
from weakref import WeakKeyDictionary

from planner.errors import InputError, UsageError
from planner.frontends.resized.rebind import batch_axes, rebind
from planner.ir import Graph, Op, Role

__all__ = ["OverSamples", "loss_over_samples", "share_of_micro_batch"]

OverSamples = Literal["mean", "sum", "other"]
# Of a tensor: "samples" where it has a dimension of the batch; "still" where it is the same for any batch.
_Kind = Literal["samples", "still", "mean", "sum", "other"]

_PASSED: Final = frozenset({"Cast", "Detach", "Flatten", "Identity", "Neg", "Reshape", "Squeeze", "Unsqueeze"})
_SUMS: Final = frozenset({"Einsum", "MatMul", "ReduceL1", "ReduceSum", "ReduceSumSquare"})
_LINEAR: Final = frozenset({"ReduceMean", "ReduceSum"})

_KNOWN: WeakKeyDictionary[Graph, OverSamples] = WeakKeyDictionary()


def loss_over_samples(graph: Graph) -> OverSamples:
    """Whether the loss of a whole batch is the mean of those of its equal parts, or their sum.

    "other" where it is neither, as with a ratio of two sums, where that is not found out, and without a loss.
    """
    if graph not in _KNOWN:
        _KNOWN[graph] = _found(graph)
    return _KNOWN[graph]


def share_of_micro_batch(graph: Graph, count: int) -> float:
    """Of each of so many micro-batches in the loss of a step, and in its gradient."""
    return 1.0 if count > 1 and loss_over_samples(graph) == "sum" else 1 / max(1, count)


def _found(graph: Graph) -> OverSamples:
    if graph.loss is None:
        return "other"
    known = _stated(graph, graph.loss)
    if known is not None:
        return known
    try:
        twice = _twice(graph)
    except (InputError, UsageError):
        return "other"
    kinds: dict[str, _Kind] = {n: _of_source(graph, twice, n) for n in graph.tensors if n not in graph.producers}
    for op in graph.ops:
        for name in op.outputs:
            if name:
                kinds[name] = "samples" if _grows(graph, twice, name) else _of_result(graph, op, kinds)
    found = kinds[graph.loss]
    return found if found in ("mean", "sum") else "other"


def _stated(graph: Graph, loss: str) -> OverSamples | None:
    """By the loss operator itself, where nothing but its result is handed on."""
    op = graph.producers.get(loss)
    while op is not None and op.type in _PASSED and op.type != "Neg":
        op = graph.producers.get(op.inputs[0])
    if op is None or ("CrossEntropyLoss" not in op.type and op.type != "NegativeLogLikelihoodLoss"):
        return None
    return {"mean": "mean", "sum": "sum"}.get(str(op.attributes.get("reduction", "mean")), "other")  # type: ignore[return-value]


def _twice(graph: Graph) -> Graph:
    data = (graph.tensors[n] for n in graph.inputs if graph.tensors[n].role is Role.INPUT)
    rows = next((t.shape[0] for t in data if t.shape), 1)
    return rebind(graph, batch_axes(graph, 2 * rows))


def _grows(graph: Graph, twice: Graph, name: str) -> bool:
    other = twice.tensors.get(name)
    return other is not None and other.shape != graph.tensors[name].shape


def _of_source(graph: Graph, twice: Graph, name: str) -> _Kind:
    if _grows(graph, twice, name):
        return "samples"
    # A number that was computed of the batch's size, where the file leaves that open, is not the same for any batch.
    known = graph.tensors[name].value
    return "other" if graph.bound and known is not None and known.size == 1 else "still"


def _of_result(graph: Graph, op: Op, kinds: Mapping[str, _Kind]) -> _Kind:
    """Of a result that is as large for any batch."""
    given = [kinds[n] for n in op.inputs if n]
    if all(k == "still" for k in given):
        return "still"
    first, others = given[0], given[1:]
    if op.type in _PASSED:
        return first
    if first == "samples" and op.type in ("ReduceMean", *_SUMS) and all(k in ("samples", "still") for k in others):
        return "mean" if op.type == "ReduceMean" else "sum"
    if "samples" in given:
        reduction = str(op.attributes.get("reduction", "mean"))
        of_samples = "CrossEntropyLoss" in op.type or op.type == "NegativeLogLikelihoodLoss"
        return reduction if of_samples and reduction in ("mean", "sum") else "other"  # type: ignore[return-value]
    if op.type in _LINEAR and all(k == "still" for k in others):
        return first
    if op.type in ("Add", "Sub", "Sum"):
        moving = {k for k in given if k != "still"}
        return "mean" if moving == {"mean"} else "sum" if moving == {"sum"} and "still" not in given else "other"
    if op.type in ("Mul", "Div") and len(given) == 2:
        a, b = given
        if b == "still":
            return a
        return b if a == "still" and op.type == "Mul" else "other"
    return "other"
