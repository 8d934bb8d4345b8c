"""A solver is one file: command line, request, record and service know it by that."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from planner.api.options import plan_query
from planner.cli.main import main
from planner.errors import UsageError
from planner.planning import read_plan
from planner.planning.searched import RequestDocument
from planner.requests.search import SearchRequest
from planner.search import solvers
from planner.search.problem import Problem
from planner.search.saved import whole  # noqa: F401  registers the solvers of saved problems
from planner.search.solve import solve
from planner.search.solver import SOLVERS, WHOLE, Solver, load, register

ROOT = Path(__file__).resolve().parents[2]
MODEL = ROOT / "sample_graphs" / "mlp.onnx"
NAMES = tuple(SOLVERS)

GREEDY = '''
"""Node after node, the cheapest state beside those that are chosen already: no bound."""

import math

from planner.search.solver import Found, Solver


def _solve(state, reduced, cutoff):
    from planner.search.prices.memory import Bounded

    choice = []
    for v, factor in enumerate(reduced.nodes):
        costs = reduced.arrays[factor.costs].copy()
        for a, b, between in reduced.edges:
            if b == v:
                costs += reduced.arrays[between.costs][choice[a]]
        choice.append(int(costs.argmin()))
    return Found(Bounded(tuple(choice) if math.isfinite(reduced.cost(choice)) else None, -math.inf), "greedy")


SOLVER = Solver("greedy", "each node its cheapest state, one after the other", solve=_solve)
'''


@pytest.fixture
def greedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """One file more beside the solvers."""
    folder = tmp_path / "further"
    folder.mkdir()
    (folder / "greedy.py").write_text(GREEDY, encoding="utf-8")
    monkeypatch.setattr(solvers, "__path__", [*solvers.__path__, str(folder)])
    load("planner.search.solvers", [str(folder)])
    yield
    del SOLVERS["greedy"]
    del sys.modules["planner.search.solvers.greedy"]


@pytest.mark.usefixtures("greedy")
def test_a_file_more_is_a_solver_more(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ("--devices", "4", "--no-cache", "--out", str(tmp_path / "plan"), "--json")
    assert main(["search", str(MODEL), "--solver", "greedy", *options]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["solver"] == "greedy"
    plan = read_plan(tmp_path / "plan" / "plan.json")
    assert plan.search.request is not None
    assert plan.search.request.solver == "greedy"
    assert main(["search", str(MODEL), "--solver", "auto", *options]) == 0
    assert json.loads(capsys.readouterr().out)["objective_s"] <= found["objective_s"]


@pytest.mark.usefixtures("greedy")
def test_help_says_it(capsys: pytest.CaptureFixture[str]) -> None:
    for command in ("search", "solve"):
        with pytest.raises(SystemExit):
            main([command, "--help"])
        told = re.sub(r"\s+", " ", capsys.readouterr().out)
        assert "greedy: each node its cheapest state, one after the other" in told
        assert f"--solver {{{','.join(NAMES)},greedy" in told


@pytest.mark.usefixtures("greedy")
def test_requests_take_it() -> None:
    assert SearchRequest.sent(MODEL, {"devices": 2, "solver": "greedy"}).solver == "greedy"
    query: Any = plan_query()
    assert query(devices=2, solver="greedy").solver == "greedy"
    assert query.model_json_schema()["properties"]["solver"]["enum"] == [*NAMES, "greedy"]
    assert RequestDocument(devices=2, hardware="a100-80", solver="greedy").solver == "greedy"


def test_nobody_takes_one_that_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    choices = ", ".join(map(repr, NAMES))
    with pytest.raises(UsageError, match=rf"invalid choice: 'greedy' \(choose from {choices}\)"):
        SearchRequest.sent(MODEL, {"devices": 2, "solver": "greedy"})
    with pytest.raises(ValidationError, match="Input should be 'auto', 'dp'"):
        plan_query()(devices=2, solver="greedy")  # type: ignore[call-arg]
    with pytest.raises(ValidationError, match=f"expected one of {', '.join(NAMES)}"):
        RequestDocument(devices=2, hardware="a100-80", solver="greedy")
    with pytest.raises(UsageError, match=f"--solver greedy: no such solver; there are {', '.join(NAMES)}"):
        solve(Problem([], []), solver="greedy")
    with pytest.raises(SystemExit):
        main(["search", str(MODEL), "--devices", "2", "--solver", "greedy"])
    *rest, last = NAMES
    assert f"expected {', '.join(rest)} or {last}, found 'greedy'" in capsys.readouterr().err


def test_a_solver_without_what_it_needs_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SOLVERS, "far", Solver("far", "", solve=SOLVERS["dp"].solve, needs=("os", "not_there")))
    with pytest.raises(UsageError, match="--solver far: needs not_there, which is not installed"):
        solve(Problem([], []), solver="far")


@pytest.mark.parametrize("name", ["dp", "large"])
def test_a_name_stands_for_one_solver(name: str) -> None:
    with pytest.raises(ValueError, match=f"solver '{name}' is registered already"):
        register(Solver(name, "", solve=SOLVERS["dp"].solve))


def test_a_solver_solves_in_one_way() -> None:
    for given in ({}, {"solve": SOLVERS["dp"].solve, "whole": WHOLE["large"].whole}):
        with pytest.raises(ValueError, match="expected either `solve` or `whole`"):
            register(Solver("both", "", **given))  # type: ignore[arg-type]


def test_a_file_without_a_solver_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "empty.py").write_text("", encoding="utf-8")
    monkeypatch.setattr(solvers, "__path__", [str(tmp_path)])
    with pytest.raises(TypeError, match=r"planner\.search\.solvers\.empty: expected a Solver"):
        load("planner.search.solvers", [str(tmp_path)])
    del sys.modules["planner.search.solvers.empty"]


def test_every_file_is_a_solver_of_its_name() -> None:
    for package, found in (("solvers", SOLVERS), ("saved/whole", WHOLE)):
        files = (ROOT / "planner" / "search" / package).glob("*.py")
        assert sorted(p.stem for p in files if p.stem != "__init__") == sorted(found)
    assert all(s.help for s in (*SOLVERS.values(), *WHOLE.values()))


def test_no_solver_name_is_written_out_elsewhere() -> None:
    """No list of names beside the registry: a file more would not be in it."""
    listed = re.compile(r"""["']dp["'],\s*["']ilp["']""")
    places = [p for folder in ("planner", "api") for p in (ROOT / folder).rglob("*.py")]
    assert [p for p in places if listed.search(p.read_text(encoding="utf-8"))] == []


def test_names_are_known_before_anything_heavy_is_loaded() -> None:
    code = "import planner.search.solvers, planner.search.saved.whole, sys; print('numpy' in sys.modules)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert found.stdout == "False\n"
