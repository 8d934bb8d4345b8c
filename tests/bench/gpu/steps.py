"""Training steps of whole models on one GPU: seconds and peak memory of about seventy configurations.

Run as `python -m tests.bench.gpu.steps --out FILE.jsonl [--traces FOLDER] [--seconds N] [--device cpu --tiny]` from the
repository root.  Each configuration is built on the device, runs three steps to warm up (more where it is compiled)
and ten that are timed between events in the device's queue, accumulation inside; the steps follow each other as in
training, so that the host runs ahead where it can.  A step is forward and backward of every micro-batch, the
optimizer's update and dropping the gradients.  Memory is what PyTorch's allocator says: the peak of the timed steps
and of the whole run, allocated and reserved.  A configuration that runs out of memory is a result, too.  Each line is
written when it is there; configurations come in the order of `CONFIGURATIONS`, and none begins after `--seconds`.
Plain PyTorch: nothing of the planner is imported.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn

from tests.bench.gpu.configurations import CONFIGURATIONS, MODELS, MORE, Config, tiny
from tests.bench.gpu.models import Choices, build, compile_blocks
from tests.bench.gpu.timing import Lines, describe, nvidia_smi

__all__ = ["main"]

WARM, TIMED, BATCHES = 3, 10, 4
_LONG_S = 0.35  # steps that take longer are timed fewer times


class Training:
    """A configuration laid out on the device."""

    def __init__(self, config: Config, sizes: Mapping[str, Any], device: torch.device) -> None:
        self.config, self.device, self.sizes = config, device, sizes
        self.architecture = MODELS[config.model][0]
        _set_backends(config, device)
        torch.manual_seed(0)
        choices = Choices(config.attention, config.recompute, config.experts)
        with device:
            self.model = build(self.architecture, sizes, choices)
        if config.precision == "bf16":
            self.model.to(torch.bfloat16)
        if self.architecture == "resnet":
            self.model.to(memory_format=torch.channels_last)
        if config.compiled:
            compile_blocks(self.model)
        self.weights = sum(p.numel() for p in self.model.parameters())
        self.optimizer = _optimizer(config, self.model)
        self.batches = [self._batch() for _ in range(BATCHES)]
        self.done = 0

    def _batch(self) -> tuple[Tensor, Tensor]:
        s, n = self.sizes, self.config.micro_batch
        if self.architecture in ("vit", "resnet"):
            kind = torch.bfloat16 if self.config.precision == "bf16" else torch.float32
            images = torch.randn(n, 3, s["image"], s["image"], device=self.device, dtype=kind)
            if self.architecture == "resnet":
                images = images.contiguous(memory_format=torch.channels_last)
            return images, torch.randint(s["classes"], (n,), device=self.device)
        tokens = torch.randint(s["vocab"], (n, s["seq"] + 1), device=self.device)
        return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()

    def step(self, mark: Callable[[str], None] = lambda _: None) -> Tensor:
        """One step; `mark` is told what begins."""
        loss = torch.zeros(())
        for _ in range(self.config.accumulation):
            inputs, labels = self.batches[self.done % BATCHES]
            self.done += 1
            mark("forward")
            mixed = (
                torch.autocast(self.device.type, torch.bfloat16) if self.config.precision == "amp" else nullcontext()
            )
            with mixed:
                loss = self.model(inputs, labels)
            mark("backward")
            (loss / self.config.accumulation).backward()
        mark("update")
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        mark("end")
        return loss


def _set_backends(config: Config, device: torch.device) -> None:
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = config.precision == "tf32"
    torch.backends.cudnn.benchmark = config.model.startswith("resnet")
    if device.type == "cuda" and config.attention != "unfused":
        torch.backends.cuda.enable_flash_sdp(config.attention == "flash")
        torch.backends.cuda.enable_cudnn_sdp(config.attention == "cudnn")
        torch.backends.cuda.enable_mem_efficient_sdp(config.attention == "efficient")
        torch.backends.cuda.enable_math_sdp(config.attention == "math")


def _optimizer(config: Config, model: nn.Module) -> torch.optim.Optimizer:
    fused = config.optimizer.endswith("fused")
    if config.optimizer.startswith("sgd"):
        return torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9, fused=fused, foreach=not fused)
    return torch.optim.AdamW(model.parameters(), lr=1e-4, fused=fused, foreach=not fused)


class _Marks:
    """Events at the begin of the parts of a step; on the CPU, readings of the host's clock."""

    def __init__(self, device: torch.device) -> None:
        self.gpu = device.type == "cuda"
        self.found: list[tuple[str, Any]] = []

    def __call__(self, what: str) -> None:
        if not self.gpu:
            self.found.append((what, time.perf_counter()))
            return
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        self.found.append((what, event))

    def _between(self, a: Any, b: Any) -> float:
        return float(a.elapsed_time(b)) * 1e-3 if self.gpu else float(b - a)

    def seconds(self) -> dict[str, float]:
        parts: dict[str, float] = {}
        for (what, a), (_, b) in pairwise(self.found):
            parts[what] = parts.get(what, 0.0) + self._between(a, b)
        return {**parts, "step": self._between(self.found[0][1], self.found[-1][1])}


