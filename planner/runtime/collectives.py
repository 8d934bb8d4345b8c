"""Collectives by torch.distributed: the steps of redistributions, and the sums inside operators.

No step writes into its operand: values are views of each other, and autograd may hold them.  A bucket is made for its
collective alone, and may be reduced where it lies.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

from planner.ir import DeviceMesh
from planner.redistribute import RedistributionStep, StepKind, folded, permute_sources
from planner.redistribute.steps import FREE
from planner.runtime.workers import Context

__all__ = [
    "TOGETHER",
    "Inside",
    "all_gather",
    "all_reduce",
    "all_to_all",
    "all_to_all_v",
    "apply",
    "apply_together",
    "permute",
    "reduce_scatter",
]

# Kinds of steps that several tensors may take by one collective.
TOGETHER = frozenset({StepKind.ALL_REDUCE, StepKind.REDUCE_SCATTER, StepKind.ALL_GATHER})

# Reductions that ranks carry out by themselves on what the others send, in one message from each: up to so many bytes
# of a value, and so many more to send than round a ring, gloo's ring takes longer for the number of its messages.
_ADDED: Mapping[str, Callable[[Tensor, Tensor], Tensor]] = {
    "sum": torch.add, "max": torch.maximum, "min": torch.minimum
}  # fmt: skip
_AT_ONCE_BYTES, _MORE_BYTES = 1 << 21, 1 << 18

# Functional collectives: what a step runs is the same whether it is interpreted or traced and compiled.
_FUNCTIONAL: Any = torch.ops._c10d_functional


def _done(value: Tensor) -> Tensor:
    found: Tensor = _FUNCTIONAL.wait_tensor(value)
    return found


def all_reduce(value: Tensor, group: Any, reduction: str = "sum", *, ours: bool = False) -> Tensor:
    """`value` reduced over the group, to the same bits on every rank.

    ours  whether nobody else reads the value, whose memory the result then takes; a graph that is traced says so by
          itself, since it shows who reads what
    """
    ranks = group.size()
    more = (ranks - 1) * (1 - 2 / ranks) * value.nbytes  # than round a ring
    few = value.nbytes <= _AT_ONCE_BYTES and more <= _MORE_BYTES
    if value.device.type == "cpu" and reduction in _ADDED and ranks > 1 and few:
        others = value.expand(ranks - 1, *value.shape).reshape(-1)
        return _added(value, _from_others(others, value.numel(), group), group.rank(), _ADDED[reduction])
    reduced = _FUNCTIONAL.all_reduce_ if ours and not isinstance(value, FakeTensor) else _FUNCTIONAL.all_reduce
    return _done(reduced(value.contiguous(), reduction, group.group_name))


def all_gather(value: Tensor, ranks: int, dim: int, group: Any) -> Tensor:
    """Shards joined along `dim`."""
    if value.device.type == "cpu" and ranks == 2:
        (other,) = _from_others(value.reshape(-1), value.numel(), group)
        pair = (value, other.view(value.shape))
        return torch.cat(pair if group.rank() == 0 else pair[::-1], dim)
    if value.device.type == "cpu":
        # Gloo's own passes the pieces on round the ring; its all-to-all sends each straight to where it is read.
        parts = value.expand(ranks, *value.shape).contiguous()
        return _joined(_exchanged(parts, group), dim)
    parts = _done(_FUNCTIONAL.all_gather_into_tensor(value.contiguous()[None], ranks, group.group_name))
    return _joined(parts, dim)


def reduce_scatter(value: Tensor, ranks: int, dim: int, group: Any, reduction: str = "sum") -> Tensor:
    """This rank's part along `dim` of `value` reduced over the group."""
    if value.device.type == "cpu" and ranks == 2 and reduction == "sum":
        both = value.chunk(2, dim)
        own, sent = both[group.rank()], both[1 - group.rank()]
        (other,) = _from_others(sent.reshape(-1), own.numel(), group)
        return own + other.view(own.shape)
    parts = _parts(value, ranks, dim)
    if value.device.type == "cpu" and reduction == "sum":
        return _exchanged(parts, group).sum(0)  # gloo's own reduces everything everywhere
    return _done(_FUNCTIONAL.reduce_scatter_tensor(parts, reduction, ranks, group.group_name)).squeeze(0)


