"""Rows as publishers write them, for the tests of `planner.accuracy`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from planner.accuracy.models import Model
from planner.accuracy.rows import Case, Rows, read_rows
from planner.clock.configuration import Configuration

PROFILES = ("a100-80", "h100", "ascend-910b", "b200", "gb200")

ROW: Mapping[str, Any] = {
    "id": 1,
    "dataset": "example",
    "group": "a",
    "source": "VIA-Research/vTrain:data/ground_truth_single.csv",
    "model": "gpt-h1024-L24",
    "model_dims": {"hidden": 1024, "layers": 24, "heads": 16, "ffn": 4096, "kv_heads": 16},
    "hardware": "A100-SXM-80GB",
    "num_devices": 8,
    "dp": 2,
    "tp": 2,
    "pp": 2,
    "cp": 1,
    "ep": None,
    "vpp": None,
    "zero": None,
    "recompute": "full",
    "micro_batch": 2,
    "global_batch": 16,
    "seq": 1024,
    "precision": "fp16",
    "measured": {"step_time_s": 0.5},
    "note": None,
}


def row(**changes: Any) -> dict[str, Any]:
    return {**ROW, **changes}


def read(folder: Path, *rows: object) -> Rows:
    path = folder / "rows.json"
    path.write_text(json.dumps({"rows": rows}), encoding="utf-8")
    return read_rows(path, PROFILES)


def one(folder: Path, **changes: Any) -> Case:
    """The case of one row."""
    found = read(folder, row(**changes))
    assert not found.left_out, found.left_out
    return found.cases[0]


def case(step_s: float = 1.0, *, group: str = "a", dataset: str = "example", layers: int = 2, **changes: Any) -> Case:
    sizes = (("heads", 2), ("hidden", 64), ("layers", layers), ("seq", 32), ("vocab", 128))
    return Case(
        row=f"{dataset}-{group}",
        dataset=dataset,
        group=group,
        model=Model("gpt", sizes),
        seq=32,
        configuration=Configuration(**changes),
        hardware="a100-80",
        framework="none",
        step_s=step_s,
    )
