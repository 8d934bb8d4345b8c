"""Where the time and the memory of a training step go: seconds by name of kernel, and bytes by part of the step.

Run as `python -m tests.bench.gpu.breakdown --out FILE.jsonl [--seconds N] [--device cpu --tiny]`.  One line per
configuration: every kernel of one step with its count and total time as the profiler saw them, and what the allocator
held before the step, at its peak in the forward pass, at the end of it, and at the peaks of the backward pass and the
update.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from tests.bench.gpu.configurations import CONFIGURATIONS, MODELS, MORE, Config, tiny
from tests.bench.gpu.steps import Training, _clean
from tests.bench.gpu.timing import Lines, describe, nvidia_smi

__all__ = ["BROKEN_DOWN", "main"]

BROKEN_DOWN = (
    "gpt2 mb8", "gpt2 mb8 vocab=50304", "llama-1b mb4", "vit-l mb64", "gpt2 mb16 unfused", "llama-1b mb4 unfused",
    "resnet50 mb128 sgd-fused", "moe mb8 bf16 grouped", "gpt2-xl mb4", "gpt2 mb16 bf16", "llama-1b mb4 bf16",
    "gpt2 mb16 selective unfused", "vit-l mb64 unfused", "moe mb8", "gpt2 mb16 full", "gpt2 mb16 efficient tf32",
    "resnet50 mb128 tf32 sgd-fused", "gpt2 mb8 compiled",
)  # fmt: skip


def _memory(training: Training) -> dict[str, int]:
    """Bytes at the parts of one step."""
    if training.device.type != "cuda":
        return {}
    found: dict[str, int] = {}
    last = ""

    def mark(what: str) -> None:
        nonlocal last
        torch.cuda.synchronize()
        if last:
            found[f"{last}_peak"] = max(found.get(f"{last}_peak", 0), torch.cuda.max_memory_allocated())
            found[f"{last}_end"] = torch.cuda.memory_allocated()
        else:
            found["before"] = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        last = what

    training.step(mark)
    return found


def _kernels(training: Training) -> list[list[Any]]:
    gpu = training.device.type == "cuda"
    with profile(activities=[ProfilerActivity.CUDA if gpu else ProfilerActivity.CPU], acc_events=True) as found:
        training.step()
        if gpu:
            torch.cuda.synchronize()
    out: list[list[Any]] = []
    for k in found.key_averages():
        micro = k.self_device_time_total if gpu else k.self_cpu_time_total
        out.append([k.key[:200], k.count, micro])
    return sorted((k for k in out if k[2] > 0), key=lambda k: -float(k[2]))


def _row(config: Config, sizes: dict[str, Any], device: torch.device) -> dict[str, Any]:
    _clean(device)
    row: dict[str, Any] = {"config": asdict(config), "sizes": sizes, "architecture": MODELS[config.model][0]}
    try:
        training = Training(config, sizes, device)
        for _ in range(3):
            training.step()
        row["memory"] = _memory(training)
        row["kernels"] = _kernels(training)
        row["kernel_s"] = sum(k[2] for k in row["kernels"]) * 1e-6
    except Exception as e:  # one configuration must not end the others
        row["error"] = f"{type(e).__name__}: {str(e)[:300]}"
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="file of JSON lines that is added to")
    parser.add_argument("--seconds", type=float, default=60.0, help="no configuration begins after so long")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--tiny", action="store_true", help="sizes for a trial without a GPU")
    options = parser.parse_args()
    device = torch.device(options.device)
    begin = time.monotonic()
    lines = Lines(options.out, quiet=True)
    lines.put({"machine": describe(device), "state": nvidia_smi()})
    known = {c.name: c for c in (*CONFIGURATIONS, *MORE)}
    for number, name in enumerate(BROKEN_DOWN):
        if time.monotonic() - begin > options.seconds:
            print(f"{len(BROKEN_DOWN) - number} configurations left out", flush=True)
            break
        wanted = known[name]
        config, sizes = tiny(wanted) if options.tiny else (wanted, MODELS[wanted.model][1] | dict(wanted.sizes))
        row = {"name": name, **_row(config, dict(sizes), device)}
        lines.put(row)
        said = row.get("error") or f"{1e3 * row['kernel_s']:.2f} ms in {sum(k[1] for k in row['kernels'])} kernels"
        print(f"{time.monotonic() - begin:6.1f} s  {name}: {said}", flush=True)
    lines.close()


if __name__ == "__main__":
    main()
