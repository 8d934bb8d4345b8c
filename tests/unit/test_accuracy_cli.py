"""`planner accuracy`: the document, the table, and what it refuses."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from planner.cli.main import main
from tests.unit.accuracy_rows import row

DIMS = {"hidden": 128, "layers": 2, "heads": 2, "ffn": 512}
SMALL: dict[str, Any] = {"model": "gpt-small", "model_dims": DIMS, "seq": 128}


def rows_file(folder: Path) -> Path:
    """Two configurations of one model, one row with a gap, one with memory, one that no profile can price."""
    plain = {**SMALL, "micro_batch": 2}
    rows = [
        row(id=1, **plain),
        row(id=2, **plain | {"dp": 8, "tp": 1, "pp": 1, "micro_batch": 2, "group": "b"}),
        row(id=3, dataset="gaps", **plain | {"source": "NVIDIA/NeMo@1:docs", "vpp": 1, "recompute": None}),
        row(id=4, dataset="gaps", **plain | {"measured": {"step_time_s": 0.1, "peak_alloc_gib": 1.0}}),
        row(id=5, dataset="elsewhere", **plain | {"hardware": "TPU-v4"}),
        row(id=6, dataset="elsewhere", **plain | {"hardware": "TPU-v4"}),
        row(id=7, **plain | {"tp": None}),
    ]
    path = folder / "rows.json"
    path.write_text(json.dumps({"rows": rows}), encoding="utf-8")
    return path


def document(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert main(["accuracy", *arguments, "--json", "--quiet"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    return dict(json.loads(out))


def test_the_document_has_every_row_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = document(capsys, str(rows_file(tmp_path)), "--rows")
    assert {name: f["rows"] for name, f in found["datasets"].items()} == {"example": 2, "gaps": 1}
    assert {name: f["rows"] for name, f in found["filled"].items()} == {"gaps": 1}
    assert found["left_out"] == {
        "elsewhere": "no profile for hardware 'TPU-v4'",
        "example/7": "no parallel configuration to predict: tp not given",
    }
    pinned = {"rows", "time_mape", "memory_mape", "spearman", "top1_regret", "coverage"}
    assert all(pinned <= f.keys() for f in found["datasets"].values())
    assert found["datasets"]["example"]["regret_groups"] == 1
    assert found["datasets"]["example"]["memory_mape"] is None
    assert found["datasets"]["gaps"]["memory_rows"] == 1
    assert found["cross_validated"] is None
    assert found["parameters"] == {}
    for each in found["rows"]:
        assert 0 < each["low_s"] <= each["predicted_s"] <= each["high_s"]
        assert each["predicted_bytes"] > 0
    assert [each["filled"] for each in found["rows"]] == [[], [], ["recompute"], []]


def test_rows_are_printed_when_asked_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "rows" not in document(capsys, str(rows_file(tmp_path)))
    assert main(["accuracy", str(rows_file(tmp_path)), "--rows"]) == 0
    out, err = capsys.readouterr()
    assert "example/1  measured" in out
    assert "TPU-v4" in out
    assert "4 rows can be predicted, 3 are left out" in err


def test_fitting_is_cross_validated(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plain = document(capsys, str(rows_file(tmp_path)), "--rows")
    found = document(capsys, str(rows_file(tmp_path)), "--rows", "--cross-validate")
    assert found["parameters"].keys() == {"a100-80"}
    assert {n: f["rows"] for n, f in found["cross_validated"].items()} == {"example": 2, "gaps": 1}
    assert {n: f["rows"] for n, f in found["cross_validated_filled"].items()} == {"gaps": 1}
    assert mean_log_error(found) <= mean_log_error(plain) + 1e-9


def mean_log_error(found: dict[str, Any]) -> float:
    """Mean |ln(predicted / measured)| of the complete rows, which alone are fitted to."""
    errors = [abs(math.log(r["predicted_s"] / r["measured_s"])) for r in found["rows"] if not r["filled"]]
    return sum(errors) / len(errors)


def test_a_malformed_file_is_the_input_at_fault(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "rows.json"
    path.write_text(json.dumps([row(dp="two")]), encoding="utf-8")
    assert main(["accuracy", str(path)]) == 3
    assert "row 1: dp: expected an integer of at least 1, or null, found 'two'" in capsys.readouterr().err
    assert main(["accuracy", str(tmp_path / "none.json")]) == 3


def test_validating_a_fit_that_is_not_made_is_a_usage_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["accuracy", str(rows_file(tmp_path)), "--cross-validate", "--fit", "none"]) == 2
    assert "nothing is fitted" in capsys.readouterr().err
