"""Gradient sums beside the backward pass, ZeRO 3 gathering ahead of computing."""

from __future__ import annotations

import math
from itertools import accumulate

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.cost_models.pipeline import GradientBucket, gradient_buckets, gradient_sync, zero3_backward, zero3_forward
from planner.cost_models.pipeline.streams import StreamTask, run_streams

TIMES = st.lists(st.integers(0, 9).map(float), min_size=1, max_size=8)


@st.composite
def layers(draw: st.DrawFn, columns: int) -> list[list[float]]:
    """Columns of times, one figure for each layer."""
    count = draw(st.integers(1, 8))
    column = st.lists(st.integers(0, 9).map(float), min_size=count, max_size=count)
    return [draw(column) for _ in range(columns)]


def per_layer(count: int) -> list[GradientBucket]:
    return [GradientBucket(n + 1, 1.0) for n in range(count)]


def test_buckets_close_when_full() -> None:
    assert gradient_buckets([10, 30, 0, 5, 25, 1, 0], 30) == (
        GradientBucket(2, 40),
        GradientBucket(5, 30),
        GradientBucket(6, 1),
    )
    assert gradient_buckets([10, 30, 5], 100, first_bucket_bytes=1) == (GradientBucket(1, 10), GradientBucket(3, 35))
    assert gradient_buckets([10, 30, 5], math.inf) == (GradientBucket(3, 45),)
    assert gradient_buckets([], 30) == gradient_buckets([0, 0], 30) == ()


@given(TIMES, st.integers(0, 20))
def test_buckets_hold_every_byte_once_in_order(sizes: list[float], limit: int) -> None:
    buckets = gradient_buckets(sizes, limit)
    sums = [0.0, *accumulate(sizes)]
    assert [sums[b.layers] for b in buckets] == list(accumulate(b.size_bytes for b in buckets))
    assert sum(b.size_bytes for b in buckets) == sum(sizes)
    assert all(b.size_bytes >= limit for b in buckets[:-1])


@pytest.mark.parametrize(("b", "c"), [(3, 2), (3, 3), (3, 5), (3, 0)])
def test_even_layers_leave_the_last_sum_or_all_but_the_first_layer_exposed(b: float, c: float) -> None:
    run = gradient_sync([b] * 6, per_layer(6), [c] * 6)
    assert run.total_s == (6 * b + c if c <= b else b + 6 * c)
    assert run.exposed_s == run.total_s - 6 * b


def test_sums_that_do_not_overlap_are_exposed_whole() -> None:
    run = gradient_sync([3, 4], per_layer(2), [5, 6], overlapped=False, contention=3)
    assert (run.total_s, run.compute_s, run.communication_s, run.exposed_s) == (18, 7, 11, 11)


def test_contention_slows_computing_while_a_sum_runs() -> None:
    """4 s, then 6 s in which half of 10 s' pace is lost: 3 s done, 7 s left."""
    assert gradient_sync([4, 10], [GradientBucket(1, 1)], [6], contention=2).exposed_s == 3
    # The layer ends first: 2 s take 4, the sum's other 2 s run alone.
    assert gradient_sync([4, 2], [GradientBucket(1, 1)], [6], contention=2).total_s == 10


@given(layers(2))
def test_sums_follow_the_recurrence(columns: list[list[float]]) -> None:
    backward, sums = columns
    ready = list(accumulate(backward))
    end = 0.0
    for made, seconds in zip(ready, sums, strict=True):
        end = max(end, made) + seconds
    assert gradient_sync(backward, per_layer(len(sums)), sums).total_s == max(end, ready[-1])


@pytest.mark.parametrize(("c", "g"), [(3, 2), (3, 3), (2, 7), (4, 0)])
def test_prefetch_of_even_layers_hides_the_shorter(c: float, g: float) -> None:
    assert zero3_forward([c] * 5, [g] * 5).total_s == g + 4 * max(c, g) + c
    assert zero3_forward([c] * 5, [g] * 5, prefetch=0).total_s == 5 * (c + g)


@pytest.mark.parametrize(("c", "g", "r"), [(6, 2, 3), (5, 2, 3), (2, 4, 3)])
def test_backward_of_even_layers(c: float, g: float, r: float) -> None:
    """Computing hides all but the ends, or collectives run back to back from the second gathering on."""
    run = zero3_backward([c] * 5, [g] * 5, [r] * 5)
    if c >= g + r:
        assert run.total_s == g + 5 * c + r
    else:
        assert run.total_s == 5 * (g + r)
    serial = zero3_backward([c] * 5, [g] * 5, [r] * 5, prefetch=0)
    assert serial.total_s == g + 5 * c + 4 * (r + g) + r


