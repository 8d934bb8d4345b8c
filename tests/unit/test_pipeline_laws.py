"""Laws of simulated pipelines with uneven stages; times are whole numbers, so that all sums are exact."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from planner.cost_models.pipeline import (
    SCHEDULES,
    ChunkTimes,
    Pass,
    PipelineRun,
    longest_path,
    pipeline_seconds,
    simulate,
)

Key = tuple[str, int, int]  # kind, virtual stage, micro-batch
SPLIT = ("zb-h1", "zb-v")


@dataclass(frozen=True)
class Case:
    schedule: str
    chunks: tuple[tuple[ChunkTimes, ...], ...]
    micro_batches: int
    transfers: tuple[float, ...]
    overlapped: bool

    def run(self) -> PipelineRun:
        return simulate(self.schedule, self.chunks, self.micro_batches, self.transfers, overlapped=self.overlapped)

    @property
    def devices(self) -> int:
        return len(self.chunks)

    @property
    def stages(self) -> list[tuple[int, int]]:
        """(device, chunk) of every virtual stage."""
        p, v = len(self.chunks), len(self.chunks[0])
        if self.schedule == "zb-v":
            return [(i, 0) for i in range(p)] + [(i, 1) for i in reversed(range(p))]
        return [(i, c) for c in range(v) for i in range(p)]

    def seconds(self, kind: str, stage: int) -> float:
        device, chunk = self.stages[stage]
        times = self.chunks[device][chunk]
        if self.schedule not in SPLIT:
            return {"F": times.forward_s, "B": times.backward_s}[kind]
        found = {"F": times.forward_s, "B": times.backward_input_s, "W": times.backward_weight_s}[kind]
        assert found is not None
        return found

    def crossing(self, boundary: int) -> float:
        """Seconds from virtual stage `boundary` to the next."""
        here, there = self.stages[boundary][0], self.stages[boundary + 1][0]
        return self.transfers[boundary] if here != there else 0


@st.composite
def cases(draw: st.DrawFn, schedules: tuple[str, ...] = SCHEDULES) -> Case:
    schedule = draw(st.sampled_from(schedules))
    p, m = draw(st.integers(1, 5)), draw(st.integers(1, 11))
    v = {"interleaved": draw(st.integers(1, 3)), "zb-v": 2}.get(schedule, 1)
    time = st.integers(0, 9).map(float)
    chunk = st.builds(ChunkTimes, time, time, time, time, st.integers(5, 9).map(float), st.integers(0, 5).map(float))
    rows = draw(st.lists(st.lists(chunk, min_size=v, max_size=v), min_size=p, max_size=p))
    transfers = draw(st.lists(st.integers(0, 4).map(float), min_size=p * v - 1, max_size=p * v - 1))
    return Case(schedule, tuple(map(tuple, rows)), m, tuple(transfers), draw(st.booleans()))


def reference_orders(case: Case) -> list[list[Key]]:
    """Every device's passes, written out pass by pass as the schedules are usually told."""
    p, v, m = case.devices, len(case.chunks[0]), case.micro_batches
    stage = {place: s for s, place in enumerate(case.stages)}
    return [_reference_order(case.schedule, stage, i, p, v, m) for i in range(p)]


def _reference_order(schedule: str, stage: dict[tuple[int, int], int], i: int, p: int, v: int, m: int) -> list[Key]:
    if schedule == "gpipe":
        return [(kind, i, k) for kind in "FB" for k in range(m)]
    if schedule == "zb-v":
        return _reference_zb_v(stage[i, 0], stage[i, 1], i, p, m)
    table = [(0, k) for k in range(m)]
    warm_up = p - 1 - i
    if schedule == "interleaved" and v > 1:
        group = next(n for n in range(p, m + 1) if m % n == 0 or m % n >= p) if m >= p else m
        table = [(c, k) for start in range(0, m, group) for c in range(v) for k in range(start, min(m, start + group))]
        warm_up = 2 * (p - 1 - i) + (v - 1) * group if m >= p else m * v
    order: list[Key] = []
    weights = 0
    for slot in range(len(table) + warm_up):
        if slot < len(table):
            chunk, k = table[slot]
            order.append(("F", stage[i, chunk], k))
        if 0 <= slot - warm_up < len(table):
            chunk, k = table[slot - warm_up]
            order.append(("B", stage[i, v - 1 - chunk], k))
            if schedule == "zb-h1" and k >= i:
                order.append(("W", i, weights))
                weights += 1
    return order + [("W", i, k) for k in range(weights, m) if schedule == "zb-h1"]


