"""The state of live processes, from one layout to another: a schedule carried out by sends and receives.

Every process walks the same messages in the same order, and closes a round where the next message would exceed what a
process may have under way; so no two wait for each other.  Beside what it had and what it gets, a process holds at most
the buffers of a round.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from planner.transfer.blocks import blocks
from planner.transfer.pieces import Pieces
from planner.transfer.schedule import Messages, Schedule

__all__ = ["Exchanged", "exchange"]

Box = tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Exchanged:
    """What a process holds afterwards, by name, and the bytes that it sent and received."""

    tensors: dict[str, Tensor]
    sent_bytes: int
    received_bytes: int


@dataclass(slots=True)
class _Piece:
    """A message of one tensor, or a part of one."""

    name: str
    sender: int
    receiver: int
    box: Box
    nbytes: int


def exchange(
    schedule: Schedule,
    tensors: Mapping[str, Tensor],
    *,
    budget: int = 64 << 20,
    group: dist.ProcessGroup | None = None,
    free: bool = False,
) -> Exchanged:
    """Carries out a schedule; the processes of the group call it together, process d with the arrays of device d.

    Args:
        schedule: of `planner.checkpoint.moving.transfer_plan`, over as many devices as the group has processes.
        tensors: by name, this process's arrays under the layouts before; names of which it has nothing are left out.
        budget: bytes that it may have under way in each direction.
        free: drops each tensor from `tensors`, which has to be a dictionary then, once it is sent.

    Returns:
        This process's arrays under the layouts after, in the types and on the device of those before.
    """
    me = dist.get_rank(group)
    ranks = [r for r, device in enumerate(schedule.placement.tolist()) if device == me]
    like = next(iter(tensors.values()), None)
    place = torch.device("cpu") if like is None else like.device
    found: dict[str, Tensor] = {}
    sent = received = 0
    for messages in schedule.groups:
        types = _types(messages, tensors, group)
        for name in messages.group.names:
            for rank in ranks:
                shape = messages.group.after.local_shape(rank)
                if len(messages.group.after.of(rank)):
                    found[name] = torch.empty(shape, dtype=types[name], device=place)
        for one in _rounds(messages, budget):
            s, r = _carried(one, messages, ranks, tensors, found, me, types, place, group)
            sent, received = sent + s, received + r
        if free and isinstance(tensors, MutableMapping):
            for name in messages.group.names:
                tensors.pop(name, None)
    return Exchanged(found, sent, received)


def _types(
    messages: Messages, tensors: Mapping[str, Tensor], group: dist.ProcessGroup | None
) -> dict[str, torch.dtype]:
    """The types of a group's tensors, which a process that holds none of them is told by others."""
    mine = {n: str(tensors[n].dtype) for n in messages.group.names if n in tensors}
    every: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(every, mine, group=group)
    names = {n: t for held in every for n, t in held.items()}
    return {n: getattr(torch, t.removeprefix("torch.")) for n, t in names.items()}


def _rounds(messages: Messages, budget: int) -> Iterator[list[_Piece]]:
    """Messages that are under way together: of no device more bytes than the budget, if it has more than one."""
    under_way: dict[tuple[str, int], int] = {}
    current: list[_Piece] = []
    for piece in _pieces(messages, budget):
        ends = (("out", piece.sender), ("in", piece.receiver))
        moves = piece.sender != piece.receiver
        if moves and current and any(under_way.get(e, 0) + piece.nbytes > budget for e in ends):
            yield current
            current, under_way = [], {}
        for e in ends if moves else ():
            under_way[e] = under_way.get(e, 0) + piece.nbytes
        current.append(piece)
    if current:
        yield current


def _pieces(messages: Messages, budget: int) -> Iterator[_Piece]:
    size = messages.group.itemsize
    for name in messages.group.names:
        rows = zip(messages.senders, messages.receivers, messages.boxes.starts, messages.boxes.stops, strict=True)
        for sender, receiver, low, high in rows:
            for part in blocks([int(b - a) for a, b in zip(low, high, strict=True)], max(1, budget // size)):
                box = tuple((int(a) + p, int(a) + q) for a, (p, q) in zip(low, part, strict=True))
                count = size
                for p, q in part:
                    count *= q - p
                yield _Piece(name, int(sender), int(receiver), box, count)


def _carried(
    pieces: list[_Piece], messages: Messages, ranks: list[int], tensors: Mapping[str, Tensor],
    found: Mapping[str, Tensor], me: int, types: Mapping[str, torch.dtype], place: torch.device,
    group: dist.ProcessGroup | None,
) -> tuple[int, int]:  # fmt: skip
    """(bytes sent, received) of one round."""
    operations: list[dist.P2POp] = []
    arriving: list[tuple[Tensor, Tensor]] = []
    sent = received = 0
    for p in pieces:
        if me not in (p.sender, p.receiver):
            continue
        source = _view(tensors[p.name], messages.group.before, me, p.box) if p.sender == me else None
        target = _view(found[p.name], messages.group.after, ranks[0], p.box) if p.receiver == me else None
        if source is not None and target is not None:
            target.copy_(source)
        elif source is not None:
            operations.append(dist.P2POp(dist.isend, source.contiguous(), _rank(p.receiver, group), group))
            sent += p.nbytes
        elif target is not None:
            buffer = torch.empty(target.shape, dtype=types[p.name], device=place)
            operations.append(dist.P2POp(dist.irecv, buffer, _rank(p.sender, group), group))
            arriving.append((target, buffer))
            received += p.nbytes
    for work in dist.batch_isend_irecv(operations) if operations else ():
        work.wait()
    for target, buffer in arriving:
        target.copy_(buffer)
    return sent, received


def _rank(device: int, group: dist.ProcessGroup | None) -> int:
    """Of a process of the group, among all processes."""
    return device if group is None else dist.get_global_rank(group, device)


def _view(tensor: Tensor, pieces: Pieces, holder: int, box: Box) -> Tensor:
    """The box of the whole tensor in a holder's array."""
    mine = pieces.of(holder)
    for start, stop, inside in zip(mine.boxes.starts, mine.boxes.stops, mine.inside, strict=True):
        if all(a <= low and high <= b for a, b, (low, high) in zip(start, stop, box, strict=True)):
            at = tuple(
                slice(int(i + low - a), int(i + high - a)) for i, a, (low, high) in zip(inside, start, box, strict=True)
            )
            return tensor[at]
    raise AssertionError(f"device {holder} does not hold {box}")
