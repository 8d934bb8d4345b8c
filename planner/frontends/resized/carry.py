"""The state of one rebinding: old and new shapes, factors of dimensions, resized constants.

See `planner.frontends.resized.rebind` for the method; the knowledge of single operator types is in
`sizes.py` of each family in `planner.operators`.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from planner.errors import InputError
from planner.frontends.resized.resize import repeat_blocks, resize_value
from planner.frontends.steps.infer import infer_op
from planner.ir import Graph, Op, Role, Tensor

__all__ = ["Carrier", "Factors", "join"]

Factors = tuple[tuple[int, int], ...]  # (old, new), outermost first; their products are the sizes
Shape = tuple[int, ...]
_State = tuple[tuple[Tensor, tuple[Factors, ...] | None], ...]  # of an operator's operands, or results


def join(factors: Factors) -> int:
    return math.prod(n for _, n in factors)


def _same(one: _State, other: _State) -> bool:
    """Whether these are the very same objects."""
    return all(a is c and b is d for (a, b), (c, d) in zip(one, other, strict=True))


def _equal(one: _State, other: _State) -> bool:
    """Whether the shapes, values and factors are the same."""
    return all(a.shape == c.shape and a.value is c.value and b == d for (a, b), (c, d) in zip(one, other, strict=True))


class Carrier:
    """Mutable walk over a graph; `walk` returns True when a pass over all of it made no demand upstream.

    Between two such passes, those that follow up demands visit only what has changed since.
    """

    def __init__(self, graph: Graph, rebound: Iterable[str] = ()) -> None:
        self.graph = graph
        self.rebound = frozenset(rebound)  # inputs that have the user's sizes; the others follow
        self.old = graph.tensors
        self.ops: list[Op] = []
        self.tensors: dict[str, Tensor] = {}
        self.resized: dict[str, Tensor] = {}  # sources with new sizes
        self.fixed: dict[tuple[str, int], Any] = {}  # (operator, operand) → rewritten constant
        self.wanted: dict[tuple[str, int], int] = {}  # sizes that results must have
        self.wanted_like: dict[tuple[str, int], Factors] = {}  # and the factors of those, where they are known
        self.factors: dict[str, tuple[Factors, ...]] = {}
        self.clones: dict[tuple[str, Shape, bytes], str] = {}  # rewritten constant → its name
        self.again = False  # this walk made a new demand
        self.unmet = ""  # a demand that an earlier walk made and this one found again
        self.settled = True  # the operator at hand demanded nothing, so that equal operands give what they gave before
        self.done: dict[str, tuple[_State, _State]] = {}  # operator → operands and results, as of an earlier walk
        self.places = {op.name: k for k, op in enumerate(graph.ops)}
        self.stale: set[int] | None = None  # places that the next walk visits; None: all

    # -- what handlers ask ----------------------------------------------------------------------

    def before(self, t: str) -> Shape:
        """Old shape; InputError where it depends on data."""
        shape = self.old[t].shape
        if shape is None:
            raise InputError(f"cannot carry the new size through '{t}', whose shape depends on data.")
        return shape

    def after(self, t: str) -> Shape:
        shape = self.tensors[t].shape
        if shape is None:
            raise InputError(f"cannot carry the new size through '{t}', whose shape depends on data.")
        return shape

    def changed(self, t: str) -> bool:
        return bool(t) and (self.tensors[t].shape != self.old[t].shape)

    def parts(self, t: str) -> tuple[Factors, ...]:
        """Factors of each dimension."""
        known = self.factors.get(t)
        if known is not None:
            return known
        return tuple(((o, n),) for o, n in zip(self.before(t), self.after(t), strict=True))

    def value(self, t: str) -> np.ndarray[Any, Any] | None:
        return self.old[t].value if t else None

    # -- what handlers do -----------------------------------------------------------------------

    def set_source(self, t: str, axis: int, size: int, like: Factors = ()) -> None:
        """Resize a tensor that no operator computes.  InputError naming it when it cannot be.

        `like` are the factors of the dimension that it runs beside: a batch in front of windows repeats whole blocks.
        """
        tensor = self.resized.get(t, self.old[t])
        shape = tensor.shape or ()
        if shape[axis] == size:
            return
        if shape[axis] != (self.old[t].shape or ())[axis]:
            raise InputError(f"'{t}': dimension {axis} would have to be {shape[axis]} and {size} at once.")
        if tensor.role is Role.PARAMETER and size > shape[axis]:
            raise InputError(
                f"parameter '{t}' of shape {list(shape)} stops the new size: its dimension {axis} would have "
                f"to grow from {shape[axis]} to {size}. Export the model with that size, or with a symbolic dimension."
            )
        value = tensor.value
        if value is not None:
            repeated = repeat_blocks(value, axis, like) if join(like) == size else None
            value = resize_value(value, axis, size) if repeated is None else repeated
            if value is None:
                raise InputError(
                    f"constant '{t}' of shape {list(shape)} stops the new size: its dimension {axis} would have to "
                    f"grow from {shape[axis]} to {size}, and its values do not show how they continue. "
                    "Export the model with that size, or with a symbolic dimension."
                )
        new = (*shape[:axis], size, *shape[axis + 1 :])
        self.resized[t] = replace(tensor, shape=new, value=value)
        self.again = True
        self._visit_next(*(reader for reader, _ in self.graph.consumers.get(t, ())))

    def demand(self, t: str, axis: int, size: int, reader: Op, like: Factors = ()) -> None:
        """The reader needs `size` along the axis of `t`; whoever makes `t` is told, up to its sources.

        `like` are the factors of that dimension, where the reader knows them from another operand.
        """
        if self.after(t)[axis] == size:
            return
        self.settled = False
        if t not in self.graph.producers:
            if t in self.rebound:
                raise InputError(
                    f"input '{t}' of shape {list(self.before(t))} stops the new size: "
                    f"{reader.type} '{reader.name}' needs {size} along its dimension {axis}, now {self.after(t)[axis]}."
                )
            self.set_source(t, axis, size, like)
            return
        if like:
            self.wanted_like[t, axis] = like
        if self.wanted.get((t, axis), size) != size:
            raise InputError(f"'{t}': dimension {axis} would have to be {self.wanted[t, axis]} and {size} at once.")
        if (t, axis) not in self.wanted:
            self.wanted[t, axis] = size
            self.again = True
            self._visit_next(self.graph.producers[t])
        else:
            self.unmet = self.unmet or (
                f"{self.graph.producers[t].type} '{t}' stops the new size: its dimension {axis} stays "
                f"{self.after(t)[axis]}, but {reader.type} '{reader.name}' needs {size}."
            )

    def pass_up(self, op: Op, result: str, axis: int, operand: str, operand_axis: int) -> None:
        """A size wanted of the operator's result becomes one demanded of its operand."""
        size = self.wanted.get((result, axis))
        if size is not None:
            self.demand(operand, operand_axis, size, op, self.wanted_like.get((result, axis), ()))

    def refuse(self, message: str) -> None:
        """Something stops the new size, unless a demand under way changes it: the end of the walk tells."""
        self.settled = False
        self.unmet = self.unmet or message

    def rewrite(self, op: Op, operand: int, value: Sequence[int] | np.ndarray[Any, Any]) -> None:
        """Give this operator a constant of its own in place of the shared one."""
        self.fixed[op.name, operand] = np.asarray(value, dtype=np.int64)

    # -- the walk -------------------------------------------------------------------------------

    def walk(self, handle: Callable[[Carrier, Op], None]) -> bool:
        """`handle` says how an operator carries sizes (`planner.frontends.facts.sizes`)."""
        stale, self.stale = self.stale, set()
        self.again, self.unmet = False, ""
        if stale is None:
            if not self._walk_all(handle):
                self.stale = None  # what stands behind was not visited
                return False
            if self.unmet and not self.again:
                raise InputError(self.unmet)
            return not self.again
        try:
            if not self._walk_stale(handle, stale) or not self.again:
                self.stale = None
        except InputError:
            self.stale = None  # which a walk over all finds again, and says what came before it
        return False

    def _walk_all(self, handle: Callable[[Carrier, Op], None]) -> bool:
        """Visits every operator; False where it stopped, until a demand under way is met."""
        self.tensors = dict(self.old) | self.resized
        self.factors, self.ops, self.clones = {}, [], {}
        for op in self.graph.ops:
            new = self._visit(op, handle)
            if new is None:
                return False
            self.ops.append(new)
        return True

    def _walk_stale(self, handle: Callable[[Carrier, Op], None], stale: Iterable[int]) -> bool:
        """Visits the operators in these places and what reads results that have changed; False as of `_walk_all`."""
        self.tensors |= self.resized
        places = sorted(stale)
        known = set(places)
        while places:
            op = self.graph.ops[heapq.heappop(places)]
            before = self._state(op.outputs)
            for o in filter(None, op.outputs):
                self.tensors[o] = self.old[o]
                self.factors.pop(o, None)
            if self._visit(op, handle) is None:
                return False
            for o, (tensor, factors) in zip(filter(None, op.outputs), before, strict=True):
                if self.tensors[o] is not tensor or self.factors.get(o) is not factors:
                    for reader, _ in self.graph.consumers.get(o, ()):
                        place = self.places[reader.name]
                        if place not in known:
                            known.add(place)
                            heapq.heappush(places, place)
        return True

    def _visit_next(self, *ops: Op) -> None:
        if self.stale is not None:
            self.stale |= {self.places[op.name] for op in ops}

    def _visit(self, op: Op, handle: Callable[[Carrier, Op], None]) -> Op | None:
        """The operator with its new operands and attributes, after its results have got their new sizes; None where
        these are not known until a demand under way is met."""
        wants = any((o, d) in self.wanted for o in op.outputs if o for d in range(self.old[o].rank))
        if not wants and not any(self._differs(t) for t in op.inputs if t):
            return op
        operands = self._state(op.inputs)
        done = None if wants else self.done.get(op.name)
        changed = done is None or not _same(done[0], operands)
        self.settled = not wants
        if changed:
            handle(self, op)
        inputs = tuple(self._operand(op, k) for k in range(len(op.inputs)))
        new = replace(op, inputs=inputs) if inputs != op.inputs else op
        attributes = self.fixed.get((op.name, -1))
        if attributes is not None:
            new = replace(new, attributes={**op.attributes, **attributes})
        if done is not None and not changed:
            self._restore(op, done[1])
        elif not self._infer(op, new):
            return None
        elif self.settled:
            # Results that are as they were stay the same objects, by which what reads them sees it.
            results = self._state(op.outputs)
            if done is not None and _equal(done[1], results):
                results = done[1]
                self._restore(op, results)
            self.done[op.name] = operands, results
        else:
            self.done.pop(op.name, None)
            self._visit_next(op)
        return new

    def _state(self, names: Iterable[str]) -> _State:
        return tuple((self.tensors[t], self.factors.get(t)) for t in names if t)

    def _restore(self, op: Op, results: _State) -> None:
        for o, (tensor, factors) in zip(filter(None, op.outputs), results, strict=True):
            self.tensors[o] = tensor
            if factors is not None:
                self.factors[o] = factors

    def result(self) -> dict[str, Tensor]:
        """Tensors of the new graph: those still mentioned."""
        named = {t for op in self.ops for t in (*op.inputs, *op.outputs)} | {
            *self.graph.inputs,
            *self.graph.outputs,
        }
        return {t: v for t, v in self.tensors.items() if t in named}

    def _differs(self, t: str) -> bool:
        return self.tensors[t] is not self.old[t] and (
            self.changed(t) or self.tensors[t].value is not self.old[t].value
        )

    def _operand(self, op: Op, k: int) -> str:
        value = self.fixed.get((op.name, k))
        t = op.inputs[k]
        if value is None or not t:
            return t
        original = self.old[t].value
        if original is not None and original.shape == value.shape and (original == value).all():
            return t
        name = self._clone(t, value)
        dtype = self.old[t].dtype
        self.tensors[name] = Tensor(name, value.shape, dtype, Role.CONSTANT, value.astype(dtype))
        return name

    def _as_demanded(self, o: str, shape: Shape) -> Shape:
        """A result whose dimension becomes one: beside what has its old size still, it would be taken for repeated."""
        expected = self.factors.get(o)
        if expected is None or len(expected) != len(shape):
            return shape
        return tuple(1 if join(f) == 1 else n for f, n in zip(expected, shape, strict=True))

    def _clone(self, t: str, value: np.ndarray[Any, Any]) -> str:
        """A name of its own for the constant's new value; operators that shared it still do."""
        key = (t, value.shape, value.tobytes())
        if key not in self.clones:
            taken = set(self.clones.values())
            names = (f"{t}@{n}" for n in itertools.count(len(taken)))
            self.clones[key] = next(name for name in names if name not in taken and name not in self.old)
        return self.clones[key]

    def _infer(self, op: Op, new: Op) -> bool:
        """Shapes of the results; False where they are unknown until a demand under way is met."""
        pending = self.again or bool(self.unmet)
        try:
            inferred = infer_op(new, self.tensors)
        except InputError as error:
            if not pending:
                raise InputError(f"{op.type} '{op.name}' stops the new size. {error}") from None
            self.settled = False
            inferred = [(None, None)] * len(op.outputs)
        for o, (_, shape) in zip(op.outputs, inferred, strict=True):
            if not o:
                continue
            old = self.old[o].shape
            if shape is None and old is not None:
                self.settled = False
                expected = self.factors.get(o)
                if expected is not None and len(expected) == len(old):
                    shape = tuple(join(f) for f in expected)
                elif self.again:
                    return False
                else:
                    raise InputError(
                        self.unmet
                        or f"{op.type} '{op.name}' stops the new size: "
                        f"the shape of its result '{o}' cannot be inferred."
                    )
            if shape is not None and not self.settled:
                shape = self._as_demanded(o, shape)
            self.tensors[o] = replace(self.old[o], shape=shape)
            if shape is not None and old is not None and len(shape) == len(old):
                self._keep_factors(op, o, old, shape)
        return True

    def _keep_factors(self, op: Op, o: str, old: Shape, shape: Shape) -> None:
        """The handler's factors where they agree with the shape; else those of a dimension that changed alike."""
        stated = self.factors.get(o)
        out: list[Factors] = []
        for axis, pair in enumerate(zip(old, shape, strict=True)):
            if stated is not None and len(stated) == len(old) and join(stated[axis]) == pair[1]:
                out.append(stated[axis])
            else:
                out.append(self._alike(op, axis, pair) or (pair,))
        self.factors[o] = tuple(out)

    def _alike(self, op: Op, axis: int, pair: tuple[int, int]) -> Factors | None:
        """Factors of the operand dimension with the same sizes, preferably in the same position."""
        if pair[0] == pair[1]:
            return None
        found: Factors | None = None
        for t in op.inputs:
            if t not in self.factors:
                continue
            sizes = zip(self.old[t].shape or (), self.tensors[t].shape or (), strict=False)
            for k, other in enumerate(sizes):
                if other == pair and (found is None or k == axis):
                    found = self.factors[t][k]
                    if k == axis:
                        return found
        return found
