"""The fastest uniform configuration of random small jobs against all of them, each laid out by itself.

    python -m tests.bench.uniform_exact [--jobs N] [--limits N] [--seed S] [--devices 2,4,8] [--batches 4,8]
                                        [--frozen] [--json OUT]

A job is a small model of the builder on two to eight devices of some machine, with or without a limit of memory that
binds; N jobs in a row differ in that limit alone, and are searched each by itself.  With `--frozen` most weights are
never trained: all that have more than one dimension, or those of the first blocks.  `ratio` is the step of what the
search chose over the shortest of all configurations that fit: one where nothing was missed.  `bound` is what the search
proves of all configurations over the same: never above one.  A run with the arguments of one that was stopped goes on
behind the jobs that stand in OUT.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias, get_args

import onnx

from planner.builder import build
from planner.clock import Configuration, Prediction, predict
from planner.cost_models import load_profile
from planner.errors import InputError, UsageError
from planner.frontends import import_bytes
from planner.frontends.facts.stated import FROZEN_KEY, PARAMETERS_KEY
from planner.planning.schemes import spelled
from planner.uniform import Sample, Space, best_of, prove
from planner.uniform.space import every
from planner.work.units import units_of

__all__ = ["main"]

_WIDTHS: Final = (256, 512, 1024, 2048)
_DEVICES: Final = (2, 3, 4, 4, 6, 8)
_BATCHES: Final = (4, 6, 8, 16)
_ATTENTION: Final = ("fused", "unfused")
Frozen: TypeAlias = Literal["matrices", "first"]

_UNLIKE: Final = 100  # jobs in a row that admit no configuration are not met


@dataclass(frozen=True, slots=True)
class Job:
    """`share`: of what the fastest holds more than the one that holds least, how much a device may hold beside
    that; None: all.  `copies`, `offload`: whether
    micro-batches may pass together, and whether activations may wait in the host's memory."""

    architecture: str
    sizes: Mapping[str, Any]
    batch: int
    devices: int
    hardware: str
    share: float | None
    copies: bool = False
    offload: bool = False
    frozen: Frozen | None = None


def job_of(
    dice: random.Random,
    devices: Sequence[int] = _DEVICES,
    batches: Sequence[int] = _BATCHES,
    frozen: Sequence[Frozen | None] = (None,),
) -> Job:
    architecture = dice.choice(("gpt", "llama", "llama", "moe", "bert", "vit"))
    hidden, heads, layers = dice.choice(_WIDTHS), dice.choice((4, 8)), dice.randint(2, 6)
    sizes: dict[str, Any] = {"layers": layers, "hidden": hidden, "heads": heads}
    if architecture != "vit":
        sizes |= {"vocab": dice.choice((1024, 32000)), "seq": dice.choice((128, 512, 2048))}
    if architecture in ("gpt", "llama"):
        sizes["attention"] = dice.choice(_ATTENTION)
    if architecture in ("llama", "moe"):
        sizes |= {"kv_heads": dice.choice((2, heads)), "ffn": hidden * dice.choice((2, 4))}
    hardware = dice.choice(("a100-80", "h100", "v100", "ascend-910b", "b200"))
    batch, count = dice.choice(batches), dice.choice(devices)
    share = dice.choice((None, 0.8, 0.4, 0.1))
    copies, offload = dice.random() < 0.3, dice.random() < 0.3
    kept = dice.choice(frozen) if len(frozen) > 1 else frozen[0]
    return Job(architecture, sizes, batch, count, hardware, share, copies, offload, kept)


def with_frozen(model: bytes, frozen: Frozen | None) -> bytes:
    """The model with metadata that names the weights which are never trained."""
    if frozen is None:
        return model
    graph = import_bytes(model)
    weights = [t for t in graph.parameters if t.name in graph.consumers]
    still = {t.name for t in weights if t.rank > 1}
    if frozen == "first":
        units = units_of(graph).of
        reader = {t.name: min(units[op.name] for op, _ in graph.consumers[t.name]) for t in weights}
        still = {name for name, unit in reader.items() if unit < max(reader.values()) / 2}
    said = onnx.ModelProto.FromString(model)
    for key, names in ((PARAMETERS_KEY, {t.name for t in weights} - still), (FROZEN_KEY, still)):
        said.metadata_props.add(key=key, value=json.dumps(sorted(names)))
    return bytes(said.SerializeToString())


def again(dice: random.Random, job: Job) -> Job:
    """The job under another limit of memory: none, or one that leaves out anything from little to nearly all."""
    return replace(job, share=dice.choice((None, dice.random(), dice.random() ** 3)))


