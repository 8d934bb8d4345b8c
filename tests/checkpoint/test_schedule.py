"""Schedules between live devices: every rank gets its pieces, each element once, and no placement moves less."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest

import planner
from planner.checkpoint.layouts import Layouts, Spread, layouts_of_plan
from planner.checkpoint.moving import TransferPlan, transfer_plan
from planner.errors import InputError, UsageError
from planner.ir import DeviceMesh, Layout
from tests.checkpoint.layouts import Whole, random_layouts, random_tensors

SHAPES = {"a": (8, 6), "b": (12,), "c": (4, 3, 2)}


def carried_out(plan: TransferPlan, before: Layouts, weights: Whole) -> dict[int, Whole]:
    """Rank of the target → its tensors, whole-shaped with NaN where nothing came, by messages alone."""
    held: dict[int, Whole] = {}
    for device in range(plan.devices):
        for name, value in weights.items():
            mine = before.parameters[name].pieces(value.shape).of(device)
            seen = np.full(value.shape, np.nan, value.dtype)
            for low, high in zip(mine.boxes.starts, mine.boxes.stops, strict=True):
                at = tuple(slice(a, b) for a, b in zip(low, high, strict=True))
                seen[at] = value[at]
            held.setdefault(device, {})[name] = seen
    out: dict[int, Whole] = {}
    for rank, device in enumerate(plan.schedule.placement.tolist()):
        out[rank] = {n: np.full(v.shape, np.nan, v.dtype) for n, v in weights.items()}
        for m in plan.schedule.groups:
            for name in m.group.names:
                for k in np.flatnonzero(m.receivers == device):
                    at = tuple(slice(a, b) for a, b in zip(m.boxes.starts[k], m.boxes.stops[k], strict=True))
                    assert np.isnan(out[rank][name][at]).all(), "came twice"
                    out[rank][name][at] = held[int(m.senders[k])][name][at]
    return out


@pytest.mark.parametrize("seed", range(80))
def test_messages_bring_every_rank_its_pieces_and_none_twice(seed: int) -> None:
    rng = random.Random(seed)
    before, after = random_layouts(rng, SHAPES), random_layouts(rng, SHAPES)
    weights, _ = random_tensors(rng, SHAPES)
    plan = transfer_plan(before, after, optimizer="sgd")
    found = carried_out(plan, before, weights)
    for rank in range(after.ranks):
        for name, value in weights.items():
            pieces = after.parameters[name].pieces(value.shape).of(rank)
            expected = np.full(value.shape, np.nan, value.dtype)
            for low, high in zip(pieces.boxes.starts, pieces.boxes.stops, strict=True):
                at = tuple(slice(a, b) for a, b in zip(low, high, strict=True))
                expected[at] = value[at]
            np.testing.assert_array_equal(found[rank][name], expected)


def _bytes_in_place(before: Layouts, after: Layouts, device: int, rank: int) -> int:
    out = 0
    for name, shape in SHAPES.items():
        marks = []
        for lays, holder in ((before, device), (after, rank)):
            seen = np.zeros(shape, bool)
            mine = lays.parameters[name].pieces(shape).of(holder)
            for low, high in zip(mine.boxes.starts, mine.boxes.stops, strict=True):
                seen[tuple(slice(a, b) for a, b in zip(low, high, strict=True))] = True
            marks.append(seen)
        out += 4 * int((marks[0] & marks[1]).sum())
    return out


@pytest.mark.parametrize("seed", range(40))
def test_no_placement_moves_fewer_bytes(seed: int) -> None:
    rng = random.Random(seed)
    while True:
        before, after = random_layouts(rng, SHAPES), random_layouts(rng, SHAPES)
        if max(before.ranks, after.ranks) <= 8:
            break
    plan = transfer_plan(before, after, optimizer="sgd")
    held = [_bytes_in_place(before, after, d, r) for d in range(plan.devices) for r in range(after.ranks)]
    table = np.array(held).reshape(plan.devices, after.ranks)
    every = np.array(list(itertools.permutations(range(plan.devices), after.ranks)))
    best = int(table[every, np.arange(after.ranks)].sum(axis=1).max())
    assert plan.schedule.kept_bytes == best
    assert plan.schedule.moved_bytes == plan.held_bytes - best  # the lower bound of geometry for this placement
    sent, received = plan.schedule.per_device(plan.devices)
    assert sent.sum() == received.sum() == plan.schedule.moved_bytes


def test_the_same_plan_moves_nothing() -> None:
    lays = random_layouts(random.Random(5), SHAPES)
    assert transfer_plan(lays, lays).schedule.moved_bytes == 0


def test_holders_of_a_box_take_turns() -> None:
    mesh, one = DeviceMesh.of(4), Layout.replicated(1)
    before = Layouts("before", 4, {"a": Spread(one, mesh, (0,), (1024,))})
    after = Layouts("after", 8, {"a": Spread(one, DeviceMesh.of(8), (0,), (1024,))})
    plan = transfer_plan(before, after, optimizer="sgd")
    sent, received = plan.schedule.per_device(8)
    assert plan.schedule.moved_bytes == 4 * 4096
    assert sorted(received.tolist()) == [0] * 4 + [4096] * 4
    assert sorted(sent.tolist()) == [0] * 4 + [4096] * 4


def test_what_only_lost_ranks_held_is_named_and_the_rest_comes_from_replicas() -> None:
    mesh = DeviceMesh.of(2, 2)
    before = Layouts("before", 4, {"kept": Spread(Layout((("y",),)), mesh, (0,), (8,)),
                                   "gone": Spread(Layout((("x", "y"),)), mesh, (0,), (8,))})  # fmt: skip
    after = Layouts("after", 2, {n: Spread(Layout((("x",),)), DeviceMesh.of(2), (0,), (8,)) for n in ("kept", "gone")})
    plan = transfer_plan(before, after, optimizer="momentum", lost=[1])
    assert plan.lost == ("gone", "gone.momentum_buffer")
    assert 1 not in plan.schedule.placement
    assert plan.schedule.moved_bytes == 16  # ranks 0 and 3 have a half each; rank 2 brings what it had of the other
    (boxes,) = {(b.starts.tolist()[0][0], b.stops.tolist()[0][0]) for b in plan.schedule.lost.values()}
    assert boxes == (2, 4)


def test_devices_that_are_left_count_anew_and_tensors_of_one_kind_go_together() -> None:
    mesh, one = DeviceMesh.of(4), Layout((("x",),))
    lays = Layouts("before", 4, {n: Spread(Layout.replicated(1), mesh, (0,), (8,)) for n in "abc"})
    after = Layouts("after", 2, {n: Spread(one, DeviceMesh.of(2), (0,), (8,)) for n in "abc"})
    schedule = transfer_plan(lays, after, optimizer="sgd", lost=[0, 2]).schedule
    (left,) = {tuple(sorted(schedule.placement.tolist()))}
    assert left == (1, 3)
    again = schedule.chosen({"a": ("float32", 4), "c": ("float16", 2)}).among(schedule.placement.tolist())
    assert again.placement.tolist() == [0, 1]
    assert [(m.group.names, m.group.itemsize) for m in again.groups] == [(("a",), 4), (("c",), 2)]
    for m in again.groups:
        assert {*m.senders.tolist(), *m.receivers.tolist()} == {0, 1}
        assert set(m.group.before.holders.tolist()) == {0, 1}
    assert again.kept_bytes == 8 * 4 + 8 * 2


def test_plans_of_different_models_are_refused() -> None:
    lays = random_layouts(random.Random(5), SHAPES)
    other = random_layouts(random.Random(5), {**SHAPES, "d": (3,)})
    with pytest.raises(InputError, match="has no parameter d"):
        transfer_plan(lays, other)
    with pytest.raises(UsageError, match="placement"):
        transfer_plan(lays, lays, placement=[0])


@pytest.mark.parametrize(("before", "after", "most"), [
    ((8, "megatron:tp=4,dp=2,zero=0"), (8, "fsdp"), 0.47),
    # Every device keeps a quarter of the half of the layers that it needs, where ranks divide every matrix: nothing
    # moves less than a half.
    ((4, "megatron:tp=4"), (4, "megatron:tp=2,pp=2"), 0.5),
])  # fmt: skip
def test_a_llama_moves_as_little_as_its_layouts_admit(
    before: tuple[int, str], after: tuple[int, str], most: float
) -> None:
    model = planner.build("llama", layers=4, hidden=512, heads=8, ffn=1376, vocab=8000, seq=128, batch=8)
    plans = [planner.search(model, devices=d, hardware="a100-80", strategy=s) for d, s in (before, after)]
    found = transfer_plan(*(layouts_of_plan(p.document, "a plan") for p in plans))
    assert found.schedule.moved_bytes <= most * found.state_bytes
