"""Operators without a torch function: the numpy kernels that prove plans, with the same collectives between ranks.

They keep every plan executable; they are not fast.  Tensors pass through the host.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from planner.ir import Op
from planner.kernels import (
    AllGather,
    AllReduce,
    Exchange,
    ShardContext,
    SpmdBackward,
    run_local,
    spmd_backward,
    spmd_forward,
)
from planner.kernels.gradients import vjp
from planner.kernels.shards import Array
from planner.rules.rule import Rule
from planner.runtime.collectives import Inside

__all__ = ["NumpyCall", "run_with_numpy"]

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class NumpyCall:
    """An operator that was run on the host, and what its backward reads."""

    op: Op
    inputs: Sequence[Array | None]
    outputs: Sequence[Array | None]
    kernel: SpmdBackward | None
    place: ShardContext
    inside: Inside

    def backward(self, gradients: Sequence[Tensor | None], wanted: Sequence[bool]) -> list[Tensor | None]:
        """Gradients of the operands that are `wanted`, on the rank's device."""
        given = [_host(g) for g in gradients]
        if self.kernel is None:
            found = vjp(self.op, self.inputs, self.outputs[: len(self.op.outputs)], given, wanted)
        else:
            routine = self.kernel(self.op, self.inputs, self.outputs, given, wanted, self.place)
            found = _drive(routine, self.inside)
        return [_back(g, self.inside) for g in found]


def run_with_numpy(
    op: Op,
    rule: Rule,
    inputs: Sequence[Tensor | None],
    shapes: Sequence[Shape | None],
    place: ShardContext,
    inside: Inside,
) -> tuple[list[Tensor | None], NumpyCall]:
    """Local results of the operator, and the call for its backward."""
    host = [_host(x) for x in inputs]
    routine = spmd_forward(op, rule, inside.split)
    if routine is None:
        found = run_local(op, host, output_shapes=shapes)
        call = NumpyCall(op, host, found, None, place, inside)
    else:
        found = _drive(routine(op, host, place), inside)
        backward = spmd_backward(op, rule, inside.split) if rule.differentiable else None
        call = NumpyCall(op, host, found, backward, place, inside)
    return [_back(y, inside) for y in found[: len(op.outputs)]], call


def _drive(routine: Any, inside: Inside) -> list[Array | None]:
    """Runs a kernel that yields its collectives, carrying them out among the ranks."""
    value: Any = None
    try:
        while True:
            value = _meet(routine.send(value), inside)
    except StopIteration as stop:
        return cast("list[Array | None]", stop.value)


def _meet(call: AllReduce | AllGather | Exchange, inside: Inside) -> Array | tuple[Array | None, ...]:
    group, ranks = inside.group(call.factor)
    if isinstance(call, AllReduce):
        reduced = inside.reduced(_to(call.value, inside), call.factor, call.reduction)
        return cast(Array, reduced.cpu().numpy())
    sent = tuple(call.pieces) if isinstance(call, Exchange) else call.value
    inside.tell("all_gather" if isinstance(call, AllGather) else "all_to_all", _size(sent) * len(ranks))
    received: list[Any] = [None] * len(ranks)
    # Shapes differ from rank to rank and are not known to the receiver.
    dist.all_gather_object(received, sent, group=group)
    if isinstance(call, AllGather):
        return tuple(received)
    return tuple(pieces[ranks.index(inside.context.rank)] for pieces in received)


def _size(sent: object) -> int:
    pieces = sent if isinstance(sent, tuple) else (sent,)
    return sum(int(p.nbytes) for p in pieces if isinstance(p, np.ndarray))


def _host(x: Tensor | None) -> Array | None:
    return None if x is None else cast(Array, x.detach().cpu().numpy())


def _to(x: Array, inside: Inside) -> Tensor:
    return torch.from_numpy(np.array(x, copy=True)).to(inside.context.device)


def _back(x: Array | None, inside: Inside) -> Tensor | None:
    return None if x is None else _to(np.asarray(x), inside)