def measure(
    config: Config, sizes: Mapping[str, Any], device: torch.device, warm: int = WARM, timed: int = TIMED
) -> dict[str, Any]:
    """Times and memory of one configuration; what went wrong instead."""
    row: dict[str, Any] = {"config": asdict(config), "architecture": MODELS[config.model][0], "sizes": dict(sizes)}
    _clean(device)
    begin = time.perf_counter()
    training: Training | None = None
    try:
        training = Training(config, sizes, device)
        row["weights"] = training.weights
        for _ in range(warm):
            loss = training.step()
        row["loss"] = float(loss.detach())
        row["ready_s"] = time.perf_counter() - begin
        row |= _timed(training, device, timed)
    except torch.OutOfMemoryError as e:
        row["error"], row["detail"] = "out of memory", str(e).splitlines()[0][:200]
    except Exception as e:  # one configuration must not end the others
        row["error"] = f"{type(e).__name__}: {str(e)[:400]}"
    if device.type == "cuda":
        whole = (torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved())
        before = row.pop("warm_peak", (0, 0))
        row["whole_allocated"], row["whole_reserved"] = (max(a, b) for a, b in zip(whole, before, strict=True))
    row["seconds"] = time.perf_counter() - begin
    return row


def _timed(training: Training, device: torch.device, timed: int) -> dict[str, Any]:
    out: dict[str, Any] = {}
    gpu = device.type == "cuda"
    if gpu:
        torch.cuda.synchronize()
        out["warm_peak"] = (torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved())
        torch.cuda.reset_peak_memory_stats()
        out["resident"] = torch.cuda.memory_allocated()
    begin = time.perf_counter()
    training.step()
    out["host_s"] = time.perf_counter() - begin  # until the host has handed a step over
    if gpu:
        torch.cuda.synchronize()
    count = timed if time.perf_counter() - begin < _LONG_S else timed // 2 + 1
    marks = [_Marks(device) for _ in range(count)]
    for m in marks:
        training.step(m)
    if gpu:
        torch.cuda.synchronize()
        out["peak_allocated"], out["peak_reserved"] = (
            torch.cuda.max_memory_allocated(),
            torch.cuda.max_memory_reserved(),
        )
    found = [m.seconds() for m in marks]
    # From the begin of one step to that of the next, as training goes on; the last has no next.
    whole = [m._between(m.found[0][1], n.found[0][1]) for m, n in pairwise(marks)]
    times = [*whole, found[-1]["step"]]
    out |= {f"{part}_s": median(f[part] for f in found) for part in ("forward", "backward", "update")}
    out |= {"median_s": median(times), "min_s": min(times), "max_s": max(times), "times_s": times}
    out["spread"] = (max(times) - min(times)) / median(times)
    return out


def _clean(device: torch.device) -> None:
    torch._dynamo.reset()
    gc.collect()
    if device.type == "cuda":
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


