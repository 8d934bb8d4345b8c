"""What movements along a split dimension say of the elements that travel."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.rules.movement import Movement


def qkv(width: int, parts: tuple[int, ...]) -> Movement:
    return Movement((width,), tuple(np.split(np.arange(width), np.cumsum(parts)[:-1])))


def test_a_fused_projection_is_exchanged_by_less_than_its_local_size() -> None:
    movement = qkv(48, (16, 16, 16))
    assert movement.common == 16
    assert [movement.given(n) for n in (2, 4, 8)] == [8, 8, 6]
    assert all(movement.given(n) <= 48 // n for n in (2, 4, 8))


def test_a_shift_by_one_sends_one_element_to_a_neighbour() -> None:
    movement = Movement((16,), (np.array([-1, *range(15)]),))
    assert [(movement.given(n), movement.given_to_few(n), movement.given_to_many(n)) for n in (2, 4, 8)] == [
        (1, 1, 0)
    ] * 3


def test_every_other_element_is_where_it_is_wanted() -> None:
    movement = Movement((16,), (np.arange(0, 16, 2),))
    assert [movement.given(n) for n in (2, 4, 8)] == [0, 0, 0]


def test_a_swap_of_halves_is_a_permutation_of_shards() -> None:
    movement = Movement((16,), (np.r_[8:16, 0:8],))
    assert [(movement.given(n), movement.given_to_few(n)) for n in (2, 4, 8)] == [(8, 8), (4, 4), (2, 2)]


def test_an_all_to_all_states_what_it_distributes_with_the_part_that_stays() -> None:
    movement = Movement((64,), (np.arange(64).reshape(8, 8).T.reshape(-1),))
    assert movement.given_to_few(4) == 0
    assert movement.given(4) == 12
    assert movement.given_to_many(4) == 16


@pytest.mark.parametrize(("kept", "pending"), [(1, True), (2, True), (7, True), (8, False), (16, False), (31, False)])
def test_few_elements_are_left_as_a_pending_sum(kept: int, pending: bool) -> None:
    assert Movement((32,), (np.arange(kept),)).pending is pending


def test_copies_of_everything_are_not_worth_an_exchange() -> None:
    assert not Movement((8,), (np.tile(np.arange(8), 8),)).exchangeable


@given(st.integers(1, 4), st.lists(st.integers(1, 3), min_size=1, max_size=3), st.data())
def test_what_is_given_is_taken(shards: int, sizes: list[int], data: st.DataObject) -> None:
    operands = tuple(s * shards for s in sizes)
    length = shards * data.draw(st.integers(1, 4))
    places = st.integers(-1, sum(operands) - 1)
    source = np.array(data.draw(st.lists(places, min_size=length, max_size=length)), dtype=np.int64)
    movement = Movement(operands, (source,))
    held = sum(operands) // shards
    x = np.arange(sum(operands))
    starts = np.cumsum((0, *operands))
    local = [
        np.concatenate([np.split(x[a:b], shards)[r] for a, b in itertools.pairwise(starts)]) for r in range(shards)
    ]
    together = np.concatenate(local)
    for part, wanted in zip(np.split(source, shards), movement.wanted(shards), strict=True):
        assert np.array_equal(np.where(wanted < 0, -1, together[wanted]), part)
    assert movement.taken(shards) <= length // shards
    assert movement.given(shards) <= held * shards * length
    assert (movement.given(shards) == 0) == (movement.taken(shards) == 0)