def _reference_zb_v(down: int, up: int, i: int, p: int, m: int) -> list[Key]:
    """The V: phases of the fixed order, each a pattern repeated, micro-batches counted as they come."""
    whole = max(m, 2 * p - 1)
    f0, f1, b0, b1, w0, w1 = (("F", down), ("F", up), ("B", down), ("B", up), ("W", down), ("W", up))
    order: list[Key] = []
    count = dict.fromkeys((f0, f1, b0, b1, w0, w1), 0)

    def add(*what: tuple[str, int]) -> None:
        for one in what:
            order.append((*one, count[one]))
            count[one] += 1

    for _ in range(2 * (p - i) - 1):
        add(f0)
    for _ in range(i):
        add(f1, f0)
    for _ in range(p - i):
        add(f1, b1, w1)
    while count[f1] < whole:
        if count[f0] < whole:
            add(f0)
        add(b0, w0, f1, b1, w1)
    while count[b1] < whole:
        add(b0, b1)
    while count[b0] < whole:
        add(b0, w0)
    while count[w1] < whole:
        add(w1)
    while count[w0] < whole:
        add(w0)
    return [key for key in order if key[2] < m]


def reference_times(case: Case) -> dict[Key, tuple[float, float]]:
    """Begin and end of every pass: begins are raised until nothing waits for less than it must."""
    orders = reference_orders(case)
    before = {key: order[n - 1] for order in orders for n, key in enumerate(order) if n}
    last = len(case.stages) - 1
    begin = {key: 0.0 for order in orders for key in order}

    def sends(kind: str, stage: int) -> float:
        if case.overlapped or kind == "W" or (kind, stage) in (("F", last), ("B", 0)):
            return 0
        return case.crossing(stage if kind == "F" else stage - 1)

    def earliest(key: Key) -> float:
        kind, stage, k = key
        waits = [0.0]
        if key in before:
            b = before[key]
            waits.append(begin[b] + case.seconds(*b[:2]) + sends(*b[:2]))
        if kind == "W":
            waits.append(begin["B", stage, k] + case.seconds("B", stage))
        elif (kind, stage) == ("B", last):
            waits.append(begin["F", stage, k] + case.seconds("F", stage))
        elif (kind, stage) != ("F", 0):
            other = stage - 1 if kind == "F" else stage + 1
            waits.append(begin[kind, other, k] + case.seconds(kind, other) + case.crossing(min(stage, other)))
        return max(waits)

    for _ in range(len(begin) + 1):
        raised = {key: wait for key in begin if (wait := earliest(key)) != begin[key]}
        if not raised:
            return {key: (t, t + case.seconds(*key[:2])) for key, t in begin.items()}
        begin.update(raised)
    raise AssertionError("passes wait for each other")


def by_key(case: Case, run: PipelineRun) -> dict[Key, Pass]:
    stage = {place: s for s, place in enumerate(case.stages)}
    return {(x.kind, stage[x.device, x.chunk], x.micro_batch): x for x in run.timeline}


@settings(max_examples=250, deadline=None)
@given(cases())
def test_equal_to_relaxation_over_lists(case: Case) -> None:
    found = {key: (x.begin_s, x.end_s) for key, x in by_key(case, case.run()).items()}
    assert found == reference_times(case)


@settings(max_examples=100, deadline=None)
@given(cases(), st.data())
def test_the_longest_path_is_the_step_and_no_path_is_longer_with_other_chunks(case: Case, data: st.DataObject) -> None:
    kinds = "FBW" if case.schedule in SPLIT else "FB"
    place = {stage: s for s, stage in enumerate(case.stages)}

    sent = tuple(data.draw(st.integers(0, 3)) for _ in case.transfers)

    def length(path: NDArray[np.int64], transfers: NDArray[np.int64], of: Case) -> float:
        passes = sum(n * of.seconds(kinds[kind], place[d, c]) for (d, kind, c), n in np.ndenumerate(path))
        return float(passes + transfers @ np.array(sent, np.int64))

    seconds, passes, crossed = longest_path(case.schedule, case.chunks, case.micro_batches, sent)
    free = replace(case, transfers=sent, overlapped=True)
    assert seconds == free.run().total_s == length(passes, crossed, free)
    factor = data.draw(st.integers(1, 4))
    longer = [[replace(c, forward_s=c.forward_s * factor) for c in row] for row in case.chunks]
    other = replace(free, chunks=tuple(map(tuple, longer)))
    assert length(passes, crossed, other) <= other.run().total_s


