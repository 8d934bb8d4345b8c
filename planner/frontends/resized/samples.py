"""Whether a loss is a mean over samples, or their sum: what a step in micro-batches makes of theirs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, Literal
from weakref import WeakKeyDictionary

from planner.errors import InputError, UsageError
from planner.frontends.resized.rebind import batch_axes, rebind
from planner.ir import Graph, Op, Role

__all__ = ["OverSamples", "loss_over_samples", "share_of_micro_batch"]

OverSamples = Literal["mean", "sum", "other"]
# Of a tensor: "samples" where one dimension is that of the batch, and each sample's part is made of that sample alone;
# "still" where it is the same for any batch.
_Kind = Literal["samples", "still", "mean", "sum", "other"]

_PASSED: Final = frozenset({"Cast", "Detach", "Flatten", "Identity", "Neg", "Reshape", "Squeeze", "Unsqueeze"})
_SUMS: Final = frozenset({"ReduceL1", "ReduceSum", "ReduceSumSquare"})
_LINEAR: Final = frozenset({"ReduceMean", "ReduceSum"})
# Where these work along the batch, samples meet each other: the dimension that they name, if nothing else is said.
_ALONG: Final[Mapping[str, int]] = {
    "ArgMax": 0, "ArgMin": 0, "Gather": 0, "GatherElements": 0, "Hardmax": -1, "LogSoftmax": -1, "LpNormalization": -1,
    "ScatterElements": 0, "Softmax": -1, "TopK": -1,
}  # fmt: skip
_CUT: Final = frozenset({"Pad", "Slice", "Split"})  # of the batch some samples are left out, or there are more
_TOGETHER: Final = frozenset({"Compress", "CumProd", "CumSum", "GatherND", "NonZero", "ScatterND", "Unique"})

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
    op = graph.producers.get(graph.loss)
    while op is not None and op.type in _PASSED:
        op = graph.producers.get(op.inputs[0])
    if op is not None and _is_loss(op):
        return _reduction(op)
    other = _resized(graph)
    return "other" if other is None else _Walk(graph, other).found()


def _is_loss(op: Op) -> bool:
    return "CrossEntropyLoss" in op.type or op.type == "NegativeLogLikelihoodLoss"


def _reduction(op: Op) -> OverSamples:
    if op.attributes.get("reduction", "mean") in ("mean", b"mean") and any(op.inputs[2:3]):
        return "other"  # the sum of samples over that of the weights of their classes
    match op.attributes.get("reduction", "mean"):
        case "mean" | b"mean":
            return "mean"
        case "sum" | b"sum":
            return "sum"
    return "other"


def _resized(graph: Graph) -> Graph | None:
    """With twice as many samples, or half, where it can be made."""
    data = (graph.tensors[n] for n in graph.inputs if graph.tensors[n].role is Role.INPUT)
    rows = next((t.shape[0] for t in data if t.shape), 1)
    for batch in (2 * rows, rows // 2):
        try:
            return rebind(graph, batch_axes(graph, batch))
        except (InputError, UsageError):
            continue
    return None


class _Walk:
    """The graph in its order, beside the same with another number of samples."""

    def __init__(self, graph: Graph, other: Graph) -> None:
        self.graph = graph
        self.grown = {n: _grown(graph, other, n) for n in graph.tensors}
        self.kinds: dict[str, _Kind] = {n: self._of_source(n) for n in graph.tensors if n not in graph.producers}

    def found(self) -> OverSamples:
        for op in self.graph.ops:
            for name in op.outputs:
                if name:
                    self.kinds[name] = self._of_samples(op, name) if self.grown[name] else self._of_result(op)
        kind = self.kinds[self.graph.loss or ""]
        return kind if kind in ("mean", "sum") else "other"

    def _of_source(self, name: str) -> _Kind:
        if self.grown[name]:
            return "samples" if len(self.grown[name]) == 1 else "other"
        # A number that was computed of the batch's size, where the file leaves that open, is another for another batch.
        known = self.graph.tensors[name].value
        if not self.graph.bound or known is None or known.dtype.kind != "f" or not known.size:
            return "still"
        return "other" if bool((known == known.flat[0]).all()) else "still"

    def _of_samples(self, op: Op, name: str) -> _Kind:
        """Of a result that has a dimension of the batch."""
        given = [n for n in op.inputs if n]
        apart = len(self.grown[name]) == 1 and all(self.kinds[n] in ("samples", "still") for n in given)
        if not apart or op.type in _TOGETHER or self._works_along(op, name):
            return "other"
        return "samples"

    def _works_along(self, op: Op, name: str) -> bool:
        first, shape = op.inputs[0], self.graph.tensors[op.inputs[0]].shape
        if not first or not shape or not self.grown[first]:
            return False
        batch = self.grown[first][0]
        if op.type in _CUT:
            own = self.graph.tensors[name].shape
            return own is None or batch >= len(own) or own[batch] != shape[batch]
        return op.type in _ALONG and int(op.attributes.get("axis", _ALONG[op.type])) % len(shape) == batch

    def _of_result(self, op: Op) -> _Kind:
        """Of a result that is as large for any batch."""
        names = [n for n in op.inputs if n]
        given = [self.kinds[n] for n in names]
        if all(k == "still" for k in given):
            return "still"
        if "samples" in given:
            return self._reduced(op, names, given)
        first, others = given[0], set(given[1:])
        if op.type in _PASSED or (op.type in _LINEAR and others <= {"still"}):
            return first
        if op.type in ("Add", "Sub", "Sum"):
            moving = {k for k in given if k != "still"}
            return "mean" if moving == {"mean"} else "sum" if moving == {"sum"} and "still" not in given else "other"
        if op.type in ("Mul", "Div") and len(given) == 2:
            if given[1] == "still":
                return first
            return given[1] if first == "still" and op.type == "Mul" else "other"
        return "other"

    def _reduced(self, op: Op, names: Sequence[str], given: Sequence[_Kind]) -> _Kind:
        """Of samples, where none of their dimensions is left."""
        if _is_loss(op) and set(given) <= {"samples", "still"}:
            return _reduction(op)
        if given[0] == "samples" and set(given[1:]) <= {"still"}:
            return "mean" if op.type == "ReduceMean" else "sum" if op.type in _SUMS else "other"
        # Rows of two tensors meet in a product only where both have the batch in the dimension that is summed.
        ranks = [len(self.graph.tensors[n].shape or ()) for n in names]
        if op.type == "MatMul" and list(given) == ["samples", "samples"] and min(ranks) >= 2:
            (a,), (b,) = (self.grown[n] for n in names)
            return "sum" if (a, b) == (ranks[0] - 1, ranks[1] - 2) else "other"
        return "other"


def _grown(graph: Graph, other: Graph, name: str) -> tuple[int, ...]:
    """The dimensions that go with the batch; several where that is not known."""
    own, found = graph.tensors[name].shape, other.tensors[name].shape if name in other.tensors else None
    if own is None or found is None or len(own) != len(found):
        return () if own == found else (0, 1)
    return tuple(d for d, (a, b) in enumerate(zip(own, found, strict=True)) if a != b)
