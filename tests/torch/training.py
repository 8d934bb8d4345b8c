"""Trains a model of `tests.torch.models` under a plan on every rank, and alone in one process."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

import planner.torch
from planner.runtime.placements import local_tensor
from planner.runtime.planned import planned_traffic
from planner.runtime.workers import Context
from planner.torch.capture.returned import loss_of
from tests.torch.models import CASES, Case

# Kinds of plans for four ranks: options of `planner.torch.plan`.
KINDS: dict[str, dict[str, Any]] = {
    "searched": {"hardware": "cpu"},
    "ddp": {"pin": ["rest=data_parallel"]},
    "zero1": {"strategy": "zero1:micro_batch=2"},
    "zero3": {"strategy": "fsdp"},
    "tp": {"strategy": "megatron:tp=4,micro_batch=8,sp=0"},
    "tp+sp": {"strategy": "megatron:tp=4,micro_batch=8"},
    "2-d": {"strategy": "megatron:tp=2,micro_batch=4"},
}
# Stages of a pipeline, of models whose blocks repeat.
STAGES: dict[str, dict[str, Any]] = {
    f"{schedule}{'+' + more if more else ''}": {"strategy": f"megatron:tp=2,pp=2,micro_batch=2,schedule={schedule}"
                                                            f"{',' + more if more else ''}"}
    for schedule, more in (("gpipe", ""), ("1f1b", ""), ("zb-h1", ""), ("1f1b", "recompute=full"))
}  # fmt: skip


@dataclass
class Trained:
    """`losses` of each step, `gradients` of the first one, `state` after the last one; `held`: elements of parameters
    on the rank; `parallelism`: what was planned."""

    losses: list[float] = field(default_factory=list)
    gradients: dict[str, np.ndarray] = field(default_factory=dict)
    state: dict[str, np.ndarray] = field(default_factory=dict)
    parallelism: str = ""
    held: int = 0
    fallbacks: frozenset[str] = frozenset()
    executed: dict[str, Any] = field(default_factory=dict)
    planned: dict[str, Any] = field(default_factory=dict)


def made(name: str, seed: int = 0) -> Case:
    """The model of a name, with weights of a seed."""
    torch.manual_seed(seed)
    case = CASES[name]()
    case.module.train()
    return case


def optimizer_of(module: torch.nn.Module, kind: str = "adamw") -> torch.optim.Optimizer:
    if kind == "sgd":
        return torch.optim.SGD(module.parameters(), lr=1e-2, momentum=0.9)
    return torch.optim.AdamW(module.parameters(), lr=1e-3)


def step_loss(case: Case, module: torch.nn.Module, *, parallel: bool) -> Tensor:
    """The loss of a step, by the user's own loop."""
    if parallel:
        return loss_of(module(*case.inputs, *case.targets, **case.kwargs))
    found = module(*case.inputs, **case.kwargs)
    return loss_of(found) if case.loss is None else case.loss(found, *case.targets)


def planned(case: Case, options: dict[str, Any]) -> Any:
    given = {"hardware": "a100-80", "cache": False, **options}
    return planner.torch.plan(case.module, case.kwargs or case.inputs, targets=case.targets, loss=case.loss, **given)


def train(
    context: Context, name: str, options: dict[str, Any], steps: int, mode: str = "eager", optimizer: str = "adamw"
) -> Trained:
    """On every rank: what the first reports."""
    torch.set_num_threads(1)
    case = made(name)
    plan = planned(case, options)
    module = planner.torch.parallelize(case.module, plan, mode=mode)
    runner = module._planner
    held = sum(local_tensor(p).numel() for p in module.parameters() if not p.is_meta)
    trained = Trained(parallelism=plan.parallelism, held=held)
    stepping = optimizer_of(module, optimizer)
    for step in range(steps):
        runner.context.ledger.clear()
        loss = step_loss(case, module, parallel=True)
        stepping.zero_grad()
        loss.backward()
        trained.losses.append(loss.item())
        if not step:
            trained.executed, trained.planned = dict(runner.context.ledger.steps), planned_traffic(runner.stage)
            grads = {n: p.grad for n, p in module.named_parameters() if p.grad is not None}
            trained.gradients = {n: whole(g).numpy() for n, g in grads.items()}
        stepping.step()
    trained.state = {n: v.numpy() for n, v in planner.torch.whole_state_dict(module).items()}
    trained.fallbacks = frozenset(runner.stage.fallbacks)
    return trained


def whole(value: Tensor) -> Tensor:
    return value.full_tensor() if isinstance(value, DTensor) else value.clone()


def alone(name: str, steps: int, optimizer: str = "adamw") -> Trained:
    """The same training of the plain module."""
    case = made(name)
    trained = Trained()
    stepping = optimizer_of(case.module, optimizer)
    for step in range(steps):
        loss = step_loss(case, case.module, parallel=False)
        stepping.zero_grad()
        loss.backward()
        trained.losses.append(loss.item())
        if not step:
            trained.gradients = {
                n: p.grad.numpy().copy() for n, p in case.module.named_parameters() if p.grad is not None
            }
        stepping.step()
    trained.state = {n: v.numpy() for n, v in case.module.state_dict().items()}
    return trained


def worst(found: dict[str, np.ndarray], truth: dict[str, np.ndarray]) -> float:
    """The largest difference of a tensor, as a part of its largest element; of tensors that are nothing but rounding,
    of the median one's."""
    sizes = {n: float(np.abs(truth[n]).max()) for n in found}
    floor = 1e-2 * float(np.median(list(sizes.values()))) if sizes else 0.0
    return max((float(np.abs(found[n] - truth[n]).max()) / max(sizes[n], floor, 1e-12) for n in found), default=0.0)
