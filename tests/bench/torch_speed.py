"""CPU seconds of a training step on two processes: plans beside torch's own recipes on the same module.

    torchrun --nproc-per-node 2 -m tests.bench.torch_speed [--model NAME] [--json FILE] [--rounds N] [--only WAYS] \
        [--hardware PROFILE] [--mode MODE]

In another mode than compiled torch's own recipes are not compiled either.

All ways train the same model (a decoder, a vision transformer, a perceptron) in the same processes, in turns; what
counts is the CPU time of a process (all its threads), forward, backward and fused AdamW, so that it does not matter who
waits for whom.  Ratios are of medians.

    ddp         DistributedDataParallel, compiled         our ddp         weights whole on every rank
    fsdp        fully_shard of every block, compiled      our zero3       the same layout
    tp          parallelize_module, column and row wise   our tp          the same split
    half        what a rank computes under tp, without any collective: no program of this split takes less
                                                          searched        what the planner finds for this machine
                                                          tuned           the fastest of the four it predicts fastest
"""

from __future__ import annotations

import argparse
import copy
import json
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any, get_args

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.nn import functional

import planner.torch
from planner.torch.parallel import Mode

LENGTH, WORDS, BATCH = 128, 2048, 8


class Attention(nn.Module):
    def __init__(self, width: int, depth: int, causal: bool) -> None:
        super().__init__()
        self.depth, self.causal = depth, causal
        self.q, self.k, self.v, self.o = (nn.Linear(width, width) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        b, s, _ = x.shape
        q, k, v = (p(x).view(b, s, -1, self.depth).transpose(1, 2) for p in (self.q, self.k, self.v))
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        return self.o(y.transpose(1, 2).reshape(b, s, -1))


class Block(nn.Module):
    def __init__(self, width: int, depth: int, causal: bool = True) -> None:
        super().__init__()
        self.norm1, self.norm2, self.attention = (
            nn.LayerNorm(width),
            nn.LayerNorm(width),
            Attention(width, depth, causal),
        )
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.down(functional.gelu(self.up(self.norm2(x))))


class Decoder(nn.Module):
    def __init__(self, layers: int = 4, width: int = 256, depth: int = 32) -> None:
        super().__init__()
        self.wte, self.wpe = nn.Embedding(WORDS, width), nn.Embedding(LENGTH, width)
        self.blocks = nn.ModuleList(Block(width, depth) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, WORDS, bias=False)

    def forward(self, idx: Tensor) -> Tensor:
        x = self.wte(idx) + self.wpe(torch.arange(idx.shape[1]))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


class Vision(nn.Module):
    def __init__(self, layers: int = 4, width: int = 256, depth: int = 32) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, 8, stride=8)
        self.places = nn.Parameter(torch.randn(64, width) * 0.02)
        self.blocks = nn.ModuleList(Block(width, depth, causal=False) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 1000)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2) + self.places
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x).mean(1))