@given(layers(3), st.integers(0, 3))
def test_backward_follows_the_recurrence(columns: list[list[float]], prefetch: int) -> None:
    """One stream of collectives: gatherings `prefetch` + 1 ahead of the reduce-scatter of their layer."""
    compute, gather, scatter = columns
    n = len(compute)
    stream, done = 0.0, 0.0
    gathered: list[float] = []
    for k in range(min(prefetch + 1, n)):
        stream += gather[k]
        gathered.append(stream)
    for k in range(n):
        done = max(done, gathered[k]) + compute[k]
        stream = max(stream, done) + scatter[k]
        if k + prefetch + 1 < n:
            stream += gather[k + prefetch + 1]
            gathered.append(stream)
    assert zero3_backward(compute, gather, scatter, prefetch=prefetch).total_s == max(stream, done)


@given(layers(2), st.integers(0, 3))
def test_gathering_further_ahead_is_never_slower(columns: list[list[float]], prefetch: int) -> None:
    ahead = zero3_forward(*columns, prefetch=prefetch + 1).total_s
    assert ahead <= zero3_forward(*columns, prefetch=prefetch).total_s


@given(layers(2), st.integers(0, 2), st.floats(1, 4))
def test_streams_take_between_the_longer_and_the_sum(columns: list[list[float]], prefetch: int, slow: float) -> None:
    """At every moment one stream moves; contention takes at most what overlap gained."""
    for run in (
        zero3_forward(*columns, prefetch=prefetch, contention=slow),
        gradient_sync(columns[0], per_layer(len(columns[1])), columns[1], contention=slow),
    ):
        assert run.total_s >= max(run.compute_s, run.communication_s) - 1e-9
        assert run.total_s <= run.compute_s + run.communication_s + 1e-9
    free = zero3_forward(*columns, prefetch=prefetch)
    assert zero3_forward(*columns, prefetch=prefetch, contention=slow).total_s >= free.total_s - 1e-9


@settings(max_examples=30, deadline=None)
@given(layers(2), st.sampled_from([1.0, 1.25, 2.0]))
def test_streams_agree_with_small_steps_of_time(columns: list[list[float]], slow: float) -> None:
    compute = [StreamTask(c, n + 1) for n, c in enumerate(columns[0])]
    gathers = [StreamTask(g, max(0, n - 1)) for n, g in enumerate(columns[1])]
    step, now, done = 1 / 256, 0.0, [0, 0]
    left = [[w.seconds for w in compute], [w.seconds for w in gathers]]
    while done != [len(compute), len(gathers)]:
        active = [
            done[s] < len(works) and works[done[s]].needs <= done[1 - s] for s, works in enumerate((compute, gathers))
        ]
        now += step
        for s in (0, 1):
            if active[s]:
                left[s][done[s]] -= step / slow if s == 0 and active[1] else step
                done[s] += left[s][done[s]] <= 1e-12
    # A piece may end, and another begin, a step late.
    assert max(x for ends in run_streams(compute, gathers, slow) for x in ends) == pytest.approx(
        now, abs=2 * len(compute) * 2 * step * slow
    )


def test_nothing_takes_no_time() -> None:
    assert gradient_sync([], [], []).total_s == zero3_forward([], []).total_s == zero3_backward([], [], []).total_s == 0


def test_what_makes_no_sense_is_refused() -> None:
    with pytest.raises(ValueError, match=r"backward_s\[1\]: expected a finite figure of at least 0, found -1"):
        gradient_sync([1, -1], [], [])
    with pytest.raises(ValueError, match="bucket_s: expected 1 figures, as many as buckets, found 2"):
        gradient_sync([1], [GradientBucket(1, 1)], [1, 1])
    with pytest.raises(ValueError, match="expected at most the 1 layers of backward_s, found 2"):
        gradient_sync([1], [GradientBucket(2, 1)], [1])
    with pytest.raises(ValueError, match="gather_s: expected 2 figures, as many as compute_s, found 1"):
        zero3_forward([1, 1], [1])
    with pytest.raises(ValueError, match="prefetch: expected at least 0 layers, found -1"):
        zero3_forward([1], [1], prefetch=-1)
    with pytest.raises(ValueError, match=r"contention: expected a factor of at least 1, found 0\.5"):
        zero3_forward([1], [1], contention=0.5)
    with pytest.raises(ValueError, match="bucket_bytes: expected at least 0 bytes, found -1"):
        gradient_buckets([1], -1)
    with pytest.raises(ValueError, match="each waits for the other"):
        run_streams([StreamTask(1, 1)], [StreamTask(1, 1)])
