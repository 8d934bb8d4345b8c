"""The search against all uniform configurations there are, on forty jobs.

    python -m tests.bench.uniform_jobs [--only PATTERN] [--json OUT] [--search-only]
                                       [--model MODEL.onnx,DEVICES,HARDWARE,BATCH]

Ten models of the builder on 8, 64, 256 and 1,024 devices of four kinds of machine, or the models of files. Every
configuration of the space is priced, without the bounds of the search: each by estimated layouts first, and by its own
layout where the estimate is within `NEAR` of the shortest; `--search-only` leaves that out. Two kinds are not
simulated, since arithmetic tells that they are not the fastest: those that hold more than memory by `ROOM` throughout,
with the activations of one micro-batch, and those whose passes alone, dealt evenly to the ranks of the pipeline, take
longer by `SLOWER` than the plan that was found. `ratio` is the step of the plan that `planner search --space whole`
returns over the shortest of the configurations that fit; `gap` what the plan says of its own step. OUT is written job
by job, and jobs that it has are not run again.
"""

from __future__ import annotations

import argparse
import fnmatch
import gc
import json
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import redirect_stdout
from functools import partial
from io import StringIO
from pathlib import Path
from typing import Any, Final
from weakref import WeakKeyDictionary

from planner.builder import build
from planner.cli.main import main as planner
from planner.clock import Configuration, predict
from planner.clock.memory import chunk_activation_bytes, held_bytes
from planner.clock.passes import Passes, passes_of
from planner.clock.stages import chunks
from planner.cost_models import HardwareProfile, load_profile, usable_memory_bytes
from planner.errors import InputError, UsageError
from planner.frontends import import_bytes
from planner.planning.schemes import spelled
from planner.report.words import time_text
from planner.trace import Workload
from planner.uniform import Sample, Space, configurations
from planner.uniform.space import levels, schedules
from tests.bench.uniform_space import GPT_175B, GPT_XL, LLAMA_7B, LLAMA_70B, MIXTRAL, Job

__all__ = ["main"]

NEAR: Final = 0.03
ROOM: Final = 0.1  # by which an estimated layout may hold more than the configuration's own
MOST_BYTES: Final = 8 << 30  # of memory, for layouts
SLOWER: Final = 0.1  # than the plan that was found: what takes longer by computing alone is not simulated
LLAMA_8B = {
    "layers": 32, "hidden": 4096, "heads": 32, "kv_heads": 8, "ffn": 14336, "vocab": 128256, "seq": 8192,
}  # fmt: skip
GPT_13B = {"layers": 40, "hidden": 5120, "heads": 40, "seq": 2048, "vocab": 50304}
BERT_LARGE = {"layers": 24, "hidden": 1024, "heads": 16, "seq": 512}
VIT_LARGE = {"layers": 24, "hidden": 1024, "heads": 16}
# Architecture, sizes, and samples of a step by the device.
MODELS: Final[Mapping[str, tuple[str, Mapping[str, Any], int]]] = {
    "gpt175b": ("gpt", GPT_175B, 2), "llama70b": ("llama", LLAMA_70B, 2), "llama8b": ("llama", LLAMA_8B, 2),
    "llama7b": ("llama", LLAMA_7B, 4), "gpt13b": ("gpt", GPT_13B, 4), "gpt2xl": ("gpt", GPT_XL, 8),
    "mixtral": ("moe", MIXTRAL, 4), "bert": ("bert", BERT_LARGE, 16), "vit": ("vit", VIT_LARGE, 64),
    "resnet": ("resnet", {}, 64),
}  # fmt: skip
DEVICES: Final = (8, 64, 256, 1024)
MACHINES: Final = ("a100-80", "h100", "b200", "ascend-910b")


def jobs() -> Iterator[tuple[str, Job]]:
    for m, (name, (architecture, sizes, each)) in enumerate(MODELS.items()):
        for d, devices in enumerate(DEVICES):
            machine = MACHINES[(m + d) % len(MACHINES)]
            yield f"{name}-{devices}-{machine}", Job(architecture, sizes, each * devices, devices, machine)


