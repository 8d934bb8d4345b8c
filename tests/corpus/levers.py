"""Every way to save memory or time, with every other: the plans of known configurations, executed.

    python -m tests.corpus.levers --json out.jsonl [--models gpt,moe] [--seconds 600] [--count]

A combination is a value of each lever: stages and their schedule, micro-batches, recomputation, ZeRO and its groups,
copies, offloading, and how the ranks of a stage divide tensors.  Each is planned by `planner search --strategy` for a
small model and verified; in addition the step is run freely, from what the devices themselves have made, and its
gradients compared with those of the whole model on the whole batch.

Combinations come in an order in which those come first that show the most pairs of values not seen before, then the
others, drawn at random.  What the file holds already is not done again.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import itertools
import json
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

import numpy as np

from planner.builder import build
from planner.cli.main import main as planner
from planner.frontends import import_bytes
from planner.ir import Graph
from planner.planning import PlanDocument, read_plan
from planner.planning.programs import program_of
from planner.verify.pipeline import verify_pipeline
from planner.verify.pipelined import pipeline_of
from tests.corpus.loose import wrong_gradients

__all__ = ["LEVERS", "combinations", "covering", "graph_of", "model_of", "plan_of", "strategy", "wrong_with"]

Combination = tuple[str, ...]  # a value of each lever
_Pair = tuple[int, int, str, str]
LEVERS: Final[Mapping[str, tuple[str, ...]]] = {
    "stages": (
        "pp=1", "pp=2", "pp=2,schedule=gpipe", "pp=2,vpp=2", "pp=2,schedule=zb-h1", "pp=2,schedule=zb-v",
        "pp=2,stage_layers=1-3", "pp=2,schedule=zb-v,stage_layers=1-2-1-1", "pp=4", "pp=4,schedule=gpipe",
        "pp=4,schedule=zb-h1", "pp=4,vpp=2", "pp=4,schedule=zb-v",
    ),
    "micro_batches": ("1", "2", "4", "6"),
    "recompute": (
        "recompute=none", "recompute=selective", "recompute=products", "recompute=full",
        "recompute=full,recompute_blocks=0.5",
    ),
    "zero": ("zero=0", "zero=1", "zero=2", "zero=3", "zero=2,shard=2", "zero=3,shard=2"),
    "copies": ("copies=1", "copies=2"),
    "offload": ("offload=0", "offload=0.5"),
    "ranks": (
        "dp=2", "dp=4", "tp=2,sp=true", "dp=2,tp=2,sp=true", "dp=2,tp=2,sp=false", "dp=2,cp=2",
        "dp=2,cp=2,context=all-to-all", "dp=2,cp=2,context=gather", "dp=4,ep=2",
    ),
}  # fmt: skip
SIZES: Final[Mapping[str, Mapping[str, Any]]] = {
    "gpt": {"hidden": 16, "heads": 2, "vocab": 32, "seq": 8},
    "moe": {"hidden": 16, "heads": 2, "kv_heads": 2, "ffn": 16, "vocab": 32, "seq": 8, "experts": 4},
}


def _given(text: str) -> dict[str, str]:
    return dict(item.split("=") for item in text.split(","))


def _chosen(combination: Combination) -> tuple[dict[str, str], int]:
    """Keys of the strategy, and micro-batches."""
    values = dict(zip(LEVERS, combination, strict=True))
    count = int(values.pop("micro_batches"))
    return {k: v for text in values.values() for k, v in _given(text).items()}, count


def _makes_sense(model: str, combination: Combination) -> bool:
    keys, count = _chosen(combination)
    stages, shards = int(keys["pp"]), int(keys.get("dp", 1)) * int(keys.get("cp", 1))
    split = "schedule" in keys or "vpp" in keys
    return (
        count % int(keys["copies"]) == 0
        and count // int(keys["copies"]) >= (stages if split else 1)
        and not ("shard" in keys and shards <= 2)
        and not (keys["zero"] != "0" and shards == 1)
        and not ("ep" in keys and (model != "moe" or "shard" in keys))
    )


def combinations(model: str) -> list[Combination]:
    """All that make sense."""
    return [c for c in itertools.product(*LEVERS.values()) if _makes_sense(model, c)]


def covering(
    every: Sequence[Combination], seed: int = 0, tries: int = 60, done: Collection[Combination] = ()
) -> Iterator[Combination]:
    """All combinations that are not `done`, those first, of so many drawn each time, that show most values, and then
    pairs of values, not seen before."""
    rng = np.random.default_rng(seed)
    left = [every[k] for k in rng.permutation(len(every)) if every[k] not in done]
    seen: set[_Pair] = set().union(*map(_pairs, done))
    for at in range(len(left)):
        drawn = range(at, min(len(left), at + tries))
        best = max(drawn, key=lambda k: sum(1 if i < j else 100 for i, j, _, _ in _pairs(left[k]) - seen))
        left[at], left[best] = left[best], left[at]
        seen |= _pairs(left[at])
        yield left[at]


@lru_cache(maxsize=1 << 16)
def _pairs(c: Combination) -> frozenset[_Pair]:
    """Of a value with itself, too."""
    pairs = itertools.combinations_with_replacement(range(len(c)), 2)
    return frozenset((i, j, c[i], c[j]) for i, j in pairs)


def strategy(combination: Combination) -> tuple[str, int, int]:
    """As `--strategy` takes it, with the devices and the samples of a step."""
    keys, count = _chosen(combination)
    ranks = {k: int(keys.get(k, 1)) for k in ("dp", "tp", "cp", "pp")}
    told = {**keys, "micro_batch": "1", "dp": str(ranks["dp"])}
    text = ",".join(f"{k}={v}" for k, v in told.items())
    return f"megatron:{text}", int(np.prod(list(ranks.values()))), ranks["dp"] * count


@lru_cache(maxsize=64)
def model_of(model: str, layers: int, batch: int) -> bytes:
    return build(model, {**SIZES[model], "layers": layers, "batch": batch}).SerializeToString()


@lru_cache(maxsize=64)
def graph_of(model: str, layers: int, batch: int) -> Graph:
    return import_bytes(model_of(model, layers, batch), name=model)


def layers_of(combination: Combination) -> int:
    """As many as there are chunks, at least four."""
    keys, _ = _chosen(combination)
    told = keys.get("stage_layers")
    if told is not None:
        return sum(map(int, told.split("-")))
    return max(4, int(keys["pp"]) * (2 if "vpp" in keys or keys.get("schedule") == "zb-v" else 1))


def plan_of(model: str, combination: Combination) -> tuple[PlanDocument, Graph] | str:
    """The plan and the graph of a micro-batch, or why there is none."""
    text, devices, batch = strategy(combination)
    layers = layers_of(combination)
    said = io.StringIO()
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        file = Path(folder) / f"{model}.onnx"
        file.write_bytes(model_of(model, layers, batch))
        options = ["--devices", str(devices), "--batch", str(batch), "--strategy", text, "--no-cache"]
        if planner(["search", str(file), *options, "--force", "--out", str(Path(folder) / "plan")]):
            return said.getvalue().strip().splitlines()[-1]
        plan = read_plan(Path(folder) / "plan" / "plan.json")
    return plan, graph_of(model, layers, batch // plan.schedule.micro_batches)


def wrong_with(model: str, combination: Combination) -> tuple[str, ...] | None:
    """What the verifier has against the plan, and what its gradients differ in when it runs freely; None where there
    is no plan."""
    made = plan_of(model, combination)
    if isinstance(made, str):
        return None
    plan, graph = made
    pipeline = pipeline_of(plan, program_of(plan, graph), plan.schedule.micro_batches)
    found = verify_pipeline(pipeline)
    whole = graph_of(model, layers_of(combination), strategy(combination)[2])
    return (*found.failures, *found.unproved, *wrong_gradients(pipeline, whole))


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--json", type=Path, required=True, help="where verdicts go, line by line; what is there is kept"
    )
    parser.add_argument("--models", default=",".join(SIZES), help="with commas")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="of computing; then it stops")
    parser.add_argument("--count", action="store_true", help="only say how many there are, and were done")
    asked = parser.parse_args(arguments)
    known = [json.loads(line) for line in asked.json.read_text().splitlines()] if asked.json.exists() else []
    done = {m: {tuple(r["levers"]) for r in known if r["model"] == m} for m in SIZES}
    counts = Counter(r["verdict"] for r in known)
    models = asked.models.split(",")
    orders = {model: list(combinations(model)) for model in models}
    for turn in itertools.zip_longest(*(covering(orders[m], tries=500, done=done[m]) for m in models)):
        for model, c in zip(models, turn, strict=True):
            if c is None or asked.count or time.process_time() > asked.seconds:
                continue
            row = _row(model, c)
            counts[row["verdict"]] += 1
            with asked.json.open("a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")
            if row["verdict"] not in ("ok", "no plan"):
                print(row, flush=True)
        if asked.count or time.process_time() > asked.seconds:
            break
    every = sum(map(len, orders.values()))
    print(f"{sum(counts.values())} of {every} combinations: {', '.join(f'{n} {v}' for v, n in counts.most_common())}")
    return 1 if counts["failed"] or counts["died"] else 0


def _row(model: str, c: Combination) -> dict[str, Any]:
    begun = time.process_time()
    try:
        wrong = wrong_with(model, c)
        verdict = "no plan" if wrong is None else "failed" if wrong else "ok"
    except Exception as e:  # it is told, and the others go on
        wrong, verdict = (f"{type(e).__name__}: {e}",), "died"
    seconds = round(time.process_time() - begun, 2)
    return {"model": model, "levers": c, "verdict": verdict, "seconds": seconds, "wrong": list(wrong or ())[:5]}


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
