"""Pairs of plans for the tests of `planner diff`."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from planner.cli.main import main
from planner.planning import PlanDocument, plan_text, read_plan

SAMPLES = Path(__file__).parents[2] / "sample_graphs"
TENSOR = (
    "*.c_attn.matmul b0=x n=y", "*.attn.c_proj.matmul b0=x k=y", "*.c_fc.matmul b0=x n=y",
    "*.mlp.c_proj.matmul b0=x k=y",
)  # fmt: skip
A100 = ("--devices", "4", "--hardware", "a100-80")
TENSOR_PARALLEL = "megatron:tp=2,dp=2,micro_batch=2"  # with sequence parallelism
DATA = ("--pin", "rest=data_parallel")
SEARCHES = {
    "tensor": ("gpt_tiny", *A100, "--mesh", "2x2", *(o for p in TENSOR for o in ("--pin", p))),
    "searched": ("gpt_tiny", *A100),
    "data": ("gpt_tiny", *A100, *DATA),
    "other hardware": ("gpt_tiny", "--devices", "4", "--hardware", "ascend-910b", *DATA),
    "other mesh": ("gpt_tiny", "--devices", "8", "--hardware", "a100-80", "--mesh", "4x2"),
    "other batch": ("gpt_tiny", *A100, "--batch", "16"),
    "recomputed": ("gpt_tiny", *A100, "--recompute", "blocks"),
    "pipeline": ("gpt_tiny", *A100, "--batch", "16", "--stages", "2"),
    "micro-batches": ("gpt_tiny", *A100, "--batch", "16", "--strategy", f"{TENSOR_PARALLEL}"),
    "run again": ("gpt_tiny", *A100, "--batch", "16", "--strategy", f"{TENSOR_PARALLEL},recompute=full,offload=0.5"),
    "experts": ("moe_tiny", *A100),
    "experts, data": ("moe_tiny", *A100, *DATA),
}
PAIRS = [
    ("data", "tensor"),
    ("data", "searched"),
    ("data", "other hardware"),
    ("searched", "other mesh"),
    ("searched", "other batch"),
    ("searched", "recomputed"),
    ("pipeline", "other batch"),
    ("micro-batches", "run again"),
    ("experts, data", "experts"),
    ("searched", "experts"),
]
HOSTILE = [
    "\x1b[2J\x07", "</script><img src=x onerror=alert(1)>", "\u202egnirts", "x" * 10_000, "a\nb\r\tc", "'\"&<>",
    "\u2028", "<!--", "]]>", "${7*7}", "__proto__", "constructor",
]  # fmt: skip


@cache
def searched(name: str) -> PlanDocument:
    """A plan of `SEARCHES`.  Nobody edits it."""
    model, *options = SEARCHES[name]
    with TemporaryDirectory() as out:
        assert main(["search", str(SAMPLES / f"{model}.onnx"), *options, "--no-cache", "--force", "--out", out]) == 0
        return read_plan(Path(out) / "plan.json")


def edited(plan: PlanDocument, change: Callable[[dict[str, Any]], object]) -> PlanDocument:
    data = json.loads(plan_text(plan))
    change(data)
    return PlanDocument.model_validate(data)


def hostile(data: dict[str, Any]) -> None:
    """Names that would do something to who shows them."""
    data["model"]["name"] = "".join(HOSTILE[:3])
    data["cluster"]["hardware"] = HOSTILE[1]
    names = iter(HOSTILE * 100)
    for op in data["operators"].values():
        op["type"], op["source"], op["module"] = next(names), next(names), next(names)
    data["operators"] = {next(names) + n: o for n, o in data["operators"].items()}
    data["pins"] = [{"object": "rest", "name": n, "pin": n, "source": n} for n in HOSTILE]
    data["search"]["solver"] = HOSTILE[1]