def models(given: Sequence[str]) -> Iterator[tuple[str, Job, Callable[[], bytes]]]:
    """Each of the jobs with one of these models, or of the forty: its name, and what reads or builds its model."""
    for text in given:
        path, devices, machine, batch = text.rsplit(",", 3)
        stem = Path(path).stem
        yield f"{stem}-{devices}-{machine}", Job(stem, {}, int(batch), int(devices), machine), Path(path).read_bytes
    if given:
        return
    for name, job in jobs():
        yield name, job, partial(built, job)


def built(job: Job) -> bytes:
    attention = {"attention": "fused"} if job.architecture in ("gpt", "llama") else {}
    return build(job.architecture, {**job.sizes, **attention, "batch": job.batch}).SerializeToString()


def enumerated(job: Job, model: bytes, found_s: float | None) -> tuple[float | None, str, int, int]:
    """The step of the fastest configuration that fits, how it is spelled, how many there are, and how many of them were
    simulated; `found_s`: the step of the plan that was found.  Where none takes less than that by `SLOWER` more, all
    are."""
    enough = float("inf") if found_s is None else found_s * (1 + SLOWER)
    profile = load_profile(job.hardware)
    graph = import_bytes(model, name=job.architecture, batch=job.batch)
    if graph.loss is None:
        raise InputError(f"{job.architecture}: expected a graph of training, found one without a loss")
    layouts = Layouts(lambda: Sample(graph, profile))
    space, limit = space_of(job, layouts.sample), usable_memory_bytes(profile)
    estimates: list[tuple[float, Configuration]] = []
    count = 0
    # Those that differ in data-parallel ranks and stages alone share layouts, and follow each other.
    meshes = sorted(configurations(space, profile), key=lambda m: (m.tp, m.cp, m.context, m.ep, m.micro_batch, m.dp))
    for c in (v for m in meshes for s in schedules(space, m) for v in levels(space, s)):
        count += 1
        try:
            workload = layouts.sample.estimated(c)
            if passed_at_least(workload, c, profile) >= enough:
                continue
            if limit is None or held_at_least(workload, c) <= limit * (1 + ROOM):
                estimates.append((predict(workload, c, profile).step_time_s, c))
        except (UsageError, InputError):
            continue
    best, which = float("inf"), ""
    for estimate, c in sorted(estimates, key=lambda e: e[0]):
        if estimate * (1 - NEAR) > best:
            break
        p = predict(layouts.sample.workload(c), c, profile)
        if p.step_time_s < best and (limit is None or round(p.allocated_bytes) <= limit):
            best, which = p.step_time_s, spelled(c)
    if best > enough:  # the fastest of all may be one that was left out
        return enumerated(job, model, None)
    return (best if which else None), which, count, len(estimates)


def space_of(job: Job, sample: Sample) -> Space:
    return Space(job.devices, job.batch, sample.layers, experts=sample.has_experts, contexts=sample.contexts)


