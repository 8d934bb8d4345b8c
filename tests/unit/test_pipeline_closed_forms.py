"""Pipelines of even stages against the closed forms of the papers.

p devices, v chunks per device, m micro-batches; f, b, w seconds of one chunk's passes (b: the whole backward pass, or
the gradient of the input where it is split).
"""

from __future__ import annotations

import pytest

from planner.cost_models.pipeline import ChunkTimes, PipelineRun, interleaved_group, pipeline_seconds, simulate

SIZES = [(p, m) for p in (1, 2, 3, 4, 7) for m in (1, 2, 3, 5, 8, 14, 15)]


def even(p: int, v: int, f: float, b: float, w: float | None = None) -> list[list[ChunkTimes]]:
    chunk = ChunkTimes(f, b) if w is None else ChunkTimes(f, b + w, b, w, activation_bytes=10, weight_gradient_bytes=3)
    return [[chunk] * v for _ in range(p)]


def bubbles(run: PipelineRun) -> set[float]:
    return set(run.bubble_s)


@pytest.mark.parametrize(("p", "m"), SIZES)
@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
def test_gpipe_and_1f1b_take_m_plus_p_minus_1_slots(schedule: str, p: int, m: int) -> None:
    """GPipe, section 2.3, and 2104.04473, section 2.2.1: bubble (p - 1)(f + b), fraction (p - 1) / (m + p - 1)."""
    run = simulate(schedule, even(p, 1, 2, 5), m)
    assert run.total_s == (m + p - 1) * (2 + 5)
    assert bubbles(run) == {(p - 1) * (2 + 5)}
    assert run.bubble_fraction == pytest.approx((p - 1) / (m + p - 1))


@pytest.mark.parametrize(("p", "m"), SIZES)
def test_in_flight_is_m_for_gpipe_and_the_depth_below_for_1f1b(p: int, m: int) -> None:
    assert simulate("gpipe", even(p, 1, 1, 2), m).in_flight == (m,) * p
    assert simulate("1f1b", even(p, 1, 1, 2), m).in_flight == tuple(min(m, p - i) for i in range(p))


@pytest.mark.parametrize(("p", "m"), SIZES)
def test_gpipe_with_transfers(p: int, m: int) -> None:
    """Overlapped, a transfer delays the fill and the drain; blocking, it lengthens every pass that sends."""
    f, b, t = 2, 5, 3
    assert simulate("gpipe", even(p, 1, f, b), m, t).total_s == (m + p - 1) * (f + b) + 2 * (p - 1) * t
    blocking = simulate("gpipe", even(p, 1, f, b), m, t, overlapped=False)
    assert blocking.total_s == (m * (f + b) if p == 1 else (m + p - 2) * (f + b + 2 * t) + f + b)
    sends = [(i < p - 1) + (i > 0) for i in range(p)]
    assert blocking.sending_s == tuple(m * t * n for n in sends)


@pytest.mark.parametrize("p", [2, 3, 4, 6])
@pytest.mark.parametrize("v", [2, 3, 4])
@pytest.mark.parametrize("groups", [1, 2, 5])
def test_interleaving_divides_the_bubble_by_the_chunks(p: int, v: int, groups: int) -> None:
    """2104.04473, section 2.2.2: with F = v f and B = v b of a device, the bubble is (p - 1)(F + B) / v."""
    m = groups * p
    run = simulate("interleaved", even(p, v, 1, 2), m)
    assert run.total_s == m * v * 3 + (p - 1) * 3
    assert bubbles(run) == {(p - 1) * 3}
    assert run.in_flight == tuple(min(m * v, 2 * (p - 1 - i) + (v - 1) * p + 1) for i in range(p))


@pytest.mark.parametrize("p", [2, 3, 4, 6])
@pytest.mark.parametrize("v", [2, 3])
def test_interleaving_any_number_of_micro_batches_keeps_the_bubble(p: int, v: int) -> None:
    """Groups of Megatron's least valid size leave no bubble but the fill's and the drain's."""
    for m in range(p, 4 * p + 1):
        group = interleaved_group(p, m)
        assert group >= p
        assert m % group == 0 or m % group >= p
        run = simulate("interleaved", even(p, v, 1, 2), m)
        assert run.total_s == m * v * 3 + (p - 1) * 3
        assert run.in_flight == tuple(min(m * v, 2 * (p - 1 - i) + (v - 1) * group + 1) for i in range(p))


@pytest.mark.parametrize("p", [2, 4, 6])
def test_interleaving_fewer_micro_batches_than_devices_runs_all_forward_first(p: int) -> None:
    for m in range(1, p):
        assert simulate("interleaved", even(p, 3, 1, 2), m).in_flight == (3 * m,) * p


def test_interleaved_with_one_chunk_is_1f1b() -> None:
    for p, m in SIZES:
        one, other = (simulate(s, even(p, 1, 3, 4), m, 2) for s in ("interleaved", "1f1b"))
        assert (one.total_s, one.in_flight) == (other.total_s, other.in_flight)


@pytest.mark.parametrize("p", [1, 2, 3, 4, 7])
@pytest.mark.parametrize(("f", "b", "w"), [(1, 1, 1), (2, 3, 2), (3, 3, 1), (4, 2, 2), (2, 4, 1), (2, 2, 3), (1, 3, 2)])
def test_zb_h1_fills_the_end_with_weight_gradients(p: int, f: float, b: float, w: float) -> None:
    """2401.10241, table 2: bubble (p - 1)(f + b - w). The fixed order meets it for w <= f; else it leaves (p - 1) b."""
    for m in (p, p + 1, 3 * p):
        run = simulate("zb-h1", even(p, 1, f, b, w), m)
        bubble = (p - 1) * (f + b - w if w <= f else b)
        assert run.total_s == m * (f + b + w) + bubble
        assert bubbles(run) == {bubble}


@pytest.mark.parametrize("p", [1, 2, 3, 5])
def test_zb_h1_holds_what_1f1b_holds_and_weight_gradients_owed(p: int) -> None:
    """2401.10241, before table 2: device i (from 0) holds p - i micro-batches for B and i for W."""
    run = simulate("zb-h1", even(p, 1, 1, 1, 1), 3 * p)
    assert run.in_flight == tuple(p - i for i in range(p))
    assert run.waiting_backward == tuple((p - i,) for i in range(p))
    assert run.waiting_weight == tuple((i,) for i in range(p))
    assert run.activation_bytes == tuple((p - i) * 10 + i * 3 for i in range(p))


@pytest.mark.parametrize("p", [1, 2, 3, 5])
def test_zb_v_idles_only_before_its_first_pass(p: int) -> None:
    """2401.10241, section 6: with f = b = w no bubble but what passes until the last device first has work."""
    for m in (2 * p, 2 * p + 1, 5 * p):
        run = simulate("zb-v", even(p, 2, 1, 1, 1), m)
        assert run.total_s == 6 * m + p - 1
        assert run.in_flight == (2 * p,) * p  # chunks of half a stage: the memory of 1F1B's first device


def test_the_large_case_is_exact() -> None:
    """64 devices, 8 chunks, 512 micro-batches: more than half a million passes."""
    cost = pipeline_seconds("interleaved", even(64, 8, 0.25, 0.5), 512)
    assert cost.total_s == (512 * 8 + 63) * 0.75
    assert cost.in_flight == tuple(2 * (63 - i) + 7 * 64 + 1 for i in range(64))
