"""From one layout to another between live devices: who sends which box of which tensor to whom.

Every target rank is put on a device, and gets what the device does not hold already, each element once, from one of the
devices that have it.  So the bytes that move are what the targets hold less what lies in place, and the placement that
moves fewest is the assignment of ranks to devices with the most bytes in place: a flow of least cost, which is exact.
Senders of a box that several hold take turns.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from planner.transfer.overlaps import Overlaps, minus, overlaps
from planner.transfer.pieces import Boxes, Integers, Pieces

__all__ = ["Group", "Messages", "Schedule", "in_place", "placed", "scheduled"]


@dataclass(frozen=True, slots=True, eq=False)
class Group:
    """Tensors of one shape and type that lie alike before and alike after: `names`, and bytes of an element.

    Holders of `before` are devices, of `after` ranks.  Pieces of one holder have nothing in common, and those of two
    holders are equal or have nothing in common.
    """

    names: tuple[str, ...]
    before: Pieces
    after: Pieces
    itemsize: int


@dataclass(frozen=True, slots=True, eq=False)
class Messages:
    """Message k of each of the group's tensors: device `senders[k]` gives `boxes[k]` to device `receivers[k]`; where
    both are one, it stays there.  `lost`: what is needed and no device has."""

    group: Group
    senders: Integers
    receivers: Integers
    boxes: Boxes
    lost: Boxes

    @property
    def bytes(self) -> Integers:
        """Of each message, for all tensors of the group together."""
        return self.boxes.volumes * (self.group.itemsize * len(self.group.names))


@dataclass(frozen=True, slots=True, eq=False)
class Schedule:
    """`placement[r]`: the device on which rank r of the target is."""

    placement: Integers
    groups: tuple[Messages, ...]

    @property
    def lost(self) -> dict[str, Boxes]:
        """Of each tensor the boxes that ranks need and no device has."""
        return {n: m.lost for m in self.groups if len(m.lost) for n in m.group.names}

    @property
    def moved_bytes(self) -> int:
        """Between devices."""
        return sum(int(m.bytes[m.senders != m.receivers].sum()) for m in self.groups)

    @property
    def kept_bytes(self) -> int:
        """Of what stays on its device."""
        return sum(int(m.bytes[m.senders == m.receivers].sum()) for m in self.groups)

    def per_device(self, devices: int) -> tuple[Integers, Integers]:
        """(bytes that each device sends, that it receives)."""
        sent, received = np.zeros(devices, np.int64), np.zeros(devices, np.int64)
        for m in self.groups:
            moves = m.senders != m.receivers
            np.add.at(sent, m.senders[moves], m.bytes[moves])
            np.add.at(received, m.receivers[moves], m.bytes[moves])
        return sent, received

    def chosen(self, kinds: Mapping[str, tuple[Hashable, int]]) -> Schedule:
        """Of the tensors that are named alone, those of a group all of one kind; `kinds`: (type, bytes of an element)
        by name."""
        groups: list[Messages] = []
        for m in self.groups:
            alike: dict[tuple[Hashable, int], list[str]] = {}
            for name in m.group.names:
                if name in kinds:
                    alike.setdefault(kinds[name], []).append(name)
            groups += [
                replace(m, group=replace(m.group, names=tuple(names), itemsize=size))
                for (_, size), names in alike.items()
            ]
        return Schedule(self.placement, tuple(groups))

    def among(self, devices: Sequence[int]) -> Schedule:
        """With devices counted as they stand in `devices`, which are all that hold, give or get anything."""
        number = np.full(max(devices, default=-1) + 1, -1, np.int64)
        number[list(devices)] = np.arange(len(devices))
        groups = []
        for m in self.groups:
            before = m.group.before
            group = replace(m.group, before=replace(before, holders=number[before.holders]))
            groups.append(replace(m, group=group, senders=number[m.senders], receivers=number[m.receivers]))
        return Schedule(number[self.placement], tuple(groups))


def _joint(group: Group) -> tuple[Overlaps, Integers, Integers, Integers, Integers]:
    """(overlaps of distinct boxes, which box each source piece is, …each target piece, first pieces of both)."""
    first_a, which_a = group.before.distinct()
    first_b, which_b = group.after.distinct()
    met = overlaps(group.before.boxes.chosen(first_a), group.after.boxes.chosen(first_b))
    return met, which_a, which_b, first_a, first_b


def _by_box(which: Integers, count: int) -> tuple[Integers, Integers]:
    """(pieces sorted by their box, where those of each box begin, with the end)."""
    order = np.argsort(which, kind="stable")
    return np.asarray(order, np.int64), np.searchsorted(which[order], np.arange(count + 1))


def in_place(groups: Sequence[Group], devices: int, ranks: int) -> Integers:
    """(devices, ranks): bytes that a rank would find on a device."""
    out = np.zeros((devices, ranks), np.int64)
    for g in groups:
        met, which_a, which_b, first_a, first_b = _joint(g)
        order_a, begin_a = _by_box(which_a, len(first_a))
        order_b, begin_b = _by_box(which_b, len(first_b))
        count_a = (begin_a[1:] - begin_a[:-1])[met.left]
        count_b = (begin_b[1:] - begin_b[:-1])[met.right]
        pairs = count_a * count_b
        at = np.repeat(np.arange(len(met)), pairs)
        behind = np.arange(int(pairs.sum())) - np.repeat(np.cumsum(pairs) - pairs, pairs)
        a = g.before.holders[order_a[begin_a[met.left][at] + behind // count_b[at]]]
        b = g.after.holders[order_b[begin_b[met.right][at] + behind % count_b[at]]]
        np.add.at(out, (a, b), met.boxes.volumes[at] * (g.itemsize * len(g.names)))
    return out


def placed(found: Integers, devices: Sequence[int]) -> Integers:
    """The device of each rank so that the most bytes lie in place; `found` as `in_place` gives it.

    `devices`: those that are to be used, at least as many as ranks.  ValueError where they are fewer.
    """
    from ortools.graph.python import min_cost_flow

    ranks = found.shape[1]
    if len(devices) < ranks:
        raise ValueError(f"{ranks} ranks on {len(devices)} devices")
    usable = found[list(devices)]
    # A unit of flow for each rank, through a device where something lies in place, or past all devices at no gain.
    at, rank = np.nonzero(usable)
    source, sink, past = ranks + len(devices), ranks + len(devices) + 1, ranks + len(devices) + 2
    every_rank, every_device = np.arange(ranks), np.arange(len(devices))
    flow = min_cost_flow.SimpleMinCostFlow()

    def add(tails: Integers, heads: Integers, costs: Integers) -> Integers:
        ones = np.ones(len(tails), np.int64)
        return np.asarray(flow.add_arcs_with_capacity_and_unit_cost(tails, heads, ones, costs))

    add(np.full(ranks, source), every_rank, np.zeros(ranks, np.int64))
    chosen = add(rank, ranks + at, -usable[at, rank])
    add(every_rank, np.full(ranks, past), np.zeros(ranks, np.int64))
    add(ranks + every_device, np.full(len(devices), sink), np.zeros(len(devices), np.int64))
    flow.add_arc_with_capacity_and_unit_cost(past, sink, ranks, 0)
    flow.set_node_supply(source, ranks)
    flow.set_node_supply(sink, -ranks)
    status = flow.solve()
    assert status == flow.OPTIMAL, status
    taken = np.asarray(flow.flows(chosen), np.int64) > 0
    out = np.full(ranks, -1, np.int64)
    out[rank[taken]] = np.asarray(devices, np.int64)[at[taken]]
    free = np.setdiff1d(np.asarray(devices, np.int64), out[out >= 0])
    out[out < 0] = free[: int((out < 0).sum())]
    return out


def scheduled(groups: Sequence[Group], placement: Integers) -> Schedule:
    """The messages that put every rank's pieces on its device, as far as a device has them."""
    return Schedule(placement, tuple(_messages(g, placement) for g in groups))