def _from_others(sent: Tensor, each: int, group: Any) -> Tensor:
    """[ranks - 1, each]: what every other rank sends this one, in their order; `sent`: `each` elements for each."""
    split = [0 if rank == group.rank() else each for rank in range(group.size())]
    return _exchange(sent, split, split, group).view(group.size() - 1, each)


def _added(value: Tensor, others: Tensor, rank: int, reduce: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    """Own and others' values reduced in the order of ranks, so that all find the same."""
    found = [other.view(value.shape) for other in others]
    found.insert(rank, value)
    total = found[0]
    for next_one in found[1:]:
        total = reduce(total, next_one)
    return total


def all_to_all(value: Tensor, ranks: int, from_dim: int, to_dim: int, group: Any) -> Tensor:
    """Split along `to_dim`, whole along `from_dim`."""
    return _joined(_exchanged(_parts(value, ranks, to_dim), group), from_dim)


def all_to_all_v(value: Tensor, dim: int, send: Sequence[int], receive: Sequence[int], group: Any) -> Tensor:
    """Parts of known sizes along `dim`, by receiver and by sender."""
    sent = value.movedim(dim, 0).contiguous()
    row = math.prod(sent.shape[1:]) * sent.element_size()
    # As bytes: gloo exchanges only some of the element types.
    out = _exchange(sent.reshape(-1).view(torch.uint8), [n * row for n in send], [n * row for n in receive], group)
    return out.view(sent.dtype).reshape(sum(receive), *sent.shape[1:]).movedim(0, dim)


def _exchange(sent: Tensor, send: Sequence[int], receive: Sequence[int], group: Any) -> Tensor:
    """So many rows to each rank, and from each."""
    return _done(_FUNCTIONAL.all_to_all_single(sent, list(receive), list(send), group.group_name))


def _exchanged(parts: Tensor, group: Any) -> Tensor:
    """[ranks, …]: part i of every rank, in their order, on rank i."""
    return _exchange(parts, [1] * len(parts), [1] * len(parts), group)


def _parts(value: Tensor, ranks: int, dim: int) -> Tensor:
    """[ranks, …]: the equal parts along `dim`, one after the other in memory."""
    return value.unflatten(dim, (ranks, value.shape[dim] // ranks)).movedim(dim, 0).contiguous()


def _joined(parts: Tensor, dim: int) -> Tensor:
    """The inverse of `_parts`."""
    return parts.movedim(0, dim).flatten(dim, dim + 1)


def permute(value: Tensor, source: int, targets: Sequence[int], ranks: int, group: Any) -> Tensor:
    """Sends `value` to the places `targets` in the group and receives from `source`."""
    row = value.contiguous().reshape(-1).view(torch.uint8)
    send, receive = [0] * ranks, [0] * ranks
    for t in targets:
        send[t] = row.numel()
    receive[source] = row.numel()
    sent = torch.cat([row] * len(targets)) if len(targets) != 1 and targets else row if targets else row[:0]
    return _exchange(sent, send, receive, group).view(value.dtype).reshape(value.shape)


def apply(step: RedistributionStep, value: Tensor, mesh: DeviceMesh, context: Context) -> Tensor:
    """This rank's shard after `step`; the context's ledger is told."""
    if step.kind not in FREE:
        ranks = mesh.size(step.axes) if step.kind in (StepKind.ALL_GATHER, StepKind.ALL_TO_ALL) else 1
        context.ledger.add(context.ledger.steps, str(step.kind), ranks * value.nbytes)
    if not step.in_parts or step.kind is StepKind.PERMUTE:
        return _KINDS[step.kind](step, value, mesh, context)
    view, plain, counts = step.unfolded(tuple(value.shape))
    after = _KINDS[step.kind](plain, value.reshape(view), mesh, context)
    return after.reshape(folded(after.shape, counts))


def apply_together(
    steps: Sequence[RedistributionStep], values: list[Tensor], mesh: DeviceMesh, context: Context
) -> list[Tensor]:
    """What `apply` gives for each, of tensors of one type by one collective: all steps are of one kind (see `TOGETHER`)
    over the same axes, and none splits a dimension in parts.  `values` is emptied, so that what is sent is held once.
    """
    kind, axes = steps[0].kind, steps[0].axes
    group, ranks = context.group(mesh, axes)
    count = len(ranks)
    size = sum(v.nbytes for v in values) * (count if kind is StepKind.ALL_GATHER else 1)
    context.ledger.add(context.ledger.steps, str(kind), size)
    if kind is StepKind.ALL_REDUCE:
        shapes = [v.shape for v in values]
        flat = torch.cat([v.reshape(-1) for v in values])
        values.clear()
        pieces = torch.split(all_reduce(flat, group, _reduction(steps[0]), ours=True), [s.numel() for s in shapes])
        return [p.view(s) for p, s in zip(pieces, shapes, strict=True)]
    if kind is StepKind.REDUCE_SCATTER:
        parts = [_parts(v, count, s.dim) for s, v in zip(steps, values, strict=True)]
        values.clear()
        shapes = [p.shape[1:] for p in parts]
        if parts[0].device.type == "cpu" and count == 2:
            return _scattered_by_pair(parts, group)
        rows = torch.cat([p.reshape(count, -1) for p in parts], 1)
        parts.clear()
        pieces = torch.split(reduce_scatter(rows, count, 0, group).reshape(-1), [s.numel() for s in shapes])
        return [p.view(s) for p, s in zip(pieces, shapes, strict=True)]
    shapes = [v.shape for v in values]
    flat = torch.cat([v.reshape(-1) for v in values])
    values.clear()
    rows = [torch.split(row, [s.numel() for s in shapes]) for row in _rows(flat, count, group)]
    # Each apart: a view would keep the whole bucket, and lie otherwise in another one.
    pieces = zip(zip(*rows, strict=True), shapes, steps, strict=True)
    return [torch.cat([p.view(s) for p in parts], step.dim) for parts, s, step in pieces]


def _rows(flat: Tensor, ranks: int, group: Any) -> Sequence[Tensor]:
    """What every rank has, in their order."""
    if flat.device.type == "cpu" and ranks == 2:
        (other,) = _from_others(flat, flat.numel(), group)
        return (flat, other) if group.rank() == 0 else (other, flat)
    return all_gather(flat[None], ranks, 0, group).unbind(0)


def _scattered_by_pair(parts: list[Tensor], group: Any) -> list[Tensor]:
    """Of each [2, …] this rank's part of the sum with the other rank's.  `parts` is emptied."""
    mine = group.rank()
    sent = torch.cat([p[1 - mine].reshape(-1) for p in parts])
    own = [p[mine] for p in parts]
    parts.clear()
    (others,) = _from_others(sent, sent.numel(), group)
    pieces = torch.split(others, [p.numel() for p in own])
    return [a + b.view(a.shape) for a, b in zip(own, pieces, strict=True)]


def _all_reduce(step: RedistributionStep, value: Tensor, mesh: DeviceMesh, context: Context) -> Tensor:
    group, _ = context.group(mesh, step.axes)
    return all_reduce(value, group, _reduction(step))


def _reduce_scatter(step: RedistributionStep, value: Tensor, mesh: DeviceMesh, context: Context) -> Tensor:
    group, ranks = context.group(mesh, step.axes)
    return reduce_scatter(value, len(ranks), step.dim, group, _reduction(step))


def _all_gather(step: RedistributionStep, value: Tensor, mesh: DeviceMesh, context: Context) -> Tensor:
    group, ranks = context.group(mesh, step.axes)
    return all_gather(value, len(ranks), step.dim, group)


def _all_to_all(step: RedistributionStep, value: Tensor, mesh: DeviceMesh, context: Context) -> Tensor:
    group, ranks = context.group(mesh, step.axes)
    return all_to_all(value, len(ranks), step.dim, step.to_dim, group)


def _slice(step: RedistributionStep, value: Tensor, mesh: DeviceMesh, context: Context) -> Tensor:
    (axis,) = step.axes
    return value.chunk(mesh.sizes[axis], dim=step.dim)[mesh.coordinates(context.place)[axis]]


def _to_partial(step: RedistributionStep, value: Tensor, mesh: DeviceMesh, context: Context) -> Tensor:
    (axis,) = step.axes
    return value if mesh.coordinates(context.place)[axis] == 0 else torch.zeros_like(value)


def _permute(step: RedistributionStep, value: Tensor, mesh: DeviceMesh, context: Context) -> Tensor:
    """Every rank receives one whole shard from the rank that held its new region, replicas from the nearest rank."""
    sources, place = permute_sources(step, mesh), context.place
    group, _ = context.group(mesh, mesh.names)
    return permute(value, sources[place], [r for r, s in enumerate(sources) if s == place], mesh.devices, group)


def _reduction(step: RedistributionStep) -> str:
    return str(next(op for a, op in step.source.partial if a in step.axes))


_KINDS: dict[StepKind, Callable[[RedistributionStep, Tensor, DeviceMesh, Context], Tensor]] = {
    StepKind.ALL_REDUCE: _all_reduce,
    StepKind.REDUCE_SCATTER: _reduce_scatter,
    StepKind.ALL_GATHER: _all_gather,
    StepKind.ALL_TO_ALL: _all_to_all,
    StepKind.PERMUTE: _permute,
    StepKind.SLICE: _slice,
    StepKind.TO_PARTIAL: _to_partial,
}


@dataclass(frozen=True, slots=True)
class Inside:
    """Collectives over the ranks that split a factor of an operator; `split` names the mesh axes of each."""

    context: Context
    mesh: DeviceMesh
    split: Mapping[str, Sequence[str]]

    def group(self, factor: str) -> tuple[Any, tuple[int, ...]]:
        return self.context.group(self.mesh, tuple(self.split[factor]))

    def reduced(self, value: Tensor, factor: str, reduction: str = "sum") -> Tensor:
        """Reduced over the ranks that split `factor`; no gradient passes."""
        self.tell("all_reduce", value.nbytes)
        return all_reduce(value.detach(), self.group(factor)[0], reduction)

    def summed(self, value: Tensor, factor: str) -> Tensor:
        """The sum, from which each rank computes its own part of a result split by `factor`: what the ranks find as
        gradients of the sum adds up."""
        return _Sum.apply(value, self, factor, True)

    def total(self, value: Tensor, factor: str) -> Tensor:
        """The sum, of which every rank makes the same whole result: its gradient is known to all alike."""
        return _Sum.apply(value, self, factor, False)

    def exchanged(self, value: Tensor, factor: str, dim: int, send: Sequence[int], receive: Sequence[int]) -> Tensor:
        """Parts along `dim` that go to, and come from, each rank; their gradients go back."""
        found: Tensor = _Exchange.apply(value, self, factor, dim, send, receive)
        return found

    def tell(self, kind: str, size: int) -> None:
        """Notes a collective of this operator in the ledger."""
        self.context.ledger.add(self.context.ledger.inside, kind, size)


class _Sum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, value: Tensor, inside: Inside, factor: str, gradients_add: bool) -> Tensor:
        ctx.inside, ctx.factor, ctx.gradients_add = inside, factor, gradients_add
        return inside.reduced(value, factor)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        found = ctx.inside.reduced(gradient, ctx.factor) if ctx.gradients_add else gradient
        return found, None, None, None


class _Exchange(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, value: Tensor, inside: Inside, factor: str, dim: int, send: Sequence[int], receive: Sequence[int]
    ) -> Tensor:
        ctx.returned = inside, factor, dim, receive, send  # what came from a rank goes back to it
        inside.tell("all_to_all", value.nbytes)
        return all_to_all_v(value, dim, send, receive, inside.group(factor)[0])

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None, None, None]:
        inside, factor, dim, send, receive = ctx.returned
        inside.tell("all_to_all", gradient.nbytes)
        return all_to_all_v(gradient, dim, send, receive, inside.group(factor)[0]), None, None, None, None, None
