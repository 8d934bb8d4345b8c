"""Alpa's solver prototype: 31 small graphs with the choice it makes, under its own prices.

Its choice costs here what it says, to the precision it is written in; where it cuts 1024 rows in three, of rows padded
to 1026, as XLA runs them.  Ours is never dearer, verified, and paid for by the prototype's formulas.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from planner.ir import Layout
from planner.verify.check import verify_program
from tests.unit.alpa_prices import best, chosen, links_of, penalties
from tests.unit.alpa_prototype import Case, graph_of, read_cases
from tests.unit.known import Found, counts, paid
from tests.unit.known_document import PROTOTYPE, solved

GOLDEN = Path(__file__).parents[1] / "golden" / "alpa_prototype.json"
SHARED = Path(__file__).parents[3] / "shared" / "oracles" / "alpa_prototype.json"
WRITTEN = 1e-6  # objectives are single precision
PADDED = 2 / 1024

each = pytest.mark.parametrize("case", PROTOTYPE, ids=lambda c: c.id)


def tolerance(case: Case) -> float:
    return WRITTEN if case.padded() is case else PADDED


@each
def test_the_choice_costs_what_is_stated(case: Case) -> None:
    theirs, _ = solved(case)
    assert theirs.objective == pytest.approx(case.objective, rel=tolerance(case))
    assert set(counts(theirs)) <= {"all_reduce"}
    assert paid(theirs, links_of(case)) + penalties(theirs) == pytest.approx(theirs.objective)


@each
def test_ours_is_never_dearer(case: Case) -> None:
    theirs, ours = solved(case)
    assert ours.objective <= theirs.objective + 1e-6
    assert ours.objective <= case.objective * (1 + tolerance(case))
    assert ours.gap < 1e-9
    assert paid(ours, links_of(case)) + penalties(ours) == pytest.approx(ours.objective)
    assert verify_program(ours.program).ok


@each
def test_penalties_alone_make_differences_of_few_units(case: Case) -> None:
    """Where ours is cheaper by less than Alpa pays in penalties, it is for these."""
    theirs, ours = solved(case)
    if 0 < theirs.objective - ours.objective < penalties(theirs):
        assert theirs.objective - penalties(theirs) <= ours.objective - penalties(ours) + 1e-6


def result_layout(found: Found, name: str) -> Layout:
    """Where an output of the graph ends up."""
    (layout,) = found.program.strategies[name].results
    assert layout is not None
    return ([layout] + [s.target for c in found.program.redistributions() if c.tensor == name for s in c.steps])[-1]


@each
def test_ours_obeys_what_binds_alpa(case: Case) -> None:
    """New values of parameters lie as the old ones did; what is forced to be whole is."""
    _, ours = solved(case)
    graph, tensors = graph_of(case)
    for i, name in enumerate(case.results):
        if name in case.updates:
            assert str(result_layout(ours, graph.outputs[i])) == ours.stored[tensors[case.updates[name]]]
        elif case.by_name[name].kind == "force_replicated":
            (layout,) = ours.program.strategies[tensors[name]].results
            assert layout is not None
            assert layout.is_replicated


def test_two_products_are_summed_once() -> None:
    """Alpa all-reduces each of two (three) products of 64 KiB before they are added; a sum may stay pending."""
    by_name = {case.id: case for case in PROTOTYPE}
    for name, products in (("allreduce_simplification-1x4", 2), ("allreduce_simplification_out_reuse-1x4", 3)):
        theirs, ours = solved(by_name[name])
        assert counts(theirs) == {"all_reduce": products}
        assert counts(ours) == {"all_reduce": 1}


def test_only_uneven_cuts_are_padded() -> None:
    padded = {case.id for case in PROTOTYPE if case.padded() is not case}
    assert padded == {case.id for case in PROTOTYPE if case.mesh == (3, 4)}
    for case in PROTOTYPE:
        shapes = zip(case.instructions, case.padded().instructions, strict=True)
        assert all(b in (a, 1026) for i, j in shapes for a, b in zip(i.shape, j.shape, strict=True))


def test_uneven_rows_leave_an_axis_idle() -> None:
    """Of 1024 rows as they are nothing divides into three: ours repeats the work along that axis, and pays little."""
    found = {case.id: best(case).objective for case in PROTOTYPE if case.mesh == (3, 4)}
    assert found == {
        "mlp_2_layer_2d_mesh-3x4": pytest.approx(1968.202),
        "mlp_2_layer_bias_2d_mesh-3x4": pytest.approx(1984.404),
        "mlp_n_layer_2d_mesh-3x4": pytest.approx(11809.212),
    }


@pytest.mark.parametrize(
    "line", ["dot.0 (4, 4) = dot(a, b)", "Time 0: dot.0 (4, 4) = dot(a, b)  lhs_con_dim=(1,), rhs_con_dim=(0,)"]
)
def test_lines_that_say_no_strategy_are_refused(line: str, tmp_path: Path) -> None:
    (entry, *_) = json.loads(GOLDEN.read_text(encoding="utf-8"))
    path = tmp_path / "cases.json"
    path.write_text(json.dumps([entry | {"strategy": [line]}]), encoding="utf-8")
    with pytest.raises(ValueError, match="expected an instruction and its strategy"):
        read_cases(path)


@pytest.mark.corpus
@pytest.mark.skipif(not SHARED.exists(), reason="the oracles do not lie beside the checkout")
def test_all_published_graphs() -> None:
    """Whatever graphs of the prototype lie beside the checkout."""
    for case in read_cases(SHARED):
        even = case.padded()
        theirs, ours = chosen(even), best(even)
        assert theirs.objective == pytest.approx(case.objective, rel=0.01), case.id
        assert ours.objective <= theirs.objective + 1e-6, case.id
