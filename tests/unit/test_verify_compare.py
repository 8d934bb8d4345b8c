"""Shards are held against the whole value element by element; rounding is allowed for as far as it is measured."""

from __future__ import annotations

import numpy as np
import pytest

from planner.ir import DeviceMesh, Layout, Reduction
from planner.kernels.shards import light_terms, shard, views
from planner.verify.compare import difference, typical_size

MESH = DeviceMesh.of(2, 2)
SPLIT = Layout((("x",), ("y",)))
SUMMED = Layout((("x",), ()), (("y", Reduction.SUM),))


def value(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(shape)


@pytest.mark.parametrize("layout", [Layout.replicated(2), SPLIT, SUMMED, Layout((("y", "x"), ()))], ids=str)
def test_a_value_laid_out_is_as_it_should_be(layout: Layout) -> None:
    whole = value(8, 4)
    found = difference(shard(whole, layout, MESH, np.random.default_rng(1)), layout, whole, MESH)
    assert (found.reason, found.unproved) == ("", "")
    assert found.error < 1e-12


@pytest.mark.parametrize("layout", [SPLIT, Layout((("y", "x"), ()))], ids=str)
def test_views_are_the_same_pieces_as_copies(layout: Layout) -> None:
    whole = value(8, 4)
    for a, b in zip(views(whole, layout, MESH), shard(whole, layout, MESH), strict=True):
        np.testing.assert_array_equal(a, b)


def test_two_terms_stand_for_the_value_and_neither_is_it() -> None:
    whole = value(8, 4)
    terms = light_terms(whole, SUMMED, MESH)
    assert difference(terms, SUMMED, whole, MESH).reason == ""
    relu = tuple(np.maximum(t, 0) for t in terms)
    assert difference(relu, SUMMED, np.maximum(whole, 0), MESH).reason, "what is not linear shows"


@pytest.mark.parametrize("masked", [-1e9, -3e38, np.finfo(np.float64).min, -np.inf])
def test_terms_beside_a_mask_lose_nothing_to_rounding(masked: float) -> None:
    whole = np.where(value(8, 4) > 0, masked, value(8, 4))
    terms = shard(whole, SUMMED, MESH, np.random.default_rng(1))
    assert all(np.any(t[np.isfinite(t)]) for t in terms), "no rank holds zeros alone"
    found = difference(terms, SUMMED, whole, MESH)
    assert (found.reason, found.unproved) == ("", "")
    assert found.error < 1e-14


def test_the_size_of_what_is_mostly_masked_is_that_of_the_rest() -> None:
    """Else no error of a score would be seen beside the masks."""
    whole = value(64, 64)
    masked = np.where(np.arange(64 * 64).reshape(64, 64) % 3 > 0, -3e38, whole)
    assert 0.5 < typical_size(whole) < 1
    assert 0.5 < typical_size(masked) < 1
    assert typical_size(whole * 1e9) == pytest.approx(1e9 * typical_size(whole))


def test_one_wrong_element_is_named_by_its_rank() -> None:
    whole = value(8, 4)
    pieces = [p.copy() for p in shard(whole, SPLIT, MESH)]
    pieces[3][0, 0] *= 1 + 1e-6
    found = difference(tuple(pieces), SPLIT, whole, MESH)
    assert found.reason.startswith("rank 3 differs")


def test_a_masking_value_hides_no_error_beside_it() -> None:
    whole = value(8, 4)
    whole[:, 0] = -3.4e38
    pieces = [p.copy() for p in shard(whole, SPLIT, MESH)]
    pieces[1][0, 1] += 1e-6
    assert difference(tuple(pieces), SPLIT, whole, MESH).reason


@pytest.mark.parametrize("wrong", [np.inf, -np.inf, np.nan])
def test_infinities_stand_where_they_stand_in_the_whole(wrong: float) -> None:
    whole = value(8, 4)
    whole[0, 0] = -np.inf
    pieces = [p.copy() for p in shard(whole, SPLIT, MESH)]
    assert difference(tuple(pieces), SPLIT, whole, MESH).reason == ""
    pieces[0][0, 0] = wrong
    same = wrong == -np.inf
    assert (difference(tuple(pieces), SPLIT, whole, MESH, lambda: np.ones((8, 4))).reason == "") == same


def test_what_is_no_number_proves_nothing() -> None:
    whole = value(8, 4)
    whole[0, 0] = np.nan
    assert "not a number" in difference(shard(whole, SPLIT, MESH), SPLIT, whole, MESH).unproved


def test_rounding_explains_as_much_as_it_moves() -> None:
    whole = value(8, 4)
    noise = np.full((8, 4), 1e-9)
    pieces = tuple(p + 5e-8 for p in shard(whole, SPLIT, MESH))
    assert difference(pieces, SPLIT, whole, MESH).reason
    assert difference(pieces, SPLIT, whole, MESH, lambda: noise).reason == ""
    assert difference(tuple(p + 1e-6 for p in pieces), SPLIT, whole, MESH, lambda: noise).reason


def test_rounding_that_reaches_the_value_itself_proves_nothing() -> None:
    whole = np.where(np.arange(32).reshape(8, 4) == 5, 1.0, 1e-7)
    pieces = tuple(p + 1e-7 for p in shard(whole, SPLIT, MESH))
    found = difference(pieces, SPLIT, whole, MESH, lambda: np.full((8, 4), 1e-8))
    assert "magnifies rounding" in found.unproved


def test_whole_numbers_differ_only_where_rounding_flips_them() -> None:
    whole = np.arange(4096).reshape(1024, 4)
    pieces = [p.copy() for p in shard(whole, SPLIT, MESH)]
    pieces[0][0, 0] += 1
    flips = np.zeros(whole.shape)
    assert difference(tuple(pieces), SPLIT, whole, MESH, lambda: flips).reason
    flips[0, 0] = 1
    assert difference(tuple(pieces), SPLIT, whole, MESH, lambda: flips).reason == ""


def test_a_shape_or_a_type_that_is_another_is_an_error() -> None:
    whole = value(8, 4)
    pieces = shard(whole, SPLIT, MESH)
    assert "shape" in difference((pieces[0][:1], *pieces[1:]), SPLIT, whole, MESH).reason
    assert "float32" in difference((pieces[0].astype(np.float32), *pieces[1:]), SPLIT, whole, MESH).reason


def test_the_typical_size_is_that_of_elements_that_are_something() -> None:
    assert typical_size(np.array([0.0, 0.0, 2.0, -3.0, 4.0, np.inf])) == 3.0
    assert typical_size(np.zeros(3)) == 0.0
