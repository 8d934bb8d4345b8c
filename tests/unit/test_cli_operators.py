"""`planner inspect --operators`: the rules of all operators, or of a model's."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from planner.cli.main import main

SAMPLE = Path(__file__).resolve().parents[2] / "sample_graphs"


@pytest.fixture
def model() -> Path:
    return next(SAMPLE.glob("gpt*.onnx"))


def said(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    assert main(["inspect", *map(str, arguments)]) == 0
    return capsys.readouterr().out


def test_all_operators_are_listed_with_rule_and_splits(capsys: pytest.CaptureFixture[str]) -> None:
    found = {e["type"]: e for e in json.loads(said(capsys, "--operators", "--json"))["operators"]}
    assert found["MatMul"]["rule"] == "b... m k, b... k n -> b... m n"
    assert {"m", "k", "n", "+0", "+1"} <= set(found["MatMul"]["splits"])
    assert found["Loop"]["opaque"]
    assert "sub-graph" in found["Loop"]["rule"]
    assert sum(bool(e["splits"]) for e in found.values()) > 150


def test_the_listing_is_readable(capsys: pytest.CaptureFixture[str]) -> None:
    text = said(capsys, "--operators")
    assert "operator types:" in text.splitlines()[0]
    assert "\nSoftmax\n    rule    d0 d1" in text
    assert max(map(len, text.splitlines())) < 400


def test_of_a_model_the_rules_are_bound_to_its_shapes(capsys: pytest.CaptureFixture[str], model: Path) -> None:
    found = {e["type"]: e for e in json.loads(said(capsys, model, "--operators", "--json"))["operators"]}
    assert found["MatMul"]["count"] > 1
    assert "k sum" in found["MatMul"]["example"]
    text = said(capsys, model, "--operators")
    assert "MatMul  x" in text
    assert "bound   " in text


def test_a_missing_model_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect"]) == 2
    assert "--operators" in capsys.readouterr().err
    assert main(["inspect", "--operators", "--batch", "4"]) == 2
    assert "need a MODEL" in capsys.readouterr().err
