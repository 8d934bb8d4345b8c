"""Which tensor of a step is the first that is not finite: the step is carried out once more and looked through."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from planner.ir import Role
from planner.lowering import Load, Run
from planner.lowering.program import StageInstruction
from planner.lowering.touched import Key
from planner.runtime.stage import Feed, Stage

__all__ = ["Suspect", "first_not_finite", "foremost"]


@dataclass(frozen=True, slots=True, order=True)
class Suspect:
    """The first tensor of a rank that holds what is no number, or, where none does, an infinity.

    `order`: NaN, and infinities of parameters, before other infinities (masks hold such); forward before backward;
    stages in the order in which they run; then the instruction.
    """

    order: tuple[bool, bool, int, int]
    text: str


def foremost(found: Mapping[int, Suspect | None]) -> str:
    """The first one of all ranks, in words; nothing where none was found."""
    there = [(s, rank) for rank, s in found.items() if s is not None]
    if not there:
        return ""
    suspect, rank = min(there)
    return f"; the first tensor that is not finite is {suspect.text}, on rank {rank}"


def first_not_finite(stage: Stage, feed: Feed) -> Suspect | None:
    """Runs a step, which all ranks do together, and returns this rank's first suspect."""
    found: list[Suspect] = []
    seen: set[bool] = set()  # whether it was no number
    count = 0

    def watch(i: StageInstruction) -> None:
        nonlocal count
        count += 1
        backward = isinstance(i, Run) and i.backward
        if isinstance(i, Load):
            keys: list[Key] = [(i.tensor, i.layout)]
            what = str(stage.graph.tensors[i.tensor].role)
        elif isinstance(i, Run):
            b = stage.bound[i.op]
            keys = [k for k in (b.given if backward else b.outputs) if k is not None]
            what = f"of {b.op.type} {i.op}"
        else:
            return
        for cell in (*stage.cells.values(), *stage.once.values()):
            store = cell.gradients if backward else cell.values
            for key in keys:
                value = store.get(key)
                nan = None if value is None else _kind(value)
                if nan is None:
                    continue
                nan = nan or what == Role.PARAMETER  # no mask is one
                if nan in seen:
                    continue
                seen.add(nan)
                number = -stage.number if backward else stage.number
                part = f", micro-batch {cell.micro_batch}" if cell.micro_batch > 0 else ""
                text = f"{'the gradient of ' if backward else ''}{key[0]} ({what}{part})"
                found.append(Suspect((not nan, backward, number, count), text))

    taken = stage.step(feed, watch)
    for name, gradient in taken.gradients.items():
        if (nan := _kind(gradient)) is not None and nan not in seen:
            seen.add(nan)
            text = f"the gradient of {name} (parameter), summed over ranks and micro-batches"
            found.append(Suspect((not nan, True, 0, count), text))
    return min(found, default=None)


def _kind(value: Tensor) -> bool | None:
    """True: it holds what is no number; False: infinities; None: neither."""
    if not value.is_floating_point() or bool(torch.isfinite(value).all()):
        return None
    return bool(torch.isnan(value).any())