@settings(max_examples=150, deadline=None)
@given(cases())
def test_every_pass_runs_once_and_one_at_a_time(case: Case) -> None:
    run = case.run()
    kinds = 3 if case.schedule in SPLIT else 2
    assert len(by_key(case, run)) == len(run.timeline) == kinds * len(case.stages) * case.micro_batches
    rows = list(run.timeline)
    for one, following in pairwise(rows):
        assert one.device < following.device or one.end_s <= following.begin_s


@settings(max_examples=150, deadline=None)
@given(cases())
def test_nothing_begins_before_what_it_needs_has_arrived(case: Case) -> None:
    passes = by_key(case, case.run())
    last = len(case.stages) - 1
    for (kind, stage, k), one in passes.items():
        if kind == "F" and stage:
            assert one.begin_s >= passes["F", stage - 1, k].end_s + case.crossing(stage - 1)
        if kind == "B":
            assert one.begin_s >= passes["F", stage, k].end_s
            if stage < last:
                assert one.begin_s >= passes["B", stage + 1, k].end_s + case.crossing(stage)
        if kind == "W":
            assert one.begin_s >= passes["B", stage, k].end_s


@settings(max_examples=150, deadline=None)
@given(cases())
def test_never_below_the_work_of_a_device_nor_the_path_of_a_micro_batch(case: Case) -> None:
    run = case.run()
    assert run.total_s >= max(b + s for b, s in zip(run.busy_s, run.sending_s, strict=True))
    path = sum(case.seconds(kind, s) for kind in "FB" for s in range(len(case.stages)))
    path += 2 * sum(case.crossing(s) for s in range(len(case.stages) - 1))
    assert run.total_s >= path + (case.seconds("W", 0) if case.schedule in SPLIT else 0)


@settings(max_examples=150, deadline=None)
@given(cases())
def test_busy_sending_and_bubble_make_up_the_step(case: Case) -> None:
    run = case.run()
    for device in range(case.devices):
        assert run.busy_s[device] + run.sending_s[device] + run.bubble_s[device] == run.total_s
        assert run.busy_s[device] == sum(x.end_s - x.begin_s for x in run.timeline if x.device == device)
    assert run.total_s == max(x.end_s for x in run.timeline)
    assert not case.overlapped or not any(run.sending_s)


@settings(max_examples=200, deadline=None)
@given(cases(), st.data())
def test_monotone_in_every_duration(case: Case, data: st.DataObject) -> None:
    more = float(data.draw(st.integers(1, 5)))
    in_transfer: bool = data.draw(st.booleans())
    if case.transfers and in_transfer:
        n = data.draw(st.integers(0, len(case.transfers) - 1))
        transfers = (*case.transfers[:n], case.transfers[n] + more, *case.transfers[n + 1 :])
        slower = replace(case, transfers=transfers)
    else:
        device, chunk = data.draw(st.sampled_from(case.stages))
        times = [f.name for f in fields(ChunkTimes) if f.name.endswith("_s")]
        name = data.draw(st.sampled_from(times))
        row = list(case.chunks[device])
        row[chunk] = replace(row[chunk], **{name: getattr(row[chunk], name) + more})
        slower = replace(case, chunks=(*case.chunks[:device], tuple(row), *case.chunks[device + 1 :]))
    assert slower.run().total_s >= case.run().total_s


@settings(max_examples=100, deadline=None)
@given(cases(("gpipe", "1f1b", "zb-h1")))
def test_one_micro_batch_more_is_never_faster(case: Case) -> None:
    assert replace(case, micro_batches=case.micro_batches + 1).run().total_s >= case.run().total_s


@settings(max_examples=100, deadline=None)
@given(cases())
def test_blocking_is_never_faster_and_equal_without_transfers(case: Case) -> None:
    blocking, overlapped = (replace(case, overlapped=o).run().total_s for o in (False, True))
    assert blocking >= overlapped
    still = replace(case, transfers=(0.0,) * len(case.transfers))
    assert replace(still, overlapped=False).run().total_s == replace(still, overlapped=True).run().total_s


@settings(max_examples=100, deadline=None)
@given(cases(("gpipe", "1f1b", "interleaved")))
def test_one_micro_batch_is_a_chain(case: Case) -> None:
    chain = sum(case.seconds(kind, s) for kind in "FB" for s in range(len(case.stages)))
    chain += 2 * sum(case.crossing(s) for s in range(len(case.stages) - 1))
    assert replace(case, micro_batches=1).run().total_s == chain


