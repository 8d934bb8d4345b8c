"""Pieces, overlaps and holders against brute force."""

from __future__ import annotations

import itertools
import math
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.ir import DeviceMesh, Layout
from planner.transfer.flat import flat_boxes
from planner.transfer.holders import fewest
from planner.transfer.overlaps import minus, overlaps
from planner.transfer.pieces import Boxes, Pieces, laid_out
from tests.checkpoint.layouts import of_rank, random_layout, random_mesh, random_shape


@pytest.mark.parametrize("seed", range(200))
def test_pieces_of_an_even_layout_are_its_shards(seed: int) -> None:
    rng = random.Random(seed)
    mesh = random_mesh(rng)
    layout = random_layout(rng, rng.randint(0, 3), mesh)
    parts = tuple(rng.choice([1, 2, 3]) for _ in layout.dims)
    layout = Layout(layout.dims, (), parts if any(p > 1 for p in parts) else ())
    shape = tuple(mesh.size(d) * p * rng.randint(1, 3) for d, p in zip(layout.dims, parts, strict=True))
    value = np.arange(int(np.prod(shape))).reshape(shape)
    pieces = laid_out(shape, layout, mesh, first=5)
    for rank in range(mesh.devices):
        found = of_rank(value, pieces, 5 + rank)
        assert found is not None
        np.testing.assert_array_equal(found, layout.shard(value, mesh, rank))


