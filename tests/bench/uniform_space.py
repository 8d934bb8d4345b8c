"""The fastest uniform configuration against a draw of the others, and what finding it takes.

    python -m tests.bench.uniform_space [--only PATTERN] [--draw N] [--seed S] [--json OUT]

Of each job N configurations are drawn among all that the space has (every degree, micro-batch, schedule, ZeRO level and
recomputation; all of them where there are no more); each is laid out by itself and simulated.  `ratio` is the step of
the configuration that the search chose over the shortest of those drawn that fit: never above one.  CPU seconds are of
the search alone, from the graph on.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import random
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from planner.builder import build
from planner.clock import Configuration, predict
from planner.cost_models import HardwareProfile, load_profile, usable_memory_bytes
from planner.errors import InputError, UsageError
from planner.frontends import import_bytes
from planner.ir import Graph
from planner.planning.schemes import spelled
from planner.uniform import Sample, Space, best_of
from planner.uniform.space import every

__all__ = ["main"]

LLAMA_70B = {"layers": 80, "hidden": 8192, "heads": 64, "kv_heads": 8, "ffn": 28672, "vocab": 128256, "seq": 8192}
LLAMA_7B = {"seq": 4096}
GPT_175B = {"layers": 96, "hidden": 12288, "heads": 96, "seq": 2048, "vocab": 51200}
MIXTRAL = {"layers": 32, "hidden": 4096, "heads": 32, "kv_heads": 8, "ffn": 14336, "experts": 8, "seq": 4096}
GPT_XL = {"layers": 48, "hidden": 1600, "heads": 25, "seq": 1024, "vocab": 50304}


@dataclass(frozen=True, slots=True)
class Job:
    """A model of the builder with a batch, on devices of a profile."""

    architecture: str
    sizes: Mapping[str, Any]
    batch: int
    devices: int
    hardware: str


JOBS = {
    "gpt175b-1024-a100": Job("gpt", GPT_175B, 1536, 1024, "a100-80"),
    "llama70b-64-h100": Job("llama", LLAMA_70B, 128, 64, "h100"),
    "llama70b-256-h100": Job("llama", LLAMA_70B, 512, 256, "h100"),
    "llama7b-8-a100": Job("llama", LLAMA_7B, 256, 8, "a100-80"),
    "llama7b-64-a100": Job("llama", LLAMA_7B, 256, 64, "a100-80"),
    "llama7b-64-h100": Job("llama", LLAMA_7B, 256, 64, "h100"),
    "llama7b-64-910b": Job("llama", LLAMA_7B, 256, 64, "ascend-910b"),
    "gpt2xl-16-a100": Job("gpt", GPT_XL, 128, 16, "a100-80"),
    "mixtral-64-h100": Job("moe", MIXTRAL, 256, 64, "h100"),
    "vit-16-a100": Job("vit", {}, 2048, 16, "a100-80"),
    "resnet-16-a100": Job("resnet", {}, 1024, 16, "a100-80"),
}


def graph_of(job: Job) -> Graph:
    attention = {"attention": "fused"} if job.architecture in ("gpt", "llama") else {}
    model = build(job.architecture, {**job.sizes, **attention, "batch": job.batch})
    return import_bytes(model.SerializeToString(), name=job.architecture)


def drawn(space: Space, profile: HardwareProfile, count: int, seed: int) -> list[Configuration]:
    there = [*every(space, profile)]
    return there if len(there) <= count else random.Random(seed).sample(there, count)


def row_of(name: str, job: Job, count: int, seed: int) -> dict[str, Any]:
    profile = load_profile(job.hardware)
    graph, limit = graph_of(job), usable_memory_bytes(profile)
    begun = time.process_time()
    sample = Sample(graph, profile)
    space = Space(job.devices, job.batch, sample.layers, experts=sample.has_experts, contexts=sample.contexts)
    found = best_of(sample, space, limit)
    took = time.process_time() - begun
    best = found.best[0] if found.best else None
    fitting = []
    for c in drawn(space, profile, count, seed):
        try:
            p = predict(sample.workload(c), c, profile)
        except (UsageError, InputError):
            continue
        if limit is None or round(p.allocated_bytes) <= limit:
            fitting.append((p.step_time_s, spelled(c)))
    shortest = min(fitting, default=(float("inf"), ""))
    return {
        "job": name,
        "step_s": None if best is None else best.prediction.step_time_s,
        "strategy": None if best is None else spelled(best.configuration),
        "considered": found.considered,
        "simulated": found.simulated,
        "cpu_s": round(took, 2),
        "drawn_that_fit": len(fitting),
        "shortest_drawn_s": shortest[0],
        "shortest_drawn": shortest[1],
        "ratio": None if best is None else best.prediction.step_time_s / shortest[0],
    }


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="*", help="names or patterns of jobs, with commas")
    parser.add_argument(
        "--draw", type=int, default=500, help="configurations that are drawn and laid out by themselves"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(arguments)
    rows = []
    for name, job in JOBS.items():
        if any(fnmatch.fnmatch(name, pattern) for pattern in options.only.split(",")):
            row = row_of(name, job, options.draw, options.seed)
            rows.append(row)
            print(
                f"{name:20} {row['step_s']:.5g} s in {row['cpu_s']} CPU s, ratio {row['ratio']:.4f} to the shortest of "
                f"{row['drawn_that_fit']} drawn: {row['strategy']}",
                flush=True,
            )
    if options.json is not None:
        options.json.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    return 1 if any(row["ratio"] is None or row["ratio"] > 1 for row in rows) else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
