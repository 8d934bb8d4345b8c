"""Laws of windows over split space."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from planner.operators.resize.rule import Resampling, taps
from planner.rules.window import Reading, Space, Window, needs, received, sent, size

WINDOWS = [
    Window(n, (n + 2 * pad - (k - 1) * d - 1) // s + 1, k, s, d, pad, pad)
    for n, k, s, d, pad in itertools.product((7, 12, 24, 56, 224), (1, 2, 3, 7), (1, 2, 3), (1, 2), (0, 1, 3))
    if pad < k and n + 2 * pad > (k - 1) * d
]
RESAMPLINGS = [
    Resampling(a, b, b / a, mode, where)
    for a, b in ((12, 24), (24, 12), (16, 12), (36, 8))
    for mode, where in itertools.product(("nearest", "linear", "cubic"), ("half_pixel", "asymmetric", "align_corners"))
]


def _cuts(reading: Reading) -> list[int]:
    parts = Space.of([reading]).parts[0]
    return [n for n in range(2, parts + 1) if parts % n == 0]


@pytest.mark.parametrize("reading", [*WINDOWS, *RESAMPLINGS], ids=str)
def test_both_sides_are_cut_evenly_and_halos_come_from_neighbours(reading: Reading) -> None:
    for n, side in itertools.product(_cuts(reading), ("elements", "positions")):
        whole = size(reading, side)
        assert whole % n == 0
        for j, (first, stop) in enumerate(needs(reading, n, side)):
            assert max(j - 1, 0) * whole // n <= first < stop <= min(j + 2, n) * whole // n


@pytest.mark.parametrize("reading", [*WINDOWS, *RESAMPLINGS], ids=str)
def test_what_is_sent_covers_what_is_received(reading: Reading) -> None:
    """The largest of both differ only where halos are unequal, never in one being absent."""
    for n, side in itertools.product(_cuts(reading), ("elements", "positions")):
        assert bool(sent(reading, side, n)) == bool(received(reading, side, n))
        assert received(reading, side, n) < size(reading, side) * (n - 1) // n or not received(reading, side, n)


@pytest.mark.parametrize("window", [w for w in WINDOWS if w.tiles], ids=str)
def test_tiles_need_no_halo(window: Window) -> None:
    assert Space.of([window]).parts == (window.positions,)
    assert Space.of([window]).aware == ()
    assert all(received(window, "elements", n) == 0 for n in _cuts(window))


@pytest.mark.parametrize("window", WINDOWS, ids=str)
def test_reading_is_the_inverse_of_being_read(window: Window) -> None:
    for p, e in itertools.product(range(window.positions), range(window.elements)):
        if window.elements > 24:
            break
        first, stop = window.read_by((p, p + 1))
        low, high = window.reading((e, e + 1))
        assert (first <= e < stop) == (low <= p < high)


@pytest.mark.parametrize("r", RESAMPLINGS, ids=str)
def test_a_resampling_keeps_constants(r: Resampling) -> None:
    source, weight = taps(r)
    assert source.min() >= 0
    assert source.max() < r.elements
    np.testing.assert_allclose(weight.sum(axis=1), 1.0)


def test_a_cut_by_powers_of_two_is_preferred() -> None:
    """28 elements under seven-element windows could be cut in 7, or in 4 and 2, not in 14."""
    assert Space.of([Window(28, 28, 7, 1, 1, 3, 3)]).parts == (4,)


def test_of_a_volume_two_dimensions_are_offered() -> None:
    padded = Window(8, 8, 3, 1, 1, 1, 1)
    assert Space.of([padded] * 3).parts == (8, 8, 1)
