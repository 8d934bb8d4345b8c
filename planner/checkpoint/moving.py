"""The state of a training between live devices, from one plan to another: of plans alone, without weights."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from planner.checkpoint.layouts import Layouts, Spread
from planner.errors import InputError, UsageError
from planner.transfer.pieces import Pieces
from planner.transfer.schedule import Group, Schedule, in_place, placed, scheduled

__all__ = ["OPTIMIZERS", "TransferPlan", "transfer_plan"]

OPTIMIZERS: Final = {"adam": ("exp_avg", "exp_avg_sq"), "momentum": ("momentum_buffer",), "sgd": ()}  # their slots


@dataclass(frozen=True, slots=True)
class TransferPlan:
    """A schedule, with what it is to be compared with: bytes of all parameters and state once (`state_bytes`), and of
    what all ranks of the target hold (`held_bytes`)."""

    schedule: Schedule
    devices: int
    state_bytes: int
    held_bytes: int

    @property
    def lost(self) -> tuple[str, ...]:
        """Tensors of which no device has some part, by name."""
        return tuple(self.schedule.lost)

    def document(self) -> dict[str, Any]:
        """For a file: messages by group of tensors that move alike."""
        s = self.schedule
        sent, received = s.per_device(self.devices)
        return {
            "schema": 1,
            "devices": self.devices,
            "placement": s.placement.tolist(),
            "state_bytes": self.state_bytes,
            "held_bytes": self.held_bytes,
            "kept_bytes": s.kept_bytes,
            "moved_bytes": s.moved_bytes,
            "most_sent_bytes": int(sent.max(initial=0)),
            "most_received_bytes": int(received.max(initial=0)),
            "lost": {
                name: [
                    {"start": low.tolist(), "stop": high.tolist()} for low, high in zip(b.starts, b.stops, strict=True)
                ]
                for name, b in s.lost.items()
            },
            "groups": [
                {
                    "tensors": list(m.group.names),
                    "shape": list(m.group.before.shape),
                    "itemsize": m.group.itemsize,
                    "messages": [
                        {"from": int(a), "to": int(b), "start": low.tolist(), "stop": high.tolist()}
                        for a, b, low, high in zip(m.senders, m.receivers, m.boxes.starts, m.boxes.stops, strict=True)
                        if a != b
                    ],
                }
                for m in s.groups
            ],
        }


def transfer_plan(
    before: Layouts,
    after: Layouts,
    *,
    optimizer: str = "adam",
    itemsize: int = 4,
    slot_itemsize: int = 4,
    lost: Collection[int] = (),
    placement: Sequence[int] | None = None,
) -> TransferPlan:
    """The messages that turn what the ranks of `before` hold into what those of `after` need.

    Args:
        optimizer: adam, momentum or sgd: the slots that each parameter has.
        itemsize: bytes of an element of a parameter, and `slot_itemsize` of a slot's.
        lost: ranks of `before` that are gone: they hold nothing, and nothing is put on them.
        placement: the device of each rank of `after`; by default the one that moves the fewest bytes.

    Raises:
        InputError: the plans are of different models.
        UsageError: more ranks than devices are left.
    """
    devices = max(before.ranks, after.ranks + len(set(lost)))
    left = [d for d in range(devices) if d not in set(lost)]
    groups = _groups(before, after, OPTIMIZERS[optimizer], itemsize, slot_itemsize, set(lost))
    if placement is None:
        where = placed(in_place(groups, devices, after.ranks), left)
    else:
        where = np.asarray(placement, np.int64)
        if len(set(placement)) != after.ranks or not set(placement) <= set(left):
            raise UsageError(
                f"placement: expected {after.ranks} different devices of those that are left, found {placement}"
            )
    schedule = scheduled(groups, where)
    state = sum(int(np.prod(g.before.shape)) * g.itemsize * len(g.names) for g in groups)
    held = sum(int(g.after.boxes.volumes.sum()) * g.itemsize * len(g.names) for g in groups)
    return TransferPlan(schedule, devices, state, held)


def _groups(
    before: Layouts, after: Layouts, slots: Sequence[str], itemsize: int, slot_itemsize: int, lost: set[int]
) -> list[Group]:
    """Tensors that lie alike, together."""
    alike: dict[tuple[Spread, Spread, tuple[int, ...], int], list[str]] = {}
    for name, there in after.parameters.items():
        here = before.parameters.get(name)
        if here is None:
            raise InputError(
                f"{before.said}: has no parameter {name}, which {after.said} lays out; give plans of one model"
            )
        shape = here.shape or there.shape
        if shape is None or there.shape not in (None, shape):
            raise InputError(
                f"parameter {name}: {before.said} and {after.said} have no shape in common; give plan.json of one model"
            )
        alike.setdefault((here, there, shape, itemsize), []).append(name)
        for slot in slots:
            key = (before.of_slot(name), after.of_slot(name), shape, slot_itemsize)
            alike.setdefault(key, []).append(f"{name}.{slot}")
    return [
        Group(tuple(names), _of(here.pieces(shape), lost), there.pieces(shape), size)
        for (here, there, shape, size), names in alike.items()
    ]


def _of(pieces: Pieces, lost: set[int]) -> Pieces:
    return pieces.chosen(~np.isin(pieces.holders, list(lost))) if lost else pieces
