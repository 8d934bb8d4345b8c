"""The unsharded model that a proof compares with: every value, and every gradient by a reverse sweep.

A second witness stands beside each vector-Jacobian product: finite differences of the operator itself
(`planner.verify.witness`), once for operators that look alike.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from planner.errors import PlannerError, VerificationError
from planner.ir import Graph, Op
from planner.kernels import run_local
from planner.kernels.gradients import NoVjpError, vjp
from planner.kernels.session import attribute_key
from planner.kernels.shards import Array
from planner.rules.rule import Rule
from planner.verify.projection import are_product_gradients, is_product
from planner.verify.reference import incoming_gradient
from planner.verify.witness import DISAGREES, witness
from planner.work.activity import gradient_sources, trained_parameters

__all__ = ["Whole"]

# Times that operands are moved: each time other whole numbers flip, and once alone may move an element hardly at all.
_MOVES = 4
_LARGE = 1e7  # elements or operations, beyond which a witness takes seconds
_ULPS = 4.0  # units in the last place that an operand is moved by at most


class Whole:
    """`values` are those of parameters, inputs and constants (`sources`; those that the graph does not state are
    `drawn`); others are computed when `forward` is called.  `witnesses`: whether products have the second one here."""

    def __init__(
        self,
        graph: Graph,
        values: Mapping[str, Array],
        rules: Mapping[str, Rule],
        active: frozenset[str],
        *,
        witnesses: bool = True,
    ) -> None:
        self.graph, self.rules, self.active = graph, rules, active
        stated = (t for t in graph.tensors.values() if t.value is not None)
        self._values: dict[str, Array] = {t.name: np.asarray(t.value) for t in stated}
        self._values |= {n: np.asarray(v) for n, v in values.items()}
        self.sources = frozenset(self._values)
        self.drawn = frozenset(n for n in self.sources if graph.tensors[n].value is None)
        self._totals: dict[str, Array] = {}
        self._contributions: dict[str, tuple[str, ...]] = {}
        self._rng = np.random.default_rng(1)
        self._backward_of: tuple[str, list[bool]] = ("", [])
        self._gradients: list[Array | None] = []
        self._representatives = _representatives(graph, rules, active) if witnesses else frozenset[str]()
        self.reached = _reached(graph, rules) if active else frozenset[str]()
        self._witnessed: set[str] = set()  # products that finite differences agree or disagree with
        self.unwitnessed: list[str] = []  # operators whose product they say nothing about

    @property
    def witnessed(self) -> int:
        return len(self._witnessed)

    def value(self, tensor: str) -> Array:
        if tensor not in self._values:
            raise VerificationError(f"tensor {tensor}: the whole model has not computed it")
        return self._values[tensor]

    def replace(self, source: str, value: Array) -> None:
        """Another value of a parameter, input or constant, of the same shape and type."""
        old = self._values[source]
        assert value.shape == old.shape, (source, value.shape, old.shape)
        self._values[source] = value.astype(old.dtype, copy=False)

    def scale(self, result: str, factor: float) -> None:
        """The result of an operator is a multiple of what it was, as what it is linear in became."""
        self._values[result] = self._values[result] * factor

    def forget(self, tensor: str) -> None:
        """Nothing reads the value any more."""
        if tensor not in self.sources:
            self._values.pop(tensor, None)

    def forward(self, op: Op) -> list[Array | None]:
        """Results of the operator, computed once however often the devices run it."""
        if all(not t or t in self._values for t in op.outputs):
            return [self._values[t] if t else None for t in op.outputs]
        results = self._run(op, self._operands(op))
        self._values.update((t, r) for t, r in zip(op.outputs, results, strict=True) if t and r is not None)
        return results

    def forward_rounding(self, op: Op) -> list[Array]:
        """How far rounding of the operands moves each element of the results; of whole numbers: whether it does."""
        results = [self._values.get(t) if t else None for t in op.outputs]
        operands = self._operands(op)
        moved = [self._run(op, self._moved(operands)) for _ in range(_MOVES)]
        single = self._single(lambda: self._run(op, _narrow(operands)))
        return [np.maximum(_farthest(r, [m[j] for m in moved]), _within(r, single, j)) for j, r in enumerate(results)]

    # Gradients

    def begin_backward(self, share: float = 1.0) -> None:
        """Gradients enter where the graph says, whether or not a program says so; of a micro-batch its `share` of a
        step's."""
        for tensor in gradient_sources(self.graph):
            if tensor in self.active:
                self.add_gradient(tensor, share * incoming_gradient(self.graph, tensor), "loss")

    def add_gradient(self, tensor: str, value: Array, contribution: str) -> None:
        self._totals[tensor] = self._totals[tensor] + value if tensor in self._totals else value
        self._contributions[tensor] = (*self._contributions.get(tensor, ()), contribution)

    def gradient(self, tensor: str) -> Array | None:
        """The sum of the contributions so far; None where there are none."""
        return self._totals.get(tensor)

    def take_gradient(self, tensor: str) -> Array | None:
        """The sum of all contributions, which is not needed here any more."""
        return self._totals.pop(tensor, None)

    def contributions(self, tensor: str) -> tuple[str, ...]:
        """Who added to the gradient: OPERATOR:OPERAND, or `loss`."""
        return self._contributions.get(tensor, ())

    def backward(self, op: Op, wanted: Sequence[bool]) -> list[Array | None]:
        """Gradients of the wanted operands."""
        self._backward_of = (op.name, list(wanted))
        self._gradients = self._vjp(op, wanted, self._operands(op), self._results(op), self._result_gradients(op))
        return self._gradients

    def claimed(self, op: Op, wanted: Sequence[bool], gradients: Sequence[Array | None]) -> bool:
        """Whether these are the gradients of the wanted operands of a large product; they are not computed for that.
        False where that cannot be told."""
        (given,) = self._result_gradients(op)[:1]
        if given is None or not is_product(op) or self.rules[op.name].cost.flops < _LARGE:
            return False
        if any(w != (g is not None) for w, g in zip(wanted, gradients, strict=True)):
            return False
        if not are_product_gradients(op, self._operands(op), given, gradients, self._rng):
            return False
        self._backward_of, self._gradients = (op.name, list(wanted)), list(gradients)
        return True

    def backward_rounding(self, op: Op) -> list[Array]:
        """How far rounding moves each element of the gradients that `backward` gave last."""
        name, wanted = self._backward_of
        assert name == op.name
        exact = self._gradients
        operands, results, given = self._operands(op), self._results(op), self._result_gradients(op)
        moved = [
            self._vjp(op, wanted, self._moved(operands), self._moved(results), self._moved(given))
            for _ in range(_MOVES)
        ]
        single = self._single(lambda: self._vjp(op, wanted, _narrow(operands), _narrow(results), _narrow(given)))
        return [np.maximum(_farthest(g, [m[i] for m in moved]), _within(g, single, i)) for i, g in enumerate(exact)]

    def _single(self, work: Callable[[], list[Array | None]]) -> list[Array | None]:
        """What single precision makes of it; nothing where it cannot be run so."""
        try:
            return work()
        except (PlannerError, ArithmeticError, AssertionError, LookupError, TypeError, ValueError):
            return []

    def doubt(self, op: Op) -> str:
        """What finite differences hold against the gradients that `backward` gave last; empty where nothing."""
        name, wanted = self._backward_of
        if op.name not in self._representatives or name != op.name:
            return ""
        operands, results, given = self._operands(op), self._results(op), self._result_gradients(op)
        gradients = self._gradients
        if not any(g is not None and np.any(g) for g in given):  # of zeros every product is zero
            rng = np.random.default_rng(0)
            given = [None if g is None else rng.standard_normal(g.shape).astype(g.dtype) for g in given]
            gradients = self._vjp(op, wanted, operands, results, given)
        found = witness(op, operands, results, given, gradients, wanted, seed=0)
        if found is None:
            if op.name not in self.unwitnessed:
                self.unwitnessed.append(op.name)
            return ""
        self._witnessed.add(op.name)
        return "" if found <= DISAGREES else f"finite differences of the operator disagree by {found:.2g}"

    def unseen(self, op: Op) -> list[int]:
        """Operands to which a gradient flows, though the operator's rule gives them none.

        Of floats that depend on what is trained; the gradient is the vector-Jacobian product of random numbers."""
        rule = self.rules[op.name]
        floats = [t in self.reached and self.value(t).dtype.kind == "f" if t else False for t in op.inputs]
        wanted = [f and i not in rule.differentiable for i, f in enumerate(floats)]
        results = self._results(op)
        if not any(wanted) or not any(r is not None and r.dtype.kind == "f" for r in results):
            return []
        rng = np.random.default_rng(0)
        given = [rng.standard_normal(r.shape) if r is not None and r.dtype.kind == "f" else None for r in results]
        try:
            found = self._vjp(op, wanted, self._operands(op), results, given)
        except NoVjpError:
            return []
        return [i for i, g in enumerate(found) if g is not None and np.any(g)]

    def settled(self, op: Op) -> None:
        """The gradients of the operator's results are used up."""
        self._gradients = []
        for t in op.outputs:
            self._totals.pop(t, None)

    def _vjp(
        self,
        op: Op,
        wanted: Sequence[bool],
        operands: list[Array | None],
        results: list[Array | None],
        gradients: list[Array | None],
    ) -> list[Array | None]:
        return vjp(op, operands, results, gradients, wanted)

    def _operands(self, op: Op) -> list[Array | None]:
        return [self.value(t) if t else None for t in op.inputs]

    def _results(self, op: Op) -> list[Array | None]:
        return [self._values.get(t) if t else None for t in op.outputs]

    def _result_gradients(self, op: Op) -> list[Array | None]:
        return [self._totals.get(t) if t and t in self.active else None for t in op.outputs]

    def _run(self, op: Op, operands: Sequence[Array | None]) -> list[Array | None]:
        shapes = [self.graph.tensors[t].shape if t else None for t in op.outputs]
        found = run_local(op, operands, output_shapes=shapes)
        return [None if r is None else np.asarray(r) for r in (*found, *([None] * (len(op.outputs) - len(found))))]

    def _moved(self, values: Sequence[Array | None]) -> list[Array | None]:
        """The values with every float moved by a few units in the last place; whole numbers are exact."""
        out: list[Array | None] = []
        for v in values:
            if v is None or v.dtype.kind != "f":
                out.append(v)
                continue
            factor = 1 + self._rng.uniform(-_ULPS, _ULPS, v.shape) * np.finfo(v.dtype).eps
            with np.errstate(invalid="ignore", over="ignore"):
                near = v * factor
            out.append(np.where((np.rint(v) == v) | ~np.isfinite(near), v, near))
        return out


