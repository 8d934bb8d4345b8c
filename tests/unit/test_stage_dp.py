"""Layers dealt to stages: Alpa's published optima, and what the solver refuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from planner.search.stages import layers_by_stage, stages_on_devices

GOLDEN = Path(__file__).parents[1] / "golden" / "alpa_stage_dp.json"
WIDE = Path(__file__).parents[3] / "shared" / "oracles" / "alpa_stage_dp.json"
ROUNDED = 1e-7  # Alpa adds up in single precision, and tries limits a millionth apart


def cases(path: Path) -> list[Any]:
    return [pytest.param(c, id=c["case"]) for c in json.loads(path.read_text())] if path.exists() else []


def table_of(case: dict[str, Any], devices: np.ndarray) -> np.ndarray:
    """Seconds [first, last, submesh].

    The random case is that of Alpa's test_stage_construction: one figure for each of five configurations of every
    submesh, of which a stage takes the best.
    """
    if "layer_costs" not in case:
        layers = case["num_layers"]
        drawn = np.random.RandomState(42).rand(layers, layers, len(devices), case["n_config"])
        return np.asarray(drawn.min(axis=3))
    done = np.concatenate([[0.0], np.cumsum(case["layer_costs"])])
    return np.asarray((done[None, 1:] - done[:-1, None])[:, :, None] / devices ** case["scaling_exponent"])


@pytest.mark.parametrize("case", [*cases(GOLDEN), *cases(WIDE)])
def test_alpas_optimum_is_found(case: dict[str, Any]) -> None:
    devices = np.array([hosts * each for hosts, each in case["submesh"]])
    table = table_of(case, devices)
    found = stages_on_devices(table, devices, case["hosts"] * case["dev_per_host"], case["B"])
    assert found is not None
    assert found.seconds == pytest.approx(case["cost"], rel=ROUNDED)
    if "bruteforce_cost" in case:
        assert found.seconds == pytest.approx(case["bruteforce_cost"], rel=1e-12)
    theirs = [float(table[first, end - 1, way]) for (first, end), way, _ in case["solution"]]
    assert found.seconds <= sum(theirs) + (case["B"] - 1) * max(theirs) + 1e-9


@pytest.mark.skipif(not WIDE.exists(), reason="no wide oracle file beside the checkout")
def test_the_small_cases_are_those_of_the_wide_file() -> None:
    wide = {c["case"]: c for c in json.loads(WIDE.read_text())}
    for case in json.loads(GOLDEN.read_text()):
        assert case.items() <= wide[case["case"]].items()


def test_few_limits_are_tried_of_many() -> None:
    """Of 8,232 seconds that a stage may take, intervals are closed by their bounds."""
    layers = 48
    work = np.random.default_rng(3).uniform(1, 2, layers)
    done = np.concatenate([[0.0], np.cumsum(work)])
    devices = np.array([1, 2, 4, 8, 16, 32, 64])
    table = (done[None, 1:] - done[:-1, None])[:, :, None] / devices**0.6
    found = stages_on_devices(table, devices, 64, 1024)
    assert found is not None
    assert found.tried < 100


def test_two_kinds_of_devices_take_layers_by_their_speed() -> None:
    """Four stages of one device each: two of them three times as fast hold three times the layers."""
    layers = np.arange(16)[None, :] - np.arange(16)[:, None] + 1.0
    table = np.stack([layers, layers / 3], axis=-1)
    found = stages_on_devices(table, [[1, 0], [0, 1]], [2, 2], 1000)
    assert found is not None
    assert sorted((s.way, s.end - s.first) for s in found.stages) == [(0, 2), (0, 2), (1, 6), (1, 6)]
    assert found.seconds == 8 + 999 * 2


def test_nothing_where_devices_cannot_all_be_used() -> None:
    assert stages_on_devices(np.ones((4, 4, 1)), [2], 3, 8) is None
    assert layers_by_stage([np.ones((2, 2))] * 3, 8) is None


@pytest.mark.parametrize(
    ("table", "takes", "devices", "batches", "told"),
    [
        (np.ones((3, 4, 1)), [1], 2, 1, r"expected shape \(3, 3, 1\)"),
        (np.ones((3, 3, 2)), [1], 2, 1, r"expected shape \(3, 3, 1\)"),
        (-np.ones((3, 3, 1)), [1], 2, 1, "at least 0"),
        (np.ones((3, 3, 1)), [0], 2, 1, "at least one device"),
        (np.ones((3, 3, 1)), [1], [2, 2], 1, r"expected \(ways, 2 kinds of devices\)"),
        (np.ones((3, 3, 1)), [1], 2, 0, "micro_batches"),
        (np.ones((3, 3, 1)), [[1, 1]], [1 << 12, 1 << 12], 1, "more than are kept"),
    ],
)
def test_what_does_not_go_together_is_refused_by_name(
    table: np.ndarray, takes: object, devices: object, batches: int, told: str
) -> None:
    with pytest.raises(ValueError, match=told):
        stages_on_devices(table, takes, devices, batches)  # type: ignore[arg-type]