@pytest.mark.parametrize("seed", range(200))
def test_pieces_of_any_layout_cover_the_tensor_once_a_replica(seed: int) -> None:
    rng = random.Random(seed)
    mesh, shape = random_mesh(rng), random_shape(rng)
    layout = random_layout(rng, len(shape), mesh, shape)
    pieces = laid_out(shape, layout, mesh)
    count = np.zeros(shape, np.int64)
    for start, stop in zip(pieces.boxes.starts, pieces.boxes.stops, strict=True):
        count[tuple(slice(a, b) for a, b in zip(start, stop, strict=True))] += 1
    assert (count == mesh.devices // layout.shards(mesh)).all()


def test_an_uneven_dimension_is_cut_as_torch_chunk_cuts_it() -> None:
    pieces = laid_out((5,), Layout((("x",),)), DeviceMesh.of(4))
    assert pieces.boxes.starts[:, 0].tolist() == [0, 2, 4]
    assert pieces.boxes.stops[:, 0].tolist() == [2, 4, 5]
    assert pieces.holders.tolist() == [0, 1, 2]


def _random_boxes(rng: random.Random, dims: int, count: int) -> Boxes:
    starts = np.array([[rng.randint(0, 6) for _ in range(dims)] for _ in range(count)], np.int64).reshape(count, dims)
    sizes = np.array([[rng.randint(1, 4) for _ in range(dims)] for _ in range(count)], np.int64).reshape(count, dims)
    return Boxes(starts, starts + sizes)


@pytest.mark.parametrize("seed", range(100))
def test_overlaps_are_those_of_all_pairs(seed: int) -> None:
    rng = random.Random(seed)
    dims = rng.randint(0, 3)
    a, b = (_random_boxes(rng, dims, rng.randint(0, 12)) for _ in range(2))
    found = overlaps(a, b)
    expected = set()
    for i, j in itertools.product(range(len(a)), range(len(b))):
        low, high = np.maximum(a.starts[i], b.starts[j]), np.minimum(a.stops[i], b.stops[j])
        if (high > low).all():
            expected.add((i, j, *low.tolist(), *high.tolist()))
    rows = zip(found.left, found.right, found.boxes.starts, found.boxes.stops, strict=True)
    assert {(int(i), int(j), *low.tolist(), *high.tolist()) for i, j, low, high in rows} == expected
    assert len(found) == len(expected)


def test_boxes_with_the_same_bytes_in_another_shape_are_other_boxes() -> None:
    zeros, twos = np.zeros((2, 1), np.int64), np.full((2, 1), 2, np.int64)
    two, one = Boxes(zeros, twos), Boxes(zeros.reshape(1, 2), twos.reshape(1, 2))
    assert len(overlaps(two, two)) == 4
    assert len(overlaps(one, one)) == 1
    holders = np.arange(2)
    assert len(Pieces((2,), two, holders, zeros).distinct()[1]) == 2
    assert len(Pieces((2, 2), one, holders[:1], one.starts).distinct()[1]) == 1


def test_boxes_that_changed_are_compared_again() -> None:
    boxes = Boxes(np.array([[0], [4]]), np.array([[2], [6]]))
    assert len(overlaps(boxes, boxes)) == 2
    boxes.stops[0] = 5
    assert len(overlaps(boxes, boxes)) == 4


def test_what_calls_share_cannot_be_written_to() -> None:
    one = Boxes(np.zeros((1, 2), np.int64), np.full((1, 2), 2, np.int64))
    pieces = Pieces((2, 2), one, np.zeros(1, np.int64), one.starts)
    with pytest.raises(ValueError, match="read-only"):
        overlaps(one, one).left[0] = 7
    with pytest.raises(ValueError, match="read-only"):
        pieces.distinct()[0][0] = 7


@pytest.mark.parametrize("seed", range(100))
def test_what_is_left_of_a_box_is_what_no_other_covers(seed: int) -> None:
    rng = random.Random(seed)
    dims = rng.randint(1, 3)
    box = _random_boxes(rng, dims, 1)
    others = _random_boxes(rng, dims, rng.randint(0, 5))

    def marked(boxes: Boxes) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
        out = np.zeros((11,) * dims, np.int64)
        for start, stop in zip(boxes.starts, boxes.stops, strict=True):
            out[tuple(slice(a, b) for a, b in zip(start, stop, strict=True))] += 1
        return out

    left = marked(minus((box.starts[0], box.stops[0]), others))
    assert (left == (marked(box) > 0) * (marked(others) == 0)).all()


@pytest.mark.parametrize("seed", range(150))
def test_no_smaller_set_of_holders_serves_all_needs(seed: int) -> None:
    rng = random.Random(seed)
    holders = range(rng.randint(1, 8))
    needs = [rng.sample(holders, rng.randint(1, min(3, len(holders)))) for _ in range(rng.randint(0, 10))]
    found = fewest(needs)
    assert all(set(n) & set(found) for n in needs)
    smaller = itertools.combinations(holders, len(found) - 1) if found else ()
    assert not any(all(set(n) & set(s) for n in needs) for s in smaller)


def test_holders_that_are_there_for_free_are_not_counted() -> None:
    assert fewest([{0, 1}, {2, 3}], have=[1]) == (2,)


def test_a_need_that_nobody_serves_is_an_error() -> None:
    with pytest.raises(ValueError, match="no holder"):
        fewest([set()])


@given(st.lists(st.integers(1, 5), max_size=5), st.data())
def test_a_flat_range_is_a_few_boxes_in_order(shape: list[int], data: st.DataObject) -> None:
    count = math.prod(shape)
    start = data.draw(st.integers(0, count))
    stop = data.draw(st.integers(start, count))
    value = np.arange(count).reshape(shape)
    boxes = flat_boxes(shape, start, stop)
    found = [
        value[tuple(slice(int(a), int(b)) for a, b in zip(low, high, strict=True))].reshape(-1)
        for low, high in zip(boxes.starts, boxes.stops, strict=True)
    ]
    assert [int(n) for part in found for n in part] == list(range(start, stop))
    assert len(boxes) <= max(1, 2 * len(shape) - 1)


def test_no_element_of_an_empty_tensor_makes_no_box() -> None:
    assert len(flat_boxes((3, 0), 0, 0)) == len(flat_boxes((3, 4), 5, 5)) == len(flat_boxes((), 0, 0)) == 0
