"""`planner.torch` on one GPU with NCCL: the same training as the plain module, its time and memory beside it.

    torchrun --nproc-per-node 1 -m tests.bench.gpu.module --out FOLDER [--device cpu] [--only PARTS] [--tiny]

- `small`: the models of `tests.torch.models`, twenty steps, against the plain module on the same device
- `steps`: GPT-2 small and medium, a Llama-shaped decoder and a ViT: seconds of a step and peak memory of the plain
  module, compiled, and of plans with and without recomputation, interpreted and compiled; memory beside the plan's
- `compiled`: the first two of these alone, the plain module and the plan, both compiled
- `profile`: what every type of operator takes (`planner.torch.profile`), beside the plan's prediction
- `sweep`: sizes of a micro-batch, each with and without recomputation, compiled, beside the plan's prediction

Each line of FOLDER/module.jsonl is one measurement.
"""

from __future__ import annotations

import argparse
import gc
import json
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional

import planner.torch
from tests.torch.models import CASES
from tests.torch.training import made, step_loss

WARM, TIMED = 3, 10


class Block(nn.Module):
    """A decoder's or an encoder's block, with torch's fused attention."""

    def __init__(self, width: int, heads: int, *, causal: bool, gated: bool) -> None:
        super().__init__()
        norm = nn.RMSNorm if gated else nn.LayerNorm
        self.heads, self.causal, self.gated = heads, causal, gated
        self.norm1, self.norm2 = norm(width), norm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=not gated), nn.Linear(width, width, bias=not gated)
        inner = 8 * width // 3 // 64 * 64 if gated else 4 * width
        self.up, self.down = nn.Linear(width, inner, bias=not gated), nn.Linear(inner, width, bias=not gated)
        self.gate = nn.Linear(width, inner, bias=False) if gated else None

    def forward(self, x: Tensor) -> Tensor:
        b, s, w = x.shape
        q, k, v = (t.view(b, s, self.heads, -1).transpose(1, 2) for t in self.qkv(self.norm1(x)).split(w, 2))
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        x = x + self.out(y.transpose(1, 2).reshape(b, s, w))
        h = self.norm2(x)
        inner = functional.silu(self.gate(h)) * self.up(h) if self.gate is not None else functional.gelu(self.up(h))
        return x + self.down(inner)


class Decoder(nn.Module):
    def __init__(self, layers: int, width: int, heads: int, words: int, length: int, *, gated: bool = False) -> None:
        super().__init__()
        self.wte, self.wpe = nn.Embedding(words, width), nn.Embedding(length, width)
        self.h = nn.ModuleList(Block(width, heads, causal=True, gated=gated) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, words, bias=False)

    def forward(self, idx: Tensor) -> Tensor:
        x = self.wte(idx) + self.wpe(torch.arange(idx.shape[1], device=idx.device))
        for block in self.h:
            x = block(x)
        return self.head(self.norm(x))


class Vision(nn.Module):
    def __init__(self, layers: int, width: int, heads: int) -> None:
        super().__init__()
        self.patches, self.positions = nn.Conv2d(3, width, 16, 16), nn.Parameter(torch.zeros(1, 196, width))
        self.blocks = nn.ModuleList(Block(width, heads, causal=False, gated=False) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 1000)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2) + self.positions
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x).mean(1))


def next_word(scores: Tensor, labels: Tensor) -> Tensor:
    return functional.cross_entropy(scores.view(-1, scores.shape[-1]), labels.view(-1))


def models(tiny: bool) -> dict[str, tuple[Callable[[], nn.Module], Callable[[], tuple[Tensor, Tensor]], Any]]:
    """Name → module, a batch, and its loss."""
    length, batch = (32, 2) if tiny else (1024, 8)

    def words(most: int, samples: int = batch) -> Callable[[], tuple[Tensor, Tensor]]:
        return lambda: (torch.randint(0, most, (samples, length)), torch.randint(0, most, (samples, length)))

    if tiny:
        return {
            "gpt2": (lambda: Decoder(2, 64, 4, 256, length), words(256), next_word),
            "vit-b": (lambda: Vision(2, 64, 4), lambda: (torch.randn(2, 3, 224, 224), torch.randint(0, 1000, (2,))),
                      functional.cross_entropy),
        }  # fmt: skip
    return {
        "gpt2": (lambda: Decoder(12, 768, 12, 50304, length), words(50304), next_word),
        "llama-1b": (lambda: Decoder(16, 2048, 16, 32000, length, gated=True), words(32000, 4), next_word),
        "vit-b": (lambda: Vision(12, 768, 12), lambda: (torch.randn(64, 3, 224, 224), torch.randint(0, 1000, (64,))),
                  functional.cross_entropy),
    }  # fmt: skip


