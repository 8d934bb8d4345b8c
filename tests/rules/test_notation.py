"""The notation: what it accepts, what it means, and how it fails."""

from __future__ import annotations

import pytest

from planner.rules.notation import MismatchError, NotationError, expand, parse
from planner.rules.reshape import reshape_text


def test_factors_take_their_sizes_from_the_shapes() -> None:
    e = expand("b... m k, b... k n -> b... m n", [(2, 3, 4, 5), (5, 6)], [(2, 3, 4, 6)])
    assert e.factors == {"b0": 2, "b1": 3, "m": 4, "k": 5, "n": 6}
    assert e.operands == ((("b0",), ("b1",), ("m",), ("k",)), (("k",), ("n",)))
    assert e.results == ((("b0",), ("b1",), ("m",), ("n",)),)


def test_a_broadcast_dimension_carries_no_factor() -> None:
    e = expand("d..., d... -> d...", [(4, 1), (6,)], [(4, 6)])
    assert e.operands == ((("d0",), ()), (("d1",),))


def test_composites_infer_their_open_factor() -> None:
    e = expand("(g i), i -> (g i)", [(12,), (4,)], [(12,)])
    assert e.factors == {"g": 3, "i": 4}
    assert e.results == ((("g", "i"),),)


def test_marks() -> None:
    e = expand("m k!, +m, * -> m", [(2, 3), (2,), (7,)], [(2,)])
    assert e.whole == {"k"}
    assert e.additive == {1}
    assert e.operands[2] == ((),)


def test_absent_and_unwritten_operands_take_no_part() -> None:
    e = expand("m, -, +m -> m", [(2,), (5,), None, (9,)], [(2,)])
    assert e.operands == ((("m",),), None, None, None)
    assert not e.additive


def test_whole_ellipses_mark_all_their_factors() -> None:
    assert expand("n x...! -> n", [(2, 3, 4)], [(2,)]).whole == {"x0", "x1"}


@pytest.mark.parametrize(
    ("text", "position", "expected"),
    [
        ("m k, k n", 8, "'->'"),
        ("m % -> m", 2, "a name"),
        ("(h -> h", 3, "a factor"),
        ("a... b... -> a", 5, "at most one ellipsis"),
        ("a -> b -> c", 7, "the end"),
        ("+- -> a", 1, "a factor"),
    ],
)
def test_errors_name_text_and_position(text: str, position: int, expected: str) -> None:
    with pytest.raises(NotationError) as error:
        parse(text)
    assert repr(text) in str(error.value)
    assert f"position {position}" in str(error.value)
    assert expected in str(error.value)


@pytest.mark.parametrize(
    ("text", "operands", "results"),
    [
        ("m k, k -> m", [(2, 3), (4,)], [(2,)]),
        ("m -> m", [(2, 3)], [(2,)]),
        ("m 1 -> m", [(2, 3)], [(2,)]),
        ("(a b) -> a", [(6,)], [(4,)]),
        ("(a b) -> *", [(6,)], [(4,)]),
        ("m -> m", [(4,)], [(1,)]),
    ],
)
def test_shapes_that_do_not_fit(text: str, operands: list[tuple[int, ...]], results: list[tuple[int, ...]]) -> None:
    with pytest.raises(MismatchError):
        expand(text, operands, results)


@pytest.mark.parametrize(
    ("source", "target", "left", "right"),
    [
        ((4, 128, 768), (512, 768), "r0 r1 r2", "(r0 r1) r2"),
        ((4, 768), (4, 12, 64), "r0 (r1 r2)", "r0 r1 r2"),
        ((2, 3, 4), (6, 2, 2), "r0 r1 (r2 r3)", "(r0 r1) r2 r3"),
        ((4, 6), (8, 3), "r0 (r1 r2)", "(r0 r1) r2"),
        ((6, 4), (4, 6), "(r0 r1!) r2!", "(r0 r3!) r4!"),
        ((1, 4), (4, 1, 1), "1 r0", "r0 1 1"),
        ((), (1,), "", "1"),
        ((0, 4), (0, 8), "*...", "*..."),
    ],
)
def test_reshapes(source: tuple[int, ...], target: tuple[int, ...], left: str, right: str) -> None:
    assert reshape_text(source, target)[:2] == (left, right)
