"""Predicted steps beside measured ones: a dozen plans of each of three models on two processes.

    planner calibrate --out HOST.toml --processes 2
    torchrun --nproc-per-node 2 -m tests.bench.torch_predicted --hardware HOST.toml [--models NAMES] [--json FILE]

Each plan trains a copy of the module with AdamW, plan after plan in several rounds, so that what else the machine does
meets all of them; the shortest median of the rounds counts.  `regret`: how much longer
the plan that is predicted fastest takes than the one that is; `spearman`: of predicted and measured steps.
"""

from __future__ import annotations

import argparse
import json
import warnings
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

import planner.torch
from planner.errors import PlannerError
from tests.bench.torch_speed import MODELS, loss_of


def strategies(batch: int) -> dict[str, dict[str, Any]]:
    """Options of `planner.torch.plan` for two processes, by name."""
    half, quarter = batch // 2, batch // 4
    known = {
        "zero1": f"megatron:dp=2,zero=1,micro_batch={half}",
        "zero2 in 2": f"megatron:dp=2,zero=2,micro_batch={quarter}",
        "zero3": f"fsdp:micro_batch={half}",
        "zero3 in 2": f"fsdp:micro_batch={quarter}",
        "ddp in 2": f"megatron:dp=2,zero=0,micro_batch={quarter}",
        "ddp, full recomputation": f"megatron:dp=2,zero=0,micro_batch={half},recompute=full",
        "tp": f"megatron:tp=2,micro_batch={batch},sp=0",
        "tp in 2": f"megatron:tp=2,micro_batch={half},sp=0",
        "tp, sequence parallel": f"megatron:tp=2,micro_batch={batch}",
        "pp, 4 micro-batches": f"megatron:pp=2,micro_batch={quarter}",
        "pp, 2 micro-batches": f"megatron:pp=2,micro_batch={half}",
    }
    return {"ddp": {"pin": ["rest=data_parallel"]}, "searched": {}} | {n: {"strategy": s} for n, s in known.items()}


def planned(module: nn.Module, x: Tensor, y: Tensor, hardware: str) -> dict[str, Any]:
    found = {}
    for name, options in strategies(len(x)).items():
        try:
            found[name] = planner.torch.plan(
                module, x, targets=y, loss=loss_of, hardware=hardware, cache=False, **options
            )
        except PlannerError as error:
            if not dist.get_rank():
                print(f"{name}: {error}", flush=True)
    return found


def ranks(values: list[float]) -> list[float]:
    order = sorted(range(len(values)), key=values.__getitem__)
    out = [0.0] * len(values)
    for place, i in enumerate(order):
        out[i] = float(place)
    return out


def spearman(a: list[float], b: list[float]) -> float:
    both = torch.tensor([ranks(a), ranks(b)], dtype=torch.float64)
    return float(torch.corrcoef(both)[0, 1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hardware", required=True)
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--mode", choices=("eager", "traced", "compiled"), default="traced")
    parser.add_argument("--json", type=Path)
    o = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rows = []
    for model in o.models.split(","):
        torch.manual_seed(0)
        module, x, y = MODELS[model]()
        plans = planned(module, x, y, o.hardware)
        best: dict[str, float] = {}
        for _ in range(o.rounds):
            for name, plan in plans.items():
                tuned = planner.torch.autotune(
                    module, x, targets=y, loss=loss_of, plans=[plan], steps=o.steps, mode=o.mode
                )
                best[name] = min(best.get(name, float("inf")), tuned.plans[0].measured_s)
        for name, plan in plans.items():
            rows.append({
                "model": model, "plan": name, "parallelism": plan.parallelism,
                "predicted_s": plan.step_time, "measured_s": best[name],
            })  # fmt: skip
        mine = [r for r in rows if r["model"] == model]
        chosen = min(mine, key=lambda r: r["predicted_s"])
        fastest = min(mine, key=lambda r: r["measured_s"])
        if not dist.get_rank():
            for r in sorted(mine, key=lambda r: r["measured_s"]):
                print(f"{model:10} {r['plan']:26} {1e3 * r['measured_s']:8.1f} ms measured, "
                      f"{1e3 * r['predicted_s']:8.1f} predicted  {r['parallelism']}")  # fmt: skip
            regret = chosen["measured_s"] / fastest["measured_s"] - 1
            measure = spearman([r["predicted_s"] for r in mine], [r["measured_s"] for r in mine])
            print(f"{model}: {len(mine)} plans, regret {regret:.1%}, Spearman {measure:.3f}", flush=True)
            if o.json:
                o.json.write_text(json.dumps(rows, indent=1))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
