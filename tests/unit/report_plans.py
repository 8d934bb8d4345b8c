"""Plans for the tests of reports, searched once a session, and documents edited to be hostile or old."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from planner.cli.main import main
from planner.planning import PlanDocument, plan_text, read_plan

SAMPLES = Path(__file__).parents[2] / "sample_graphs"
MEGATRON = (
    "mesh=2x2", "*.c_attn.matmul b0=x n=y", "*.attn.c_proj.matmul b0=x k=y", "*.c_fc.matmul b0=x n=y",
    "*.mlp.c_proj.matmul b0=x k=y",
)  # fmt: skip
SEARCHES = {
    "megatron": ("gpt_tiny", "--devices", "4", *(o for p in MEGATRON for o in ("--pin", p))),
    "data": ("gpt_tiny", "--devices", "4", "--pin", "rest=data_parallel"),
    "recomputed": ("gpt_tiny", "--devices", "4", "--recompute", "blocks", "--pin", "rest=data_parallel"),
    "pipeline": ("gpt_tiny", "--devices", "4", "--batch", "16", "--stages", "2"),
    "experts": ("moe_tiny", "--devices", "4", "--pin", "rest=data_parallel"),
    "images": ("resnet18_tiny", "--devices", "4", "--pin", "rest=data_parallel"),
}
EVIL = (
    "</script><script>alert(1)</script>",
    "<img src=x onerror=alert(2)>",
    "\"'><b>&amp;--><!--",
    "\u202eleft to right\u202c עברית",
    "x" * 10240,
    "a\x00b\x1b[31m\r\n\u2028c",
    "\ud800",
    "${alert(3)}`",
    "__proto__",
    "constructor",
)


@cache
def text_of(name: str) -> str:
    """plan.json of one of `SEARCHES`."""
    model, *options = SEARCHES[name]
    with TemporaryDirectory() as out:
        arguments = ["search", str(SAMPLES / f"{model}.onnx"), "--hardware", "a100-80", "--no-cache", "--out", out]
        assert main([*arguments, *options]) == 0
        return plan_text(read_plan(Path(out) / "plan.json"))


@cache
def plan_of(name: str) -> PlanDocument:
    return PlanDocument.model_validate_json(text_of(name))


def old(plan: PlanDocument) -> PlanDocument:
    """As plans were before they told when operators run."""
    data = json.loads(plan_text(plan))
    data["cost"] = {k: v for k, v in data["cost"].items() if k not in ("price_resolution_s", "memory_bytes")}
    data["model"].pop("repeated")
    for o in data["operators"].values():
        o.pop("runs")
    for r in data["redistributions"]:
        r.pop("begin_s")
    for p in data["parameters"].values():
        p.pop("optimizer_s")
    return PlanDocument.model_validate(data)


def without_modules(plan: PlanDocument) -> PlanDocument:
    data = json.loads(plan_text(plan))
    for o in data["operators"].values():
        o["module"] = ""
    return PlanDocument.model_validate(data)


def hostile(plan: PlanDocument) -> PlanDocument:
    """The model, its first operators, their modules and tensors with names that mean to break out of a page."""
    data: dict[str, Any] = plan.model_dump(by_alias=True, mode="python")
    new = dict(zip(data["operators"], EVIL, strict=False))

    def name(old: str) -> str:
        return new.get(old, old)

    operators = {}
    for key, o in data["operators"].items():
        o["inputs"], o["outputs"] = [name(t) for t in o["inputs"]], [name(t) for t in o["outputs"]]
        if key in new:
            o["source"], o["module"] = new[key], f"layers.0.{new[key]}"
        operators[name(key)] = o
    data["operators"] = operators
    data["tensors"] = {name(k): v for k, v in data["tensors"].items()}
    data["model"]["repeated"] = [[[name(n) for n in block] for block in run] for run in data["model"]["repeated"]]
    data["model"]["name"] = f"</title>{EVIL[0]}{EVIL[3]}"
    for r in data["redistributions"]:
        r["tensor"], r["reader"] = name(r["tensor"]), name(r["reader"])
    for p in data["parameters"].values():
        p["aliases"] = []
        for reader in p["readers"]:
            reader["operator"] = name(reader["operator"])
    data["pins"] = [{"object": "operator", "name": EVIL[0], "pin": EVIL[1], "source": EVIL[2]}]
    return PlanDocument.model_validate(data)


def deepened(plan: PlanDocument, layers: int) -> PlanDocument:
    """A plan of gpt_tiny with so many layers, its last one repeated."""
    data = json.loads(plan_text(plan))
    last = "transformer.h.1."

    def copied(text: str, k: int) -> Any:
        return json.loads(
            text.replace(last, f"transformer.h.{k}.").replace('"transformer.h.1"', f'"transformer.h.{k}"')
        )

    for table in ("operators", "parameters", "tensors"):
        own = json.dumps({n: v for n, v in data[table].items() if n.startswith(last)})
        for k in range(2, layers):
            data[table] |= copied(own, k)
    moves = json.dumps([r for r in data["redistributions"] if r["tensor"].startswith(last)])
    for k in range(2, layers):
        data["redistributions"] += copied(moves, k)
    return PlanDocument.model_validate(data)
