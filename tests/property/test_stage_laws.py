"""Laws of dealing layers to stages: the optimum is that of enumeration, whatever the table."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations, pairwise, product

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.search.stages import Stages, layers_by_stage, stages_on_devices


def cuts(layers: int, count: int) -> Iterator[list[tuple[int, int]]]:
    for inner in combinations(range(1, layers), count - 1):
        ends = [0, *inner, layers]
        yield list(pairwise(ends))


def cost(times: list[float], micro_batches: int) -> float:
    return sum(times) + (micro_batches - 1) * max(times)


def enumerated(table: np.ndarray, takes: np.ndarray, devices: np.ndarray, micro_batches: int) -> float:
    layers, _, ways = table.shape
    best = np.inf
    for count in range(1, layers + 1):
        for chosen in product(range(ways), repeat=count):
            if (takes[list(chosen)].sum(axis=0) != devices).any():
                continue
            for cut in cuts(layers, count):
                times = [float(table[a, b - 1, w]) for (a, b), w in zip(cut, chosen, strict=True)]
                best = min(best, cost(times, micro_batches))
    return best


def holds(found: Stages | None, layers: int, best: float) -> bool:
    """Whether nothing was found where there is nothing, else stages in a row, as cheap as any."""
    if found is None:
        return not np.isfinite(best)
    ends = [s.end for s in found.stages]
    joined = [s.first for s in found.stages] == [0, *ends[:-1]] and ends[-1] == layers
    return joined and abs(found.seconds - best) <= 1e-9 * best


@st.composite
def tables(draw: st.DrawFn, ways: int, layers: int) -> np.ndarray:
    """Drawn seconds, of few values or of many, some of them forbidden."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    shape = (layers, layers, ways)
    table = rng.integers(1, 6, shape).astype(float) if draw(st.booleans()) else rng.uniform(0.1, 5, shape)
    table[rng.random(shape) < draw(st.sampled_from([0.0, 0.2, 0.6]))] = np.inf
    return table


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_the_optimum_on_one_kind_is_that_of_enumeration(data: st.DataObject) -> None:
    layers, ways = data.draw(st.integers(1, 5)), data.draw(st.integers(1, 3))
    table = data.draw(tables(ways, layers))
    takes = np.array(data.draw(st.lists(st.integers(1, 3), min_size=ways, max_size=ways)))
    devices, batches = data.draw(st.integers(1, 6)), data.draw(st.sampled_from([1, 2, 8, 100]))
    best = enumerated(table, takes[:, None], np.array([devices]), batches)
    assert holds(stages_on_devices(table, takes, devices, batches), layers, best)


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_the_optimum_on_two_kinds_is_that_of_enumeration(data: st.DataObject) -> None:
    layers = data.draw(st.integers(1, 4))
    takes = np.array([[1, 0], [0, 1], [2, 0], [0, 2], [1, 1]])[: data.draw(st.integers(2, 5))]
    table = data.draw(tables(len(takes), layers))
    devices = np.array([data.draw(st.integers(0, 3)), data.draw(st.integers(0, 3))])
    batches = data.draw(st.sampled_from([1, 3, 50]))
    best = enumerated(table, takes, devices, batches)
    assert holds(stages_on_devices(table, takes, devices, batches), layers, best)


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_the_optimum_in_a_given_order_is_that_of_enumeration(data: st.DataObject) -> None:
    layers, places = data.draw(st.integers(1, 6)), data.draw(st.integers(1, 4))
    table = data.draw(tables(places, layers))
    batches = data.draw(st.sampled_from([1, 2, 8, 100]))
    best = np.inf
    for cut in cuts(layers, places):
        best = min(best, cost([float(table[a, b - 1, p]) for p, (a, b) in enumerate(cut)], batches))
    found = layers_by_stage([table[:, :, p] for p in range(places)], batches)
    assert holds(found, layers, best)
    assert found is None or len(found.stages) == places


@settings(max_examples=50, deadline=None)
@given(st.data())
def test_two_kinds_that_are_alike_are_as_good_as_one(data: st.DataObject) -> None:
    layers = data.draw(st.integers(1, 4))
    table = data.draw(tables(1, layers))
    twice = np.concatenate([table, table], axis=2)
    first, second = data.draw(st.integers(1, 2)), data.draw(st.integers(1, 2))
    one = stages_on_devices(table, [1], first + second, 8)
    two = stages_on_devices(twice, [[1, 0], [0, 1]], [first, second], 8)
    assert (one is None) == (two is None)
    assert one is None or two is None or abs(one.seconds - two.seconds) < 1e-9
