"""What a rank holds at the fullest moment of a step beside what its plan predicts, on two processes.

    torchrun --nproc-per-node 2 -m tests.bench.torch_memory [--mode MODE] [--only NAMES] [--json FILE]

A decoder of 8 layers of width 768 (60 million weights, 1,024 tokens) is trained with AdamW under every plan of
`tests.bench.torch_predicted`.  Counted are tensors: parameters, the optimizer's state, and all that operators make.
"""

from __future__ import annotations

import argparse
import copy
import gc
import json
import warnings
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import planner.torch
from planner.errors import PlannerError
from tests.bench.torch_predicted import strategies
from tests.bench.torch_speed import BATCH, LENGTH, WORDS, Decoder, loss_of


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mode", choices=("eager", "traced"), default="eager")
    parser.add_argument("--only", default="", help="names of plans, as in `ddp;zero3`")
    parser.add_argument("--json", type=Path)
    o = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    module = Decoder(layers=8, width=768, depth=64)
    x, y = (torch.randint(0, WORDS, (BATCH, LENGTH)) for _ in range(2))
    fully = {"strategy": f"fsdp:micro_batch={BATCH // 2},recompute=full"}
    rows: list[dict[str, Any]] = []
    for name, options in (strategies(BATCH) | {"zero3, full recomputation": fully}).items():
        if o.only and name not in o.only.split(";"):
            continue
        try:
            plan = planner.torch.plan(
                module, x, targets=y, loss=loss_of, optimizer="adamw", hardware="cpu", cache=False, **options
            )
            own = planner.torch.parallelize(copy.deepcopy(module), plan, mode=o.mode)
        except PlannerError as error:
            if not dist.get_rank():
                print(f"{name}: {error}", flush=True)
            continue
        optimizer = torch.optim.AdamW([p for p in own.parameters() if not p.is_meta], fused=True)
        profile = planner.torch.profile(own, x, y, steps=1, optimizer=optimizer)
        assert profile.held_bytes is not None
        rows.append({
            "plan": name, "parallelism": plan.parallelism,
            "held_bytes": profile.held_bytes, "predicted_bytes": profile.predicted_bytes,
        })  # fmt: skip
        if not dist.get_rank():
            print(f"{name:26} {profile.held_bytes / 1e6:8.1f} MB, {profile.predicted_bytes / 1e6:8.1f} predicted, "
                  f"{profile.held_bytes / profile.predicted_bytes:.3f}  {plan.parallelism}", flush=True)  # fmt: skip
            if o.json:
                o.json.write_text(json.dumps(rows, indent=1))
        del own, optimizer, profile
        gc.collect()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
