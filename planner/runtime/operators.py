"""Forward and backward of single operators of a stage, on what lies in a cell.

Operators that follow each other are differentiated together, as a chain; what has no kernel of the runtime is computed
by numpy on the host.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

import torch
from torch import Tensor

from planner.lowering import Staged
from planner.lowering.touched import Key
from planner.runtime.bound import Bound, differentiated_by_numpy, run
from planner.runtime.cells import Cell, Value, missing
from planner.runtime.chain import Chain
from planner.runtime.fallback import NumpyCall

__all__ = ["Operators"]


class Operators:
    """
    value      finds operands
    lasting    parameters that are the same tensors in every step
    again      what the backward pass makes again
    chained    the operator behind which each may join a chain
    watched    whether every instruction is watched: then each operator is differentiated by itself
    fallbacks  types of the operators that ran on the host
    """

    def __init__(
        self,
        staged: Staged,
        value: Value,
        *,
        lasting: Collection[Key],
        again: Collection[Key],
        chained: Mapping[str, str],
    ) -> None:
        self.program, self.value = staged.program, value
        self.active, self.weights = staged.program.active, staged.weights
        self.lasting, self.again, self.chained = frozenset(lasting), frozenset(again), chained
        self.watched = False
        self.fallbacks: set[str] = set()

    def forward(self, b: Bound, cell: Cell, shared: Cell, *, record: bool) -> None:
        operands = [None if key is None else self.value(key, cell, shared) for key in b.inputs]
        if b.shape_operand is not None and b.inputs[b.shape_operand] is not None:
            operands[b.shape_operand] = torch.tensor(b.shapes[0], dtype=torch.int64)
        for key, value in zip(b.inputs, operands, strict=True):
            if value is None and key is not None:
                raise missing(f"{key[0]}, an operand of {b.op.type} {b.op.name},", key[1])
        again: dict[int, Callable[[], Tensor]] = {}
        if record and self.again:
            again = {
                i: self._later(k, cell, shared) for i, k in enumerate(b.inputs) if k is not None and k in self.again
            }
        # What runs in between and is not followed, as blocks do that will run again, would keep a chain open for long.
        chain = self.join(b if record else None, cell) if b.followed else None
        results, kept, own = run(b, self.program, operands, chain, again=again)
        if not own:
            self.fallbacks.add(b.op.type)
            if chain is not None:
                self.join(None, cell)
        for key, y in zip(b.outputs, results, strict=False):
            if key is not None and y is not None:
                cell.values[key] = y
        if chain is not None:
            cell.records[b.op.name] = chain if kept is None else kept

    def join(self, b: Bound | None, cell: Cell) -> Chain | None:
        """The chain that follows an operator for its backward: the open one, or a new one where it may not join that;
        without an operator the open one is closed."""
        chain = cell.chain
        if chain is not None:
            if b is not None and self._follows(b, chain):
                chain.joined(b.op.name)
                return chain
            chain.close()
        cell.chain = None
        if b is not None:
            cell.chain = Chain(self.lasting)
            cell.chain.joined("" if b.reduced else b.op.name)
        return cell.chain

    def _later(self, key: Key, cell: Cell, shared: Cell) -> Callable[[], Tensor]:
        """What gives a value that is made again, when it is."""

        def found() -> Tensor:
            value = self.value(key, cell, shared)
            if value is None:
                raise missing(f"{key[0]}, which the backward pass makes again,", key[1])
            return value

        return found

    def _follows(self, b: Bound, chain: Chain) -> bool:
        """Those that communicate inside stay by themselves, since all ranks do so in one order, and so do all where
        every instruction is watched."""
        behind = self.chained.get(b.op.name) == chain.last
        return behind and not self.watched and not b.reduced and chain.takes(b.followed)

    def backward(self, b: Bound, cell: Cell, part: str) -> None:
        record = cell.records.get(b.op.name) if part == "values" else cell.records.pop(b.op.name, None)
        if isinstance(record, NumpyCall):
            self._backward_by_numpy(record, b, cell, part)
        elif record is not None and record.pending:
            self._backward_of(record, b, cell, part)

    def _backward_of(self, chain: Chain, b: Bound, cell: Cell, part: str) -> None:
        """Of a chain all, where its last operator is met: behind that the others have theirs."""

        def given(key: Key) -> Tensor | None:
            return cell.gradients.pop(key, None) if key[0] in self.active else None

        if part == "values":  # their gradients are read once more, for those of weights
            cell.waiting[b.op.name] = {k: given(k) for k in chain.results}
        waiting = cell.waiting.pop(b.op.name, {}) if part == "weights" else cell.waiting.get(b.op.name, {})
        only = (lambda key: (key[0] in self.weights) == (part == "weights")) if part else None
        for key, g in chain.differentiated(waiting.get if part else given, only, again=part == "values"):
            cell.add(key, g)

    def _backward_by_numpy(self, record: NumpyCall, b: Bound, cell: Cell, part: str) -> None:
        keys = [k for k in b.gradients if k is not None and k[0] in self.active]
        if part == "weights":
            waiting = cell.waiting.pop(b.op.name, {})
        else:
            waiting = {k: cell.gradients.pop(k, None) for k in keys}
        if all(g is None for g in waiting.values()):
            return
        if part == "values":
            cell.waiting[b.op.name] = waiting
        heavy = {k for k, n in enumerate(b.op.inputs) if n in self.weights}
        only = None if not part else heavy if part == "weights" else set(range(len(b.op.inputs))) - heavy
        given = [None if k is None else waiting.get(k) for k in b.gradients]
        for key, g in zip(b.given, differentiated_by_numpy(b, record, given, only), strict=False):
            if key is not None and g is not None:
                cell.add(key, g)