def trace(config: Config, sizes: Mapping[str, Any], device: torch.device, file: Path) -> None:
    """One step as the profiler sees it, for chrome://tracing."""
    from torch.profiler import ProfilerActivity, profile

    _clean(device)
    training = Training(config, sizes, device)
    for _ in range(WARM):
        training.step()
    kinds = [ProfilerActivity.CPU] + ([ProfilerActivity.CUDA] if device.type == "cuda" else [])
    with profile(activities=kinds, record_shapes=True) as found:
        training.step()
        if device.type == "cuda":
            torch.cuda.synchronize()
    found.export_chrome_trace(str(file))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="file of JSON lines that is added to")
    parser.add_argument("--traces", type=Path, help="folder for two traces of the profiler")
    parser.add_argument("--seconds", type=float, default=330.0, help="no configuration begins after so long")
    parser.add_argument("--first", type=int, help="only so many configurations")
    parser.add_argument("--only", default="", help="configurations whose name holds this")
    parser.add_argument("--more", action="store_true", help="the configurations of a second look instead")
    parser.add_argument("--smoke", action="store_true", help="one configuration of each kind, and two timed steps")
    parser.add_argument("--resume", action="store_true", help="leave out what the file says was begun")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--tiny", action="store_true", help="sizes for a trial without a GPU")
    options = parser.parse_args()
    device = torch.device(options.device)
    begin = time.monotonic()
    begun = _begun(options.out) if options.resume else set()
    lines = Lines(options.out, quiet=True)
    lines.put({"machine": describe(device), "state": nvidia_smi()})
    chosen = [c for c in (MORE if options.more else CONFIGURATIONS) if options.only in c.name][: options.first]
    if options.smoke:
        chosen = [c for name in SMOKE for c in CONFIGURATIONS if c.name == name]
    chosen = [c for c in chosen if c.name not in begun]
    for number, wanted in enumerate(chosen):
        if time.monotonic() - begin > options.seconds:
            print(f"{len(chosen) - number} configurations left out, {options.seconds:g} s are over", flush=True)
            break
        config, sizes = (tiny(wanted)) if options.tiny else (wanted, MODELS[wanted.model][1] | dict(wanted.sizes))
        lines.put({"begun": wanted.name})
        row = measure(config, sizes, device, warm=1 if options.smoke else WARM, timed=2 if options.smoke else TIMED)
        row["name"] = wanted.name
        if number in (len(chosen) // 4, len(chosen) // 2, 3 * len(chosen) // 4):
            row["state"] = nvidia_smi()
        lines.put(row)
        _show(row, time.monotonic() - begin)
        if _BROKEN in row.get("error", ""):
            print("the device does not answer this process any more; --resume goes on in another", flush=True)
            lines.close()
            sys.exit(3)
        if options.traces is not None and wanted.name in TRACED:
            file = options.traces / f"trace_{TRACED[wanted.name]}.json.gz"
            try:
                trace(config, sizes, device, file)
            except Exception as e:  # a trace less must not end the measurements
                print(f"no trace of {wanted.name}: {type(e).__name__}: {e}", flush=True)
    lines.put({"state": nvidia_smi(), "seconds": time.monotonic() - begin})
    lines.close()


SMOKE = (
    "gpt2 mb8", "llama-1b mb4", "moe mb8", "moe mb8 bf16 grouped", "vit-l mb64", "resnet50 mb128 sgd-fused",
    "gpt2 mb16 selective unfused", "gpt2 mb16 unfused", "gpt2 mb16 cudnn", "gpt2 mb16 efficient tf32", "gpt2 mb16 bf16",
    "gpt2-xl mb8 full", "llama-1b mb4 cudnn", "resnet50 mb128 full sgd-fused", "gpt2 mb8 compiled",
)  # fmt: skip
_BROKEN = "CUDA error"  # after which every call of the process fails
TRACED = {"gpt2 mb8": "eager", "gpt2 mb8 compiled": "compiled"}


def _begun(file: Path) -> set[str]:
    if not file.exists():
        return set()
    rows = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    return {row["begun"] for row in rows if "begun" in row}


def _show(row: Mapping[str, Any], at: float) -> None:
    if "error" in row:
        print(f"{at:6.1f} s  {row['name']}: {row['error'][:160]}", flush=True)
        return
    memory = row.get("peak_allocated", 0) / 2**30
    print(f"{at:6.1f} s  {row['name']}: {1e3 * row['median_s']:.2f} ms ({100 * row['spread']:.1f} %), host"
          f" {1e3 * row['host_s']:.2f} ms, {memory:.2f} GiB", flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
