"""Training steps measured on one GPU, as rows of `tests.bench.gpu.steps`, are what the planner predicts."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from planner.builder import ARCHITECTURES
from planner.cost_models import load_profile
from tests.bench.gpu.configurations import CONFIGURATIONS, MODELS, MORE, Config, tiny
from tests.bench.gpu.predict import configuration_of, main, model_of, predicted

SMALL = Config("gpt2", 2)


def row(config: Config, **measured: Any) -> dict[str, Any]:
    small, sizes = tiny(config)
    found = {"config": asdict(small), "architecture": MODELS[config.model][0], "sizes": sizes, "name": config.name}
    return {**found, **measured}


def test_names_tell_configurations_apart() -> None:
    every = (*CONFIGURATIONS, *MORE)
    assert len({c.name for c in every}) == len(every)


@pytest.mark.parametrize("config", [*CONFIGURATIONS, *MORE], ids=lambda c: c.name)
def test_every_configuration_can_be_said(config: Config) -> None:
    found = configuration_of(asdict(config))
    assert (found.micro_batch, found.micro_batches) == (config.micro_batch, config.accumulation)
    assert found.fuse == config.compiled
    sizes: Any = dict(model_of(row(config)).sizes)
    ARCHITECTURES[MODELS[config.model][0]].sizes(**sizes)


@pytest.mark.parametrize("model", MODELS)
def test_every_model_is_predicted(model: str) -> None:
    profile = load_profile("h100")
    for recompute in ("none", "full"):
        found = predicted(row(Config(model, 2, recompute=recompute), median_s=0.02), profile)
        assert found.outcome is not None, found.reason
        assert 0 < found.outcome.low_s < found.outcome.step_s < found.outcome.high_s
        assert found.outcome.allocated_bytes > 0


def test_a_table_of_rows_and_figures_by_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows: list[dict[str, Any]] = [
        {"machine": {}},
        row(SMALL, median_s=0.015, peak_allocated=1 << 20, forward_s=0.004),
        row(replace(SMALL, accumulation=2), median_s=0.016, peak_allocated=1 << 20),
        row(replace(SMALL, compiled=True), median_s=0.014),
        row(replace(SMALL, attention="unfused"), error="out of memory"),
    ]
    file, out = tmp_path / "steps.jsonl", tmp_path / "predicted.json"
    file.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    main([str(file), "--json", str(out), "--parts"])
    said = capsys.readouterr().out
    assert "| gpt2 mb2 x2 | 16.0 |" in said
    assert "| gpt2 mb2 unfused | out of memory |" in said
    assert "| gpt2 | 3 |" in said
    assert "measured ms: forward 4.0" in said
    found = json.loads(out.read_text(encoding="utf-8"))
    assert [r["name"] for r in found] == ["gpt2 mb2", "gpt2 mb2 x2", "gpt2 mb2 compiled", "gpt2 mb2 unfused"]
    assert all(r["predicted"]["step_s"] > 0 for r in found)
