"""One process of a small training by DeepSpeed that saves checkpoints, or goes on from one.

    deepspeed_checkpoints.py CASE.json    # RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT as torchrun sets them

CASE.json: `stage`; `precision` (fp32, bf16 or fp16); `steps`; `save` and `load`: folders; `universal`: whether the
latter is a universal checkpoint, `weights_only`: whether its optimizer is left out, `loose`: whether parameters may be
missing; `groups`: of the optimizer, 1 or 2; `named`: whether it is given names of parameters; `zero` and `config`:
further settings; `truth`: a file into which rank 0 puts what the processes hold, gathered by DeepSpeed itself:
`weights`, `states`, `buffers`; `losses` of the steps; and the same at the beginning as `loaded`.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import deepspeed
import torch
from deepspeed.utils import safe_get_full_fp32_param, safe_get_full_optimizer_state
from torch import nn

SAMPLES = 12


class Small(nn.Module):
    """Sizes that no number of ranks divides, tied weights, buffers, and a parameter that is not trained."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(11, 6)
        self.stack = nn.Sequential(nn.Linear(6, 9), nn.LayerNorm(9), nn.Linear(9, 6, bias=False))
        self.experts = nn.Parameter(torch.randn(3, 6, 5) * 0.1)
        self.scale = nn.Parameter(torch.tensor([1.5]))
        self.frozen = nn.Parameter(torch.linspace(-1, 1, 35).reshape(5, 7), requires_grad=False)
        self.register_buffer("seen", torch.zeros(3))
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))
        self.head = nn.Linear(6, 11, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.stack(self.embedding(tokens)) * self.scale
        x = x + torch.einsum("bti,eij,jk->btk", x, self.experts, self.frozen)[..., :6]
        self.seen += 1
        self.count += 1
        logits = self.head(x)
        wanted = nn.functional.one_hot(tokens.roll(-1, 1), 11).to(logits.dtype)
        return -(logits.log_softmax(-1) * wanted).mean()


def optimizer_of(model: nn.Module, groups: int, named: bool) -> torch.optim.Optimizer:
    trained = {n: p for n, p in model.named_parameters() if p.requires_grad}
    if groups == 1:
        return torch.optim.AdamW(list(trained.items()) if named else list(trained.values()), lr=0.02)
    decayed = [p for p in trained.values() if p.dim() > 1]
    rest = [p for p in trained.values() if p.dim() <= 1]
    return torch.optim.AdamW([{"params": decayed, "weight_decay": 0.1}, {"params": rest, "lr": 0.03}], lr=0.02)


def truth(engine: Any, losses: list[float], with_states: bool = True) -> dict[str, Any]:
    out: dict[str, Any] = {"weights": {}, "states": {}, "losses": losses}
    zero = engine.optimizer
    if with_states and hasattr(zero, "_lazy_init_hp_params_optimizer_state"):
        zero._hp_optimizer_states_linked = False  # it links after the first group's step, when others have no state
        zero._lazy_init_hp_params_optimizer_state()
    whole = {}
    for lower, higher in zip(getattr(zero, "fp16_groups", ()), getattr(zero, "fp32_groups", ()), strict=False):
        whole |= {id(p): master for p, master in zip(lower, higher, strict=True)}
    plain = zero.optimizer if whole else zero
    for name, p in engine.module.named_parameters():
        if not p.requires_grad:
            continue
        divided, master = engine.zero_optimization_stage() > 0, whole.get(id(p), p)
        shape = getattr(p, "ds_shape", p.shape)
        out["weights"][name] = (safe_get_full_fp32_param(p) if divided else master.detach()).clone().reshape(shape)
        for slot in ("exp_avg", "exp_avg_sq") if with_states else ():
            found = safe_get_full_optimizer_state(p, slot) if divided else plain.state[master][slot]
            out["states"][f"{name}.{slot}"] = found.clone().reshape(shape)
    out["buffers"] = {n: b.clone() for n, b in engine.module.named_buffers()}
    return out


def main() -> None:
    case: dict[str, Any] = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    deepspeed.init_distributed(dist_backend="gloo", verbose=False)
    config: dict[str, Any] = {
        "train_batch_size": SAMPLES, "train_micro_batch_size_per_gpu": SAMPLES // world,
        "zero_allow_untested_optimizer": True, "zero_optimization": {"stage": case["stage"]},
        "checkpoint": {"load_universal": bool(case.get("universal"))},
    }  # fmt: skip
    precision = case.get("precision", "fp32")
    if precision != "fp32":
        config[precision] = {"enabled": True}
    config["zero_optimization"] |= case.get("zero", {})
    config |= case.get("config", {})
    torch.manual_seed(0)
    with deepspeed.zero.Init(config_dict_or_path=config, enabled=case["stage"] == 3):
        model = Small()
    optimizer = optimizer_of(model, case.get("groups", 1), bool(case.get("named")))
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)
    client = None
    if case.get("load"):
        folder, client = engine.load_checkpoint(
            case["load"], load_module_only=bool(case.get("weights_only")), load_module_strict=not case.get("loose")
        )
        assert folder is not None
    loaded = truth(engine, [], not case.get("weights_only")) if case.get("load") else None
    tokens = torch.randint(0, 11, (SAMPLES, 4), generator=torch.Generator().manual_seed(1))
    mine = tokens[rank * SAMPLES // world :][: SAMPLES // world]
    losses = []
    for _ in range(case["steps"]):
        loss = engine(mine)
        engine.backward(loss)
        engine.step()
        total = loss.detach().float()
        torch.distributed.all_reduce(total)
        losses.append(total.item() / world)
    if case.get("save"):
        engine.save_checkpoint(case["save"], client_state={"epoch": 3, "rng": torch.get_rng_state()[:8].clone()})
    found = truth(engine, losses) | {"loaded": loaded, "client": client, "steps": engine.global_steps}
    found["rates"] = [g["lr"] for g in engine.optimizer.param_groups]
    if rank == 0:
        torch.save(found, case["truth"])
    torch.distributed.barrier()
    sys.stdout.flush()
    os._exit(0)  # threads of gloo, which now and then end the process by a signal


if __name__ == "__main__":
    main()
