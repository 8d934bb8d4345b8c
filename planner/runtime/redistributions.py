"""Redistributions of a stage's values and gradients, one by one and many in one collective."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from planner.ir import DeviceMesh
from planner.lowering import Redistribute
from planner.redistribute.steps import FREE
from planner.runtime.cells import Cell, Value, missing
from planner.runtime.collectives import apply, apply_together
from planner.runtime.workers import Context

__all__ = ["Redistributions"]


class Redistributions:
    """`value` finds what is redistributed; `type_of` says in which type a tensor is sent: sums of micro-batches may be
    wider."""

    def __init__(self, mesh: DeviceMesh, context: Context, value: Value, type_of: Callable[[str], torch.dtype]) -> None:
        self.mesh, self.context, self.value, self.type_of = mesh, context, value, type_of

    def _sent(self, move: Redistribute, value: Tensor) -> Tensor:
        travels = move.gradient and any(step.kind not in FREE for step in move.steps)
        return value.to(self.type_of(move.tensor)) if travels and value.is_floating_point() else value

    def contribute(self, move: Redistribute, cells: Sequence[Cell], shared: Cell) -> None:
        """Adds up a parameter's gradients of micro-batches that pass together."""
        key = move.tensor, move.source
        for cell in cells if cells[0] is not shared else ():
            if key in cell.gradients:
                shared.add(key, cell.gradients.pop(key))

    def one(self, move: Redistribute, cell: Cell, shared: Cell) -> None:
        source = (move.tensor, move.source)
        value = cell.gradients.pop(source, None) if move.gradient else self.value(source, cell, shared)
        if value is None:
            raise missing(f"{'gradient of ' if move.gradient else ''}{move.tensor}", move.source)
        value = self._sent(move, value)
        for step in move.steps:
            value = apply(step, value, self.mesh, self.context)
        if move.gradient:
            cell.add((move.tensor, move.target), value)
        else:
            cell.values[move.tensor, move.target] = value

    def together(self, moves: Sequence[Redistribute], cells: Sequence[Cell], shared: Cell) -> None:
        """Redistributions of parameters by the same collectives, tensors of one type at once."""
        for m in moves:
            if m.gradient:
                self.contribute(m, cells, shared)
        values = []
        for m in moves:
            source = m.tensor, m.source
            value = shared.gradients.pop(source, None) if m.gradient else self.value(source, shared, shared)
            if value is None:
                raise missing(f"{'gradient of ' if m.gradient else ''}{m.tensor}", m.source)
            values.append(self._sent(m, value))
        for steps in zip(*(m.steps for m in moves), strict=True):
            values = apply_together(steps, values, self.mesh, self.context)
        for m, value in zip(moves, values, strict=True):
            if m.gradient:
                shared.add((m.tensor, m.target), value)
            else:
                shared.values[m.tensor, m.target] = value