def rows_of(jobs: Sequence[Job]) -> Iterator[dict[str, Any]]:
    """A row for each of some jobs that differ in their `share` alone; none where the model admits no configuration."""
    job = jobs[0]
    profile = load_profile(job.hardware)
    model = build(job.architecture, {**job.sizes, "batch": job.batch}).SerializeToString()
    graph = import_bytes(with_frozen(model, job.frozen), name=job.architecture)
    sample = Sample(graph, profile)
    precision: Literal["fp16", "bf16"] = "fp16" if job.hardware == "v100" else "bf16"
    space = Space(
        job.devices,
        job.batch,
        sample.layers,
        precision,
        experts=sample.has_experts,
        copies=(1, 2) if job.copies else (1,),
        offload=job.offload and profile.host.link_bytes_per_s is not None,
        contexts=sample.contexts,
    )
    known: dict[Configuration, Prediction] = {}
    for c in every(space, profile):
        try:
            known[c] = predict(sample.workload(c), c, profile)
        except (UsageError, InputError):
            continue
    if not known:
        return
    most = min(known.values(), key=lambda p: p.step_time_s).allocated_bytes
    least = min(p.allocated_bytes for p in known.values())
    for job in jobs:
        limit = None if job.share is None else round(least + (most - least) * job.share)
        fitting = [c for c in known if limit is None or round(known[c].allocated_bytes) <= limit]
        begun = time.process_time()
        own = Sample(graph, profile)
        found = best_of(own, space, limit)
        bound = prove(own, space, limit, found.best[0], found.coarse).bound_s if found.best else 0.0
        took = time.process_time() - begun
        row = asdict(job) | {"configurations": len(known), "fitting": len(fitting), "cpu_s": round(took, 2)}
        shortest = min(fitting, key=lambda c: known[c].step_time_s)
        row |= {"shortest": spelled(shortest), "shortest_s": known[shortest].step_time_s, "ratio": float("inf")}
        row["bound"] = bound / known[shortest].step_time_s
        if found.best:
            best = found.best[0]
            row |= {"found": spelled(best.configuration)}
            row["ratio"] = best.prediction.step_time_s / known[shortest].step_time_s
        yield row


def tell(number: int, row: Mapping[str, Any]) -> None:
    high = row.get("bound", 0.0) > 1 + 1e-9
    missed = " BOUND" * high if row["ratio"] <= 1 + 1e-9 else f": {row.get('found')} instead of {row['shortest']}"
    print(
        f"{number:4} {row['architecture']:6} {row['devices']} x {row['hardware']}, {row['fitting']} of "
        f"{row['configurations']} fit, {row['cpu_s']} CPU s, ratio {row['ratio']:.6f}{missed}",
        flush=True,
    )


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=20)
    parser.add_argument(
        "--limits", type=int, default=1, help="limits of memory that each model and machine is tried under"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--devices", default=",".join(map(str, _DEVICES)), help="that are drawn from, with commas")
    parser.add_argument("--batches", default=",".join(map(str, _BATCHES)), help="that are drawn from, with commas")
    parser.add_argument("--frozen", action="store_true", help="most weights are never trained")
    parser.add_argument("--json", type=Path, help="what is written, and what a run that was stopped left")
    options = parser.parse_args(arguments)
    dice = random.Random(options.seed)
    devices, batches = ([int(n) for n in text.split(",")] for text in (options.devices, options.batches))
    rows: list[dict[str, Any]] = []
    before: list[dict[str, Any]] = []
    unlike = 0
    if options.json is not None and options.json.exists():
        before = json.loads(options.json.read_text(encoding="utf-8"))
    while len(rows) < options.jobs:
        job = job_of(dice, devices, batches, get_args(Frozen) if options.frozen else (None,))
        jobs = [job, *(again(dice, job) for _ in range(options.limits - 1))]
        if len(rows) < len(before):  # a job that does not stand there admitted no configuration
            there = before[len(rows) : len(rows) + len(jobs)]
            same = all(asdict(j).items() <= r.items() for j, r in zip(jobs, there, strict=False))
            rows, unlike = [*rows, *there] if same else rows, 0 if same else unlike + 1
            if unlike > _UNLIKE:
                parser.error(f"{options.json} holds jobs of other arguments; give these, or another file")
            continue
        for row in rows_of(jobs):
            tell(len(rows), row)
            rows.append(row)
        if options.json is not None:
            options.json.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    missed_jobs = [r for r in rows if r["ratio"] > 1 + 1e-9]
    too_high = [r for r in rows if r.get("bound", 0.0) > 1 + 1e-9]
    print(
        f"{len(rows) - len(missed_jobs)} of {len(rows)} exact, the worst {max(r['ratio'] for r in rows):.4f}; "
        f"{len(too_high)} bounds above the shortest"
    )
    return 1 if missed_jobs or too_high else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
