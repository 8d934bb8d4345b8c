"""Beside meta-pytorch/autoparallel: time to plan, CPU time of a step, and what travels, on the same module.

    PYTHONPATH=AUTOPARALLEL torchrun --nproc-per-node 2 -m tests.bench.torch_autoparallel [--model NAME] [--json FILE]

AUTOPARALLEL is a checkout of it (with `pulp` installed).  Both sides train the module in the same processes, in turns,
with AdamW, interpreted (theirs runs its graph by torch.fx, ours by our interpreter) and compiled.  Bytes are those of
functional collectives, counted as they are dispatched while a step is interpreted, whole tensors of the group.
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
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

import planner.torch
from tests.bench.torch_speed import MODELS, loss_of


class Counted(TorchDispatchMode):
    """Functional collectives that are dispatched: how many, and bytes of what is gathered, scattered or summed."""

    def __init__(self) -> None:
        super().__init__()
        self.found: dict[str, list[int]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        name = func._schema.name
        if name.startswith("_c10d_functional::") and "wait" not in name:
            kind = name.split("::")[1].rstrip("_")
            given = args[0] if isinstance(args[0], list | tuple) else [args[0]]
            made = out if isinstance(out, list | tuple) else [out]
            size = max(sum(t.nbytes for t in given), sum(t.nbytes for t in made))
            known = self.found.setdefault(kind.replace("_coalesced", "").replace("_into_tensor", ""), [0, 0])
            known[0] += len(given)
            known[1] += size
        return out


def theirs(module: nn.Module, x: Tensor, y: Tensor, compiled: bool) -> tuple[Callable[[], Tensor], float]:
    from autoparallel.api import AutoParallel
    from autoparallel.compile import autoparallel_backend
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard

    # It has prices of GPUs alone: on CPUs it plans for the one that is named here.
    torch.cpu.get_device_name = lambda *_: "NVIDIA H100"  # type: ignore[attr-defined]
    rank, world = dist.get_rank(), dist.get_world_size()
    rows = slice(rank * len(x) // world, (rank + 1) * len(x) // world)
    mesh = init_device_mesh("cpu", (world,), mesh_dim_names=("dp",))
    begin = time.perf_counter()
    with AutoParallel(copy.deepcopy(module).to("meta"), lambda: x, mesh) as found:
        found.add_input_constraints([(Shard(0),)])
        found.add_output_constraints([(Shard(0),)])
        own = found.apply_placement(found.optimize_placement(verbose=False))
    planned = time.perf_counter() - begin
    own.to_empty(device="cpu")
    with torch.no_grad():
        for p in own.parameters():
            p.to_local().normal_(std=0.02) if hasattr(p, "to_local") else p.normal_(std=0.02)
    run = torch.compile(own, backend=autoparallel_backend()) if compiled else own
    return stepping(lambda: loss_of(run(x[rows]), y[rows]), own), planned


def ours(module: nn.Module, x: Tensor, y: Tensor, compiled: bool) -> tuple[Callable[[], Tensor], float]:
    own = copy.deepcopy(module)
    begin = time.perf_counter()
    plan = planner.torch.plan(own, x, targets=y, loss=loss_of, cache=False, hardware="cpu")
    own = planner.torch.parallelize(own, plan, mode="compiled" if compiled else "eager")
    planned = time.perf_counter() - begin
    return stepping(lambda: own(x, y), own), planned


def stepping(forward: Callable[[], Tensor], own: nn.Module) -> Callable[[], Tensor]:
    optimizer = torch.optim.AdamW(own.parameters(), lr=1e-4)

    def step() -> Tensor:
        loss = forward()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return step


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", choices=MODELS, default="decoder")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    o = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    module, x, y = MODELS[o.model]()
    rows, steps = {}, {}
    for name, make in (("autoparallel", theirs), ("planner", ours)):
        for compiled in (False, True):
            way = f"{name}, {'compiled' if compiled else 'interpreted'}"
            try:
                begin = time.perf_counter()
                steps[way], planned = make(module, x, y, compiled)
                loss = float(steps[way]())
            except Exception as error:
                steps.pop(way, None)
                rows[way] = {"failed": f"{type(error).__name__}: {error}"[:300]}
                continue
            rows[way] = {"planned_s": planned, "first_s": time.perf_counter() - begin, "loss": loss}
            steps[way]()
            if not compiled:
                with Counted() as counted:
                    steps[way]()
                rows[way]["sent"] = counted.found
    spent: dict[str, list[float]] = {n: [] for n in steps}
    for _ in range(o.rounds):
        for way, step in steps.items():
            dist.barrier()
            begin = time.process_time()
            for _ in range(3):
                step()
            spent[way].append((time.process_time() - begin) / 3)
    for way, seconds in spent.items():
        rows[way]["cpu_s"] = median(seconds)
    if not dist.get_rank():
        for way, row in rows.items():
            print(way, json.dumps(row), flush=True)
        if o.json:
            o.json.write_text(json.dumps(rows, indent=1))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