class Layouts:
    """Layouts of a sample, which holds all that it was asked for: those of a hundred thousand configurations of a
    mixture of experts do not fit in memory, and a new sample is made before."""

    def __init__(self, make: Callable[[], Sample]) -> None:
        self._make, self._sample = make, make()
        self._asked, self._most = 0, MOST_BYTES

    @property
    def sample(self) -> Sample:
        self._asked += 1
        if self._asked % 1000 == 0 and resident_bytes() > self._most:
            del self._sample
            gc.collect()
            self._sample = self._make()
            self._most = max(MOST_BYTES, resident_bytes() + MOST_BYTES // 2)
        return self._sample


def resident_bytes() -> int:
    """Memory of this process now; 0 where the system does not say."""
    statm = Path("/proc/self/statm")
    return int(statm.read_text().split()[1]) * resource.getpagesize() if statm.exists() else 0


def passed_at_least(workload: Workload, c: Configuration, profile: HardwareProfile) -> float:
    """Seconds in which the ranks of a pipeline, on average, pass all micro-batches forward and back."""
    return c.passes * passed_once(passes_of(workload, c, profile)) / c.pp


_PASSED: WeakKeyDictionary[Passes, float] = WeakKeyDictionary()


def passed_once(passes: Passes) -> float:
    if passes not in _PASSED:
        _PASSED[passes] = sum(u.forward.seconds + u.back for u in passes.units)
    return _PASSED[passes]


def held_at_least(workload: Workload, c: Configuration) -> float:
    """Bytes on the fullest pipeline rank with one micro-batch in flight.  UsageError where it has no such chunks."""
    parts = chunks(workload, c.pp * c.virtual_stages, c.stage_layers)
    return max(
        held_bytes(workload, c, parts, d, c.copies * chunk_activation_bytes(workload, c, parts[d])).total
        for d in range(c.pp)
    )


def searched(job: Job, model: bytes) -> dict[str, Any]:
    """What `planner search --space whole` says."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        path.write_bytes(model)
        options = ["--devices", str(job.devices), "--batch", str(job.batch), "--hardware", job.hardware, "--json"]
        said = StringIO()
        with redirect_stdout(said):
            code = planner(
                ["search", str(path), *options, "--space", "whole", "--no-cache", "--force", "--out", f"{folder}/plan"]
            )
    found: dict[str, Any] = json.loads(said.getvalue()) if code == 0 else {}
    return found


def row_of(name: str, job: Job, model: bytes, *, search_only: bool) -> dict[str, Any]:
    begun = time.process_time()
    found = searched(job, model)
    took = time.process_time() - begun
    step = found.get("step_time_s")
    row = {
        "job": name,
        "step_s": step,
        "gap": found.get("gap"),
        "parallelism": found.get("in_words"),
        "uniform_s": (found.get("uniform") or {}).get("step_time_s"),
        "strategy": (found.get("uniform") or {}).get("strategy"),
        "cpu_s": round(took, 1),
    }
    if search_only:
        return row
    shortest, which, count, simulated = enumerated(job, model, step)
    return row | {
        "configurations": count,
        "simulated": simulated,
        "enumerated_s": shortest,
        "enumerated": which,
        "enumeration_cpu_s": round(time.process_time() - begun - took, 1),
        "ratio": 1.0 if step == shortest else None if step is None or shortest is None else step / shortest,
    }


def line_of(row: Mapping[str, Any]) -> str:
    """A line of the table of docs/search-results.md."""
    step, ratio = row["step_s"], row.get("ratio")
    if step is None:
        cells = ["none fits", "", "", "" if ratio is None else "none fits"]
    else:
        enumerated_ = "" if ratio is None else f"{ratio:.3f}"
        cells = [time_text(step), row["parallelism"], f"{row['gap']:.2%}".replace("%", " %"), enumerated_]
    return f"| {' | '.join([row['job'], *cells, str(row['cpu_s'])])} |"


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="*", help="names or patterns of jobs, with commas")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--model", action="append", default=[], help="a job with a model's file; may be repeated")
    parser.add_argument("--search-only", action="store_true", help="search alone, for its gaps and its time")
    options = parser.parse_args(arguments)
    rows: list[dict[str, Any]] = []
    if options.json is not None and options.json.exists():
        rows = json.loads(options.json.read_text())
    known = {r["job"] for r in rows}
    for name, job, model in models(options.model):
        if name in known or not any(fnmatch.fnmatch(name, pattern) for pattern in options.only.split(",")):
            continue
        row = row_of(name, job, model(), search_only=options.search_only)
        rows.append(row)
        print(json.dumps(row), flush=True)
        if options.json is not None:
            options.json.write_text(json.dumps(rows, indent=1) + "\n")
    order = {name: i for i, (name, _) in enumerate(jobs())}
    print("\n".join(map(line_of, sorted(rows, key=lambda r: order.get(r["job"], len(order))))))
    ratios = [r["ratio"] for r in rows if r.get("ratio") is not None]
    gaps = [r["gap"] for r in rows if r["gap"] is not None]
    if ratios:
        print(f"{len(ratios)} jobs: largest ratio {max(ratios):.4f}, median {statistics.median(ratios):.4f}")
    if gaps:
        print(f"gap of at most 2 %: {sum(g <= 0.02 for g in gaps)} of {len(gaps)}")
    return 1 if any(r > 1 + 1e-9 for r in ratios) else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