class Layers(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(functional.gelu(self.up(self.norm(x))))


class Perceptron(nn.Module):
    def __init__(self, layers: int = 4, width: int = 384) -> None:
        super().__init__()
        self.blocks, self.head = nn.ModuleList(Layers(width) for _ in range(layers)), nn.Linear(width, 100)

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return self.head(x)


# Module, a batch of inputs, and labels.
MODELS: dict[str, Callable[[], tuple[nn.Module, Tensor, Tensor]]] = {
    "decoder": lambda: (Decoder(), *(torch.randint(0, WORDS, (BATCH, LENGTH)) for _ in range(2))),
    "vision": lambda: (Vision(), torch.randn(16, 3, 64, 64), torch.randint(0, 1000, (16,))),
    "perceptron": lambda: (Perceptron(), torch.randn(512, 384), torch.randint(0, 100, (512,))),
}


def loss_of(scores: Tensor, labels: Tensor) -> Tensor:
    return functional.cross_entropy(scores.flatten(0, -2), labels.flatten())


def recipes(module: nn.Module, x: Tensor, y: Tensor, hardware: str, mode: Mode) -> dict[str, Callable[[], Any]]:
    """Name → what makes a function that runs one step."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    rank, world = dist.get_rank(), dist.get_world_size()
    rows = slice(rank * len(x) // world, (rank + 1) * len(x) // world)
    mesh = init_device_mesh("cpu", (world,))

    def stepping(forward: Callable[..., Tensor], parameters: Any) -> Callable[[], Tensor]:
        listed = list(parameters)
        kinds = [[p for p in listed if isinstance(p, DTensor) is k] for k in (True, False)]  # one kernel takes one kind
        optimizer = torch.optim.AdamW([{"params": k} for k in kinds if k], lr=1e-4, fused=True)

        def step() -> Tensor:
            loss = forward()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            return loss.detach()

        return step

    def ddp() -> Any:
        own = nn.parallel.DistributedDataParallel(copy.deepcopy(module))
        run = torch.compile(own) if mode == "compiled" else own
        return stepping(lambda: loss_of(run(x[rows]), y[rows]), own.parameters())

    def fsdp() -> Any:
        own = copy.deepcopy(module)
        for block in own.blocks:
            fully_shard(block, mesh=mesh)
        fully_shard(own, mesh=mesh)
        for block in own.blocks if mode == "compiled" else ():
            block.compile()
        return stepping(lambda: loss_of(own(x[rows]), y[rows]), own.parameters())

    def tp() -> Any:
        own = copy.deepcopy(module)
        for block in own.blocks:
            plan: dict[str, Any] = {"up": ColwiseParallel(), "down": RowwiseParallel()}
            if hasattr(block, "attention"):
                plan |= {f"attention.{n}": ColwiseParallel() for n in "qkv"} | {"attention.o": RowwiseParallel()}
            parallelize_module(block, mesh, plan)
        run = torch.compile(own) if mode == "compiled" else own
        return stepping(lambda: loss_of(run(x), y), own.parameters())

    def half() -> Any:
        own = copy.deepcopy(module)
        for block in own.blocks:
            parts: list[tuple[Any, str, int]] = [(block, "up", 0), (block, "down", 1)]
            if hasattr(block, "attention"):
                parts += [(block.attention, n, int(n == "o")) for n in "qkvo"]
            for holder, name, side in parts:
                whole = getattr(holder, name)
                sizes = [whole.in_features, whole.out_features]
                sizes[1 - side] //= world
                setattr(holder, name, nn.Linear(*sizes))
        run = torch.compile(own) if mode == "compiled" else own
        return stepping(lambda: loss_of(run(x), y), own.parameters())

    def planned(**options: Any) -> Callable[[], Any]:
        def make() -> Any:
            own = copy.deepcopy(module)
            begin = time.perf_counter()
            plan = planner.torch.plan(own, x, targets=y, loss=loss_of, cache=False, **{"hardware": hardware} | options)
            made = time.perf_counter() - begin
            own = planner.torch.parallelize(own, plan, mode=mode)
            step = stepping(lambda: own(x, y), own.parameters())
            step.planned = plan.parallelism, made  # type: ignore[attr-defined]
            return step

        return make

    def tuned() -> Any:
        begin = time.perf_counter()
        found = planner.torch.autotune(
            module, x, targets=y, loss=loss_of, optimizer="adamw", plans=4, mode=mode, hardware=hardware, cache=False
        )
        made = time.perf_counter() - begin
        own = planner.torch.parallelize(copy.deepcopy(module), found.plan, mode=mode)
        step = stepping(lambda: own(x, y), own.parameters())
        step.planned = found.plan.parallelism, made  # type: ignore[attr-defined]
        return step

    return {
        "ddp": ddp, "our ddp": planned(pin=["rest=data_parallel"]),
        "fsdp": fsdp, "our zero3": planned(strategy=f"fsdp:micro_batch={len(x) // world}"),
        "tp": tp, "our tp": planned(strategy=f"megatron:tp={world},micro_batch={len(x)},sp=0"), "half": half,
        "searched": planned(), "tuned": tuned,
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", choices=MODELS, default="decoder")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--only", default="", help="names of ways, with commas")
    parser.add_argument("--hardware", default="cpu", help="profile that is searched for, as of `planner calibrate`")
    parser.add_argument("--mode", choices=get_args(Mode), default="compiled", help="of plans")
    o = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    module, x, y = MODELS[o.model]()
    ways = {n: f for n, f in recipes(module, x, y, o.hardware, o.mode).items() if not o.only or n in o.only.split(",")}
    steps, losses, first = {}, {}, {}
    for name, make in ways.items():
        begin = time.perf_counter()
        steps[name] = make()
        losses[name] = float(steps[name]())
        first[name] = time.perf_counter() - begin
        for _ in range(2):
            steps[name]()
        if not dist.get_rank():
            print(
                name,
                getattr(steps[name], "planned", ""),
                f"loss {losses[name]:.5f}, first {first[name]:.1f} s",
                flush=True,
            )
    spent: dict[str, list[float]] = {n: [] for n in ways}
    for _ in range(o.rounds):
        for name, step in steps.items():
            dist.barrier()
            begin = time.process_time()
            for _ in range(o.steps):
                step()
            spent[name].append((time.process_time() - begin) / o.steps)
    found: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(found, spent)
    if not dist.get_rank():
        both = {n: [max(each) for each in zip(*(f[n] for f in found), strict=True)] for n in ways}
        middle = {n: median(v) for n, v in both.items()}
        for n, v in both.items():
            print(f"{n:10} {1e3 * middle[n]:8.1f} ms, {1e3 * min(v):.1f} to {1e3 * max(v):.1f}")
        for ours, theirs in (("our ddp", "ddp"), ("our zero3", "fsdp"), ("our tp", "tp"), ("half", "tp")):
            if ours in middle and theirs in middle:
                print(f"{ours} / {theirs}: {middle[ours] / middle[theirs]:.3f}")
        recipes_best = [middle[n] for n in ("ddp", "fsdp", "tp") if n in middle]
        for ours in ("searched", "tuned"):
            if ours in middle and recipes_best:
                print(f"{ours} / best recipe: {middle[ours] / min(recipes_best):.3f}")
        if o.json:
            o.json.write_text(json.dumps({"seconds": both, "loss": losses, "first": first}, indent=1))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