def _messages(group: Group, placement: Integers) -> Messages:
    met, which_a, which_b, first_a, first_b = _joint(group)
    wanted, source = group.after.boxes.chosen(first_b), group.before.boxes.chosen(first_a)
    had = np.zeros(len(first_b), np.int64)
    np.add.at(had, met.right, met.boxes.volumes)
    rest = [minus((wanted.starts[k], wanted.stops[k]), source.chosen(met.left[met.right == k]))
            for k in np.flatnonzero(had < wanted.volumes)]  # fmt: skip
    lost = wanted.chosen(np.empty(0, np.int64)) if not rest else Boxes(
        np.concatenate([r.starts for r in rest]), np.concatenate([r.stops for r in rest])
    )  # fmt: skip
    order_a, begin_a = _by_box(which_a, len(first_a))
    order_b, begin_b = _by_box(which_b, len(first_b))
    # Each overlap once for each rank that needs it.
    needed = (begin_b[1:] - begin_b[:-1])[met.right]
    at = np.repeat(np.arange(len(met)), needed)
    turn = np.arange(len(at)) - np.repeat(np.cumsum(needed) - needed, needed)
    receivers = placement[group.after.holders[order_b[begin_b[met.right][at] + turn]]]
    owners = begin_a[1:] - begin_a[:-1]
    sources = met.left[at]
    held = _holds(group.before, which_a, receivers, sources)
    # Those that hold a box take turns, and go on where the box before it ended.
    sender_at = begin_a[sources] + (np.cumsum(~held) - 1) % owners[sources]
    senders = group.before.holders[order_a[sender_at]]
    return Messages(group, np.where(held, receivers, senders), receivers, met.boxes.chosen(at), lost)


def _holds(before: Pieces, which: Integers, devices: Integers, boxes: Integers) -> np.ndarray:
    """Whether each device has the box."""
    count = int(which.max(initial=0)) + 1
    pairs = np.unique(before.holders * count + which)
    wanted = devices * count + boxes
    at = np.minimum(np.searchsorted(pairs, wanted), max(len(pairs) - 1, 0))
    return np.asarray(pairs[at] == wanted) if len(pairs) else np.zeros(len(wanted), bool)