class Bench:
    def __init__(self, out: Path, device: torch.device, hardware: str, end: float) -> None:
        self.out, self.device, self.hardware, self.end = out, device, hardware, end
        out.mkdir(parents=True, exist_ok=True)

    def note(self, **row: Any) -> None:
        print(json.dumps(row), flush=True)
        with (self.out / "module.jsonl").open("a") as file:
            file.write(json.dumps(row) + "\n")

    def synchronize(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize()

    # Small models

    def small(self, name: str, mode: str, steps: int = 20) -> None:
        case, plain = made(name), made(name)
        for c in (case, plain):
            c.module.to(self.device)
            c.inputs, c.targets = (tuple(x.to(self.device) for x in each) for each in (c.inputs, c.targets))
            c.kwargs = {k: v.to(self.device) for k, v in c.kwargs.items()}
        plan = planner.torch.plan(case.module, case.kwargs or case.inputs, targets=case.targets, loss=case.loss,
                                  devices=1, hardware=self.hardware, cache=False)  # fmt: skip
        module = planner.torch.parallelize(case.module, plan, mode=mode)
        losses = []
        for c, parallel in ((case, True), (plain, False)):
            optimizer = torch.optim.SGD(c.module.parameters(), lr=1e-2, momentum=0.9)
            found = []
            for _ in range(steps):
                loss = step_loss(c, c.module, parallel=parallel)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                found.append(loss.item())
            losses.append(found)
        state = planner.torch.whole_state_dict(module)
        apart = max(
            float((state[n].float() - v.float()).abs().max()) / max(float(v.float().abs().max()), 1e-6)
            for n, v in plain.module.state_dict().items()
        )
        self.note(part="small", model=name, mode=mode, steps=steps, loss=losses[0][-1], plain=losses[1][-1],
                  loss_apart=max(abs(a - b) / abs(b) for a, b in zip(*losses, strict=True)), state_apart=apart,
                  fallbacks=sorted(module._planner.stage.fallbacks))  # fmt: skip

    # Steps

    def timed(self, step: Callable[[], Tensor]) -> dict[str, Any]:
        begin = time.perf_counter()
        step()
        self.synchronize()
        first = time.perf_counter() - begin
        for _ in range(WARM):
            step()
        self.synchronize()
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats()
        times = []
        for _ in range(5):  # as a loop runs: the host goes ahead of the device
            begin = time.perf_counter()
            for _ in range(TIMED):
                loss = step()
            self.synchronize()
            times.append((time.perf_counter() - begin) / TIMED)
        peak = torch.cuda.max_memory_allocated() if self.device.type == "cuda" else 0
        return {"seconds": median(times), "least": min(times), "first": first, "peak_bytes": peak, "loss": loss.item()}

    def plain(self, name: str, parts: Any, dtype: torch.dtype, compiled: bool) -> None:
        make, batch, loss_function = parts
        module, (x, y) = self._ready(make, batch, dtype)
        optimizer = torch.optim.AdamW(module.parameters(), lr=1e-4, fused=True)
        forward = torch.compile(module) if compiled else module

        def step() -> Tensor:
            loss = loss_function(forward(x), y)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            return loss.detach()

        self.note(part="steps", model=name, way="plain", dtype=str(dtype), compiled=compiled, **self.timed(step))

    def planned(self, name: str, parts: Any, dtype: torch.dtype, mode: str, **options: Any) -> None:
        make, batch, loss_function = parts
        module, (x, y) = self._ready(make, batch, dtype)
        begin = time.perf_counter()
        plan = planner.torch.plan(module, x, targets=y, loss=loss_function, devices=1, hardware=self.hardware,
                                  cache=False, **options)  # fmt: skip
        planned = time.perf_counter() - begin
        module = planner.torch.parallelize(module, plan, mode=mode)
        optimizer = torch.optim.AdamW(module.parameters(), lr=1e-4, fused=True)

        def step() -> Tensor:
            loss = module(x, y)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            return loss.detach()

        found = self.timed(step)
        cost = plan.plan.document.cost
        self.note(part="steps", model=name, way="plan", dtype=str(dtype), mode=mode, options=options,
                  parallelism=plan.parallelism, planned_in=planned, predicted_seconds=cost.step_time_s,
                  predicted_bytes=cost.peak_memory_bytes, memory=cost.memory_bytes,
                  fallbacks=sorted(module._planner.stage.fallbacks), **found)  # fmt: skip

    def profiled(self, name: str, parts: Any, dtype: torch.dtype, **options: Any) -> None:
        make, batch, loss_function = parts
        module, (x, y) = self._ready(make, batch, dtype)
        plan = planner.torch.plan(module, x, targets=y, loss=loss_function, devices=1, hardware=self.hardware,
                                  cache=False, **options)  # fmt: skip
        module = planner.torch.parallelize(module, plan)
        optimizer = torch.optim.AdamW(module.parameters(), lr=1e-4, fused=True)
        found = planner.torch.profile(module, x, y, steps=5, optimizer=optimizer)
        print(found, flush=True)
        types: dict[str, list[float]] = {}
        for r in found.rows:
            known = types.setdefault(f"{r.type} {r.kind}", [0, 0.0, 0.0])
            for k, value in enumerate((r.times, r.measured_s, r.predicted_s or 0.0)):
                known[k] += value
        self.note(part="profile", model=name, dtype=str(dtype), options=options, step_s=found.step_s,
                  watched_s=found.watched_s, predicted_s=found.predicted_step_s, types=types)  # fmt: skip

    def _ready(self, make: Any, batch: Any, dtype: torch.dtype) -> tuple[nn.Module, tuple[Tensor, Tensor]]:
        torch.manual_seed(0)
        gc.collect()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
        torch._dynamo.reset()
        module = make().to(self.device, dtype)
        x, y = batch()
        x = x.to(self.device, dtype) if x.is_floating_point() else x.to(self.device)
        return module, (x, y.to(self.device))

    def tried(self, what: str, function: Callable[..., None], *arguments: Any, **options: Any) -> None:
        if time.monotonic() > self.end:
            print(f"no time for {what}", flush=True)
            return
        try:
            function(*arguments, **options)
        except Exception as error:
            traceback.print_exc()
            self.note(part="failed", what=what, error=f"{type(error).__name__}: {error}"[:400])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--hardware", default="h200-one")
    parser.add_argument("--only", default="small,steps")
    parser.add_argument("--seconds", type=float, default=400)
    parser.add_argument("--models", default="")
    parser.add_argument("--tiny", action="store_true")
    o = parser.parse_args()
    device = torch.device(o.device)
    if device.type == "cuda":
        torch.cuda.set_device(0)
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    bench = Bench(o.out, device, o.hardware, time.monotonic() + o.seconds)
    chosen = [n for n in o.models.split(",") if n]
    if "small" in o.only:
        for name in [n for n in CASES if not chosen or n in chosen]:
            bench.tried(f"{name} eager", bench.small, name, "eager")
        for name in [n for n in ("mlp", "nanogpt", "resnet") if not chosen or n in chosen]:
            bench.tried(f"{name} compiled", bench.small, name, "compiled")
    listed = [(n, parts) for n, parts in models(o.tiny).items() if not chosen or n in chosen]
    if "compiled" in o.only:
        for name, parts in listed:
            bench.tried(f"{name} plain", bench.plain, name, parts, torch.bfloat16, True)
            bench.tried(f"{name} plan", bench.planned, name, parts, torch.bfloat16, "compiled")
    if "profile" in o.only:
        for name, parts in listed:
            bench.tried(f"{name} profile", bench.profiled, name, parts, torch.bfloat16)
    if "sweep" in o.only:
        for name, parts in listed:
            samples = len(parts[1]()[0])
            for size in (samples, samples // 2):
                for recompute in ("none", "full"):
                    bench.tried(f"{name} {size} {recompute}", bench.planned, name, parts, torch.bfloat16, "compiled",
                                strategy=f"ddp:micro_batch={max(size, 1)},recompute={recompute}")  # fmt: skip
    if "steps" in o.only:
        low = torch.bfloat16
        for name, parts in listed:
            bench.tried(f"{name} plain", bench.plain, name, parts, low, True)
            bench.tried(f"{name} plan", bench.planned, name, parts, low, "compiled")
            for recompute in ("none", "selective", "full"):  # weights in single precision, computed in bf16
                bench.tried(f"{name} {recompute}", bench.planned, name, parts, torch.float32, "eager", precision="bf16",
                            strategy=f"ddp:recompute={recompute}")  # fmt: skip
            bench.tried(f"{name} plain eager", bench.plain, name, parts, low, False)
            if name == "gpt2":
                bench.tried(f"{name} mixed", bench.planned, name, parts, torch.float32, "compiled", precision="bf16")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
