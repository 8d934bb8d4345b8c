"""What lies in a GPU's memory at the fullest moment of a step of `planner.torch`, by who allocated it.

    torchrun --nproc-per-node 1 -m tests.bench.gpu.fullest --out FOLDER [--only NAMES] [--kernels [--trace]]

Weights in single precision are trained in bf16, with and without full recomputation, interpreted and compiled.  The
allocator says what it hands out and takes back, with the stack of who asked; what lives at the peak of a step is
summed by the innermost functions of the planner on that stack.  `--kernels`: instead, the time of a compiled step's
kernels by name, of the plain module and of the plan.

Each line of FOLDER/module.jsonl is one measurement: give a folder that outlives a call that is cut off.
"""

from __future__ import annotations

import argparse
import json
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import torch
import torch._inductor.config
import torch.distributed as dist
from torch import Tensor, nn

import planner.torch
from tests.bench.gpu.module import Bench, models

STEPS: Final = 3
_MOST: Final = 40  # rows of a table


def lived(events: Iterable[Mapping[str, Any]], begin: int) -> tuple[int, dict[tuple[str, int], int]]:
    """The most bytes that lived at a time behind the event number `begin`, and how many allocations of a kind did."""
    live: dict[int, tuple[str, int]] = {}
    held = peak = 0
    at_peak: dict[tuple[str, int], int] = {}
    there: Counter[tuple[str, int]] = Counter()
    for number, event in enumerate(events):
        if event["action"] == "alloc":
            key = whose(event["frames"]), event["size"]
            live[event["addr"]] = key
            there[key] += 1
            held += event["size"]
            if number >= begin and held > peak:
                peak, at_peak = held, dict(there)
        elif event["action"] == "free_completed" and event["addr"] in live:
            key = live.pop(event["addr"])
            there[key] -= 1
            held -= key[1]
    return peak, {k: n for k, n in at_peak.items() if n}


def whose(frames: Iterable[Mapping[str, Any]]) -> str:
    """The innermost functions of the planner, and the innermost of all."""
    listed = list(frames)
    own = [f"{Path(f['filename']).stem}:{f['line']} {f['name']}" for f in listed if "/planner/" in f["filename"]]
    innermost = f"{Path(listed[0]['filename']).stem}:{listed[0]['line']} {listed[0]['name']}" if listed else "?"
    return " < ".join([*own[:3]] or [innermost])


class Fullest(Bench):
    def step(self, module: nn.Module, parts: Any, x: Tensor, y: Tensor, *, planned: bool) -> Callable[[], None]:
        optimizer = torch.optim.AdamW(module.parameters(), lr=1e-4, fused=True)

        def step() -> None:
            loss = module(x, y) if planned else parts[2](module(x), y)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()

        return step

    def memory(self, name: str, parts: Any, mode: str, recompute: str) -> None:
        make, batch, loss_function = parts
        torch.cuda.memory._record_memory_history("all", context="alloc", stacks="python", max_entries=4_000_000)
        module, (x, y) = self._ready(make, batch, torch.float32)
        plan = planner.torch.plan(
            module, x, targets=y, loss=loss_function, devices=1, hardware=self.hardware, cache=False, precision="bf16",
            strategy=f"ddp:recompute={recompute}",
        )  # fmt: skip
        step = self.step(planner.torch.parallelize(module, plan, mode=mode), parts, x, y, planned=True)
        for _ in range(STEPS - 1):
            step()
        self.synchronize()
        begin = len(torch.cuda.memory._snapshot()["device_traces"][0])
        torch.cuda.reset_peak_memory_stats()
        step()
        self.synchronize()
        measured = torch.cuda.max_memory_allocated()
        peak, there = lived(torch.cuda.memory._snapshot()["device_traces"][0], begin)
        torch.cuda.memory._record_memory_history(None)
        cost = plan.plan.document.cost
        rows = sorted(((n * size, n, size, who) for (who, size), n in there.items()), reverse=True)[:_MOST]
        self.note(part="memory", model=name, mode=mode, recompute=recompute, peak_bytes=measured, replayed_bytes=peak,
                  predicted_bytes=cost.peak_memory_bytes, memory=cost.memory_bytes, rows=rows)  # fmt: skip

    def kernels(self, name: str, parts: Any, *, planned: bool, traced: bool) -> None:
        make, batch, loss_function = parts
        module, (x, y) = self._ready(make, batch, torch.bfloat16)
        if planned:
            plan = planner.torch.plan(module, x, targets=y, loss=loss_function, devices=1, hardware=self.hardware,
                                      cache=False)  # fmt: skip
            step = self.step(planner.torch.parallelize(module, plan, mode="compiled"), parts, x, y, planned=True)
        else:
            step = self.step(torch.compile(module), parts, x, y, planned=False)
        for _ in range(STEPS):
            step()
        self.synchronize()
        begin = time.perf_counter()
        for _ in range(20):
            step()
        host = (time.perf_counter() - begin) / 20
        self.synchronize()
        seconds = (time.perf_counter() - begin) / 20
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as found:
            for _ in range(STEPS):
                step()
            self.synchronize()
        if traced:
            with torch.profiler.profile() as both:
                for _ in range(STEPS):
                    step()
                self.synchronize()
            both.export_chrome_trace(str(self.out / f"{name}-{'plan' if planned else 'plain'}.json.gz"))
        rows = sorted(
            ((e.self_device_time_total / 1e3 / STEPS, e.count / STEPS, e.key[:110]) for e in found.key_averages()),
            reverse=True,
        )
        self.note(part="kernels", model=name, way="plan" if planned else "plain", seconds=seconds, host_s=host,
                  reads=torch._inductor.config.realize_reads_threshold, device_ms=sum(r[0] for r in rows),
                  rows=rows[:_MOST])  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--hardware", default="h200-one")
    parser.add_argument("--only", default="")
    parser.add_argument("--modes", default="eager,compiled")
    parser.add_argument("--seconds", type=float, default=200)
    parser.add_argument("--kernels", action="store_true")
    parser.add_argument("--trace", action="store_true", help="of --kernels: steps of host and device as Chrome traces")
    parser.add_argument("--ways", default="plain,plan", help="of --kernels")
    parser.add_argument("--reads", type=int, help="Inductor's realize_reads_threshold")
    o = parser.parse_args()
    if o.reads is not None:
        torch._inductor.config.realize_reads_threshold = o.reads
    torch.cuda.set_device(0)
    dist.init_process_group("nccl")
    bench = Fullest(o.out, torch.device("cuda"), o.hardware, time.monotonic() + o.seconds)
    for name, parts in models(tiny=False).items():
        if o.only and name not in o.only.split(","):
            continue
        if o.kernels:
            for way in o.ways.split(","):
                bench.tried(f"{name} {way}", bench.kernels, name, parts, planned=way == "plan", traced=o.trace)
            continue
        for mode in o.modes.split(","):
            for recompute in ("none", "full"):
                bench.tried(f"{name} {mode} {recompute}", bench.memory, name, parts, mode, recompute)
    dist.destroy_process_group()
    print(json.dumps({"done": True}))


if __name__ == "__main__":
    main()