def _representatives(graph: Graph, rules: Mapping[str, Rule], active: frozenset[str]) -> frozenset[str]:
    """Of the operators with gradients that differ in nothing but sizes, the one with the least work; a large one not
    where a smaller one of its type has other attributes."""
    least: dict[tuple[object, ...], tuple[float, str]] = {}
    for op in graph.ops:
        if not any(t in active for t in op.outputs):
            continue
        shapes = [graph.tensors[t].shape if t else None for t in op.inputs]
        alike = tuple(None if s is None else tuple(n == 1 for n in s) for s in shapes)
        key = op.type, op.opset, attribute_key(op), alike, tuple(t in active for t in op.inputs)
        work = max([rules[op.name].cost.flops, *(float(math.prod(s)) for s in shapes if s is not None)])
        if key not in least or work < least[key][0]:
            least[key] = work, op.name
    small = {key[0] for key, (work, _) in least.items() if work <= _LARGE}
    return frozenset(name for key, (work, name) in least.items() if work <= _LARGE or key[0] not in small)


def _reached(graph: Graph, rules: Mapping[str, Rule]) -> frozenset[str]:
    """Trained parameters, and what depends on them along gradients that the rules give."""
    reached = set(trained_parameters(graph))
    for op in graph.ops:
        if any(op.inputs[i] in reached for i in rules[op.name].differentiable if i < len(op.inputs)):
            reached.update(t for t in op.outputs if t)
    return frozenset(reached)


def _narrow(values: Sequence[Array | None]) -> list[Array | None]:
    return [v.astype(np.float32) if v is not None and v.dtype == np.float64 else v for v in values]


def _within(value: Array | None, single: Sequence[Array | None], place: int) -> Array:
    """How far double precision rounds inside an operator, by how far single precision does: where it subtracts numbers
    that are nearly equal, moving its operands alone shows nothing."""
    found = single[place] if place < len(single) else None
    if value is None or found is None or value.dtype.kind != "f" or found.shape != value.shape:
        return np.zeros(())
    off = np.abs(found.astype(np.float64) - value) * (np.finfo(np.float64).eps / np.finfo(np.float32).eps)
    return np.nan_to_num(off, nan=0.0, posinf=0.0)


def _farthest(value: Array | None, moved: Sequence[Array | None]) -> Array:
    if value is None:
        return np.zeros(())
    if value.dtype.kind != "f":
        return np.any([m != value for m in moved], axis=0).astype(np.float64)
    with np.errstate(invalid="ignore"):
        return np.nan_to_num(np.max([np.abs(m - value) for m in moved if m is not None], axis=0), nan=0.0, posinf=0.0)
