"""`planner search --save-problem`: what was found is proven from the files alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from planner.cli.main import main
from planner.search.certificates.certificate import Leaf
from planner.search.certificates.certify import certify
from planner.search.checks.check import proven_bound
from planner.search.problem import Edge, Node, Problem
from planner.search.solve import solve
from tests.unit.semantics_model import transformer


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models") / "block.onnx"
    path.write_bytes(transformer())
    return path


def run(capsys: pytest.CaptureFixture[str], *words: str | Path) -> tuple[int, Any]:
    status = main([*map(str, words), "--json"])
    return status, json.loads(capsys.readouterr().out)


def search(capsys: pytest.CaptureFixture[str], model: Path, folder: Path, *more: str | Path) -> Any:
    status, document = run(
        capsys, "search", model, "--devices", "4", "--out", folder / "out", "--cache", folder / "cache", *more
    )
    assert status == 0
    return document


def test_objective_and_bound_of_the_chosen_mesh_are_proven(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = search(capsys, model, tmp_path, "--save-problem", tmp_path / "saved")
    certified = found["certified"]
    assert certified["mesh"] == found["mesh"]
    assert certified["cost"] * certified["unit_s"] >= found["objective_s"] * (1 - 1e-12)
    assert certified["others"] == []
    assert certified["gap_of_all_meshes"] is None
    saved = (tmp_path / "saved" / "problem.json.gz", tmp_path / "saved" / "certificate.json")
    status, verdict = run(capsys, "check", *saved)
    assert status == 0
    assert verdict["cost"] == certified["cost"]
    assert verdict["lower_bound"] == certified["certified_lower_bound"] >= certified["lower_bound"]
    assert verdict["optimal"]


def test_all_meshes_together_prove_the_gap(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = search(capsys, model, tmp_path, "--save-problem", tmp_path / "saved", "--save-all-meshes")
    certified = found["certified"]
    assert len(certified["others"]) == len(found["candidates"]) - 1 > 0
    for other in certified["others"]:
        status, verdict = run(capsys, "check", other["problem"], other["certificate"])
        assert status == 0
        assert verdict["lower_bound"] >= min(certified["cost"], other["lower_bound"])
    assert certified["gap_of_all_meshes"] <= found["gap"] + 1e-9


def test_a_kept_answer_does_not_keep_the_files_from_being_written(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plain = search(capsys, model, tmp_path)
    saved = search(capsys, model, tmp_path, "--save-problem", tmp_path / "saved")
    again = search(capsys, model, tmp_path)
    assert not saved["cached"]
    assert (tmp_path / "saved" / "problem.json.gz").is_file()
    assert again["cached"]
    assert "certified" not in again
    assert plain["objective_s"] == saved["objective_s"] == again["objective_s"]


def test_another_cost_is_refused(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    search(capsys, model, tmp_path, "--save-problem", tmp_path)
    path = tmp_path / "certificate.json"
    document = json.loads(path.read_text())
    document["certificate"]["bound"] += 1
    path.write_text(json.dumps(document))
    status, verdict = run(capsys, "check", tmp_path / "problem.json.gz", path)
    assert status == 1
    assert any("bound claimed" in d for d in verdict["defects"])


def test_a_folder_that_cannot_be_written_is_named(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    words = ["search", str(model), "--devices", "2", "--no-cache", "--out", str(tmp_path)]
    assert main([*words, "--save-problem", str(tmp_path / "file")]) == 3
    assert "--save-problem" in capsys.readouterr().err


def test_all_meshes_without_a_folder_is_an_error_of_usage(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["search", str(model), "--devices", "2", "--save-all-meshes"]) == 2
    assert "--save-problem" in capsys.readouterr().err


@pytest.mark.parametrize("seed", range(20))
def test_messages_prove_the_optimum_of_trees_to_the_last_unit(seed: int) -> None:
    """On a tree the relaxation is tight, so all that could be lost is rounding."""
    rng = np.random.default_rng(seed)
    nodes = [Node(rng.integers(0, 10**9, 5)) for _ in range(40)]
    edges = [Edge(int(rng.integers(0, v)), v, rng.integers(0, 10**9, (5, 5))) for v in range(1, 40)]
    problem = Problem(nodes, edges, None)
    exact = solve(problem, solver="dp")
    proof = certify(problem, cost=exact.cost, prices={}, narrow=False)
    assert isinstance(proof[0], Leaf)
    assert proof[0].messages is not None
    assert proven_bound(problem, proof) == exact.cost
