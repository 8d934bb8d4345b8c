"""`planner search` with --constraints and --pin: results, what plan.json says of them, exit statuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from planner.cli.main import main
from tests.unit.semantics_model import transformer

FILE = """schema: planner.constraints/1
operators:
  - type: MatMul
    roles: {x: "split:m"}
"""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models") / "transformer.onnx"
    path.write_bytes(transformer())
    return path


def run(model: Path, folder: Path, *extra: object) -> int:
    return main(["search", str(model), "--out", str(folder), "--force", "--json", *map(str, extra)])


def test_a_pinned_search_names_its_pins_and_the_meshes_that_they_rule_out(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "pins.yaml"
    file.write_text(FILE)
    assert run(model, tmp_path, "--devices", 4, "--constraints", file, "--pin", "mesh=2x2") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["mesh"] == "2x2"
    assert found["objective_s"] == found["objective_lower_bound_s"]
    plan = json.loads(Path(found["plan"]).read_text())
    products = {n: o for n, o in plan["operators"].items() if o["type"] == "MatMul"}
    assert {o["strategy"]["x"] for o in products.values()} == {"split:m"}
    assert {p["name"] for p in plan["pins"]} == set(products)
    assert {p["source"] for p in plan["pins"]} == {"pins.yaml:3"}
    assert main(["verify", found["plan"], str(model), "--json"]) == 0
    capsys.readouterr()
    assert run(model, tmp_path, "--devices", 4, "--pin", 'rest={"data_parallel":["y"]}') == 0
    capsys.readouterr()
    assert run(model, tmp_path, "--devices", 4, "--pin", "* type=MatMul m=y") == 0
    candidates = {c["mesh"]: c["status"] for c in json.loads(capsys.readouterr().out)["candidates"]}
    assert candidates == {"4": "pins do not fit", "2x2": "optimal"}


def test_equal_pins_give_equal_bytes(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plans = []
    for name in ("a", "b"):
        assert run(model, tmp_path / name, "--devices", 4, "--reproducible", "--pin", "rest=zero") == 0
        plans.append((tmp_path / name / "plan.json").read_bytes())
    capsys.readouterr()
    assert plans[0] == plans[1]
    assert b'"pin": "zero over x"' in plans[0] or b'"pin": "zero over x, y"' in plans[0]


@pytest.mark.parametrize(
    ("extra", "status", "message"),
    [
        (("--constraints", "none.yaml"), 3, "cannot be read"),
        (("--pin", "nothing"), 2, "expected a pattern and what to pin"),
        (("--pin", "nothing m=x"), 3, "no operator by name matches 'nothing'"),
        (("--pin", "* type=MatMul m=y", "--mesh", "4"), 3, "mesh 4 has no axis y"),
        (("--pin", "* type=MatMul m=x", "--pin", "* type=MatMul n=x"), 3, "pins contradict each other"),
        (("--pin", "* stored=replicated", "--memory-limit", "1KB"), 4, "cannot fit"),
        (("--pin", "mesh=3x3"), 3, "none is made of the 4 devices"),
    ],
)
def test_exit_statuses(
    model: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    extra: tuple[str, ...],
    status: int,
    message: str,
) -> None:
    assert run(model, tmp_path, "--devices", 4, *extra) == status
    printed = capsys.readouterr()
    assert message in printed.err
    assert printed.out == ""
