"""A gradient that is zero in exact arithmetic is rounding alone, which may be other rounding on shards."""

from __future__ import annotations

import numpy as np

from planner.verify import whole
from planner.verify.compare import ROUNDINGS

_WIDTH = 1 << 17  # sums that cancel, as of the biases before a batch norm: some would be judged by chance


def test_measured_rounding_is_no_less_than_what_another_order_of_a_sum_makes() -> None:
    measuring = whole.Whole.__new__(whole.Whole)
    measuring._rng = np.random.default_rng(1)
    given = np.random.default_rng(0).standard_normal((24, _WIDTH))
    given -= given.mean(axis=0)
    total = given.sum(axis=0)
    moved = [measuring._moved([given])[0].sum(axis=0) for _ in range(whole._MOVES)]  # type: ignore[union-attr]
    measured = whole._farthest(total, moved)
    on_shards = given[12:].sum(axis=0) + given[:12].sum(axis=0)
    assert np.all(np.abs(on_shards - total) <= ROUNDINGS * measured)
