"""Layered drawings of any graph, cycles included."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from planner.report.layout import BEND, GAP, draw, spread

WIDTHS = st.lists(st.floats(1, 300), min_size=1, max_size=24)


@st.composite
def graphs(draw_from: st.DrawFn) -> tuple[list[float], list[tuple[int, int]]]:
    widths = draw_from(WIDTHS)
    place = st.integers(0, len(widths) - 1)
    return widths, draw_from(st.lists(st.tuples(place, place), max_size=40))


@given(graphs())
@settings(max_examples=60, deadline=None)
def test_every_edge_is_a_path_down_the_rows_and_nothing_overlaps(
    graph: tuple[list[float], list[tuple[int, int]]],
) -> None:
    widths, edges = graph
    found = draw(widths, edges)
    row = {item: r for r, items in enumerate(found.rows) for item in items}
    assert sorted(row) == list(range(len(found.x)))
    assert all(row[b] == row[a] + 1 for a, b in found.segments)
    below: dict[int, set[int]] = {}
    for a, b in found.segments:
        below.setdefault(a, set()).add(b)

    def reached(a: int) -> set[int]:
        out: set[int] = set()
        todo = list(below.get(a, ()))
        while todo:
            b = todo.pop()
            if b < len(widths):
                out.add(b)
            else:
                todo += below.get(b, ())
        return out

    direct = {frozenset(e) for e in edges if e[0] != e[1]}
    drawn = {frozenset((a, b)) for a in range(len(widths)) for b in reached(a)}
    assert drawn == direct
    every = [*widths, *([BEND] * (len(found.x) - len(widths)))]
    for items in found.rows:
        for a, b in pairwise(items):
            assert found.x[b] - found.x[a] >= (every[a] + every[b]) / 2 + GAP - 0.2
    assert min(x - w / 2 for x, w in zip(found.x, every, strict=True)) >= -0.1


@given(graphs())
@settings(max_examples=40, deadline=None)
def test_only_edges_of_cycles_go_against_the_order(graph: tuple[list[float], list[tuple[int, int]]]) -> None:
    widths, edges = graph
    forward = [(min(e), max(e)) for e in edges]
    assert not draw(widths, forward).against


@given(st.lists(st.tuples(st.floats(-500, 500), st.floats(1, 200)), min_size=1, max_size=12))
def test_spread_keeps_what_fits_and_moves_the_rest_least(items: list[tuple[float, float]]) -> None:
    wanted, widths = [w for w, _ in items], [s for _, s in items]
    found = spread(wanted, widths)
    for i in range(1, len(found)):
        assert found[i] - found[i - 1] >= (widths[i] + widths[i - 1]) / 2 + GAP - 1e-6
    again = spread(found, widths)
    assert all(abs(a - b) < 1e-6 for a, b in zip(found, again, strict=True))
    # Least squares: moving any run of neighbours that touch by a little is no better.
    assert abs(sum(found) - sum(wanted)) < 1e-6 * max(1.0, sum(map(abs, wanted)) * len(wanted))


def test_a_chain_stands_in_one_column() -> None:
    found = draw([100.0, 40.0, 160.0], [(0, 1), (1, 2)])
    assert [len(r) for r in found.rows] == [1, 1, 1]
    assert len(set(found.x)) == 1


def test_a_long_edge_passes_beside_the_boxes_between() -> None:
    found = draw([100.0, 100.0, 100.0], [(0, 1), (1, 2), (0, 2)])
    (bend,) = (i for i in range(len(found.x)) if i > 2)
    assert abs(found.x[bend] - found.x[1]) >= (100 + BEND) / 2 + GAP - 0.2