@settings(max_examples=100, deadline=None)
@given(cases())
def test_one_device_is_a_sum(case: Case) -> None:
    alone = replace(case, chunks=case.chunks[:1], transfers=case.transfers[: len(case.chunks[0]) - 1])
    run = alone.run()
    kinds = "FBW" if case.schedule in SPLIT else "FB"
    each = sum(alone.seconds(kind, s) for kind in kinds for s in range(len(alone.stages)))
    assert run.total_s == case.micro_batches * each == run.busy_s[0]


@settings(max_examples=150, deadline=None)
@given(cases())
def test_memory_is_what_the_timeline_holds(case: Case) -> None:
    """Replays each device's passes in order, taking and releasing bytes."""
    run = case.run()
    for device, row in enumerate(case.chunks):
        held, peak, in_flight, most = 0.0, 0.0, 0, 0
        for x in (x for x in run.timeline if x.device == device):
            chunk = row[x.chunk]
            kept = chunk.weight_bytes if case.schedule in SPLIT else 0
            in_flight += {"F": 1, "B": -1, "W": 0}[x.kind]
            held += {"F": chunk.activation_bytes, "B": kept - chunk.activation_bytes, "W": -kept}[x.kind]
            peak, most = max(peak, held), max(most, in_flight)
        assert (held, in_flight) == (0, 0)
        assert (run.activation_bytes[device], run.in_flight[device]) == (peak, most)
        counts = zip(row, run.waiting_backward[device], run.waiting_weight[device], strict=True)
        assert peak == sum(c.activation_bytes * b + c.weight_bytes * w for c, b, w in counts)


@settings(max_examples=100, deadline=None)
@given(cases())
def test_the_cheap_figures_are_those_of_the_simulation(case: Case) -> None:
    run = case.run()
    cost = pipeline_seconds(
        case.schedule, case.chunks, case.micro_batches, list(case.transfers), overlapped=case.overlapped
    )
    assert (cost.total_s, cost.in_flight, cost.activation_bytes) == (run.total_s, run.in_flight, run.activation_bytes)


def test_without_bytes_the_peak_is_that_of_the_number() -> None:
    run = simulate("interleaved", [[ChunkTimes(1, 2)] * 2] * 3, 6)
    assert tuple(map(sum, run.waiting_backward)) == run.in_flight
    assert run.waiting_weight == ((0, 0),) * 3


def test_a_step_of_no_time_has_no_bubble() -> None:
    assert simulate("1f1b", [[ChunkTimes(0, 0)]] * 2, 2).bubble_fraction == 0


def test_what_makes_no_sense_is_refused() -> None:
    one = [ChunkTimes(1, 2)]
    with pytest.raises(ValueError, match="schedule 'dualpipe': expected one of gpipe, 1f1b"):
        simulate("dualpipe", [one], 1)
    with pytest.raises(ValueError, match=r"1f1b: expected 1 chunk\(s\) per device, found 2"):
        simulate("1f1b", [one * 2], 1)
    with pytest.raises(ValueError, match=r"zb-v: expected 2 chunk\(s\) per device, found 1"):
        simulate("zb-v", [one], 1)
    with pytest.raises(ValueError, match="zb-h1: device 1, chunk 0: expected backward_input_s"):
        simulate("zb-h1", [[ChunkTimes(1, 2, 1, 1)], one], 1)
    with pytest.raises(ValueError, match=r"equally many, at least one, .* found \[1, 2\]"):
        simulate("gpipe", [one, one * 2], 1)
    with pytest.raises(ValueError, match="micro_batches: expected at least 1, found 0"):
        pipeline_seconds("gpipe", [one], 0)
    with pytest.raises(ValueError, match=r"one figure or 1, one for each boundary .* found 3"):
        simulate("gpipe", [one] * 2, 1, [1, 1, 1])
    for wrong in (-1.0, float("nan"), [float("inf")]):
        with pytest.raises(ValueError, match="transfer_s: expected finite seconds of at least 0"):
            simulate("gpipe", [one] * 2, 1, wrong)
    with pytest.raises(ValueError, match="forward_s: expected a finite figure of at least 0, found -1"):
        ChunkTimes(-1, 1)
    with pytest.raises(ValueError, match="or neither; found one"):
        ChunkTimes(1, 2, backward_input_s=1)
    with pytest.raises(ValueError, match="weight_gradient_bytes: expected at most activation_bytes = 1, found 2"):
        ChunkTimes(1, 2, activation_bytes=1, weight_gradient_bytes=2)
