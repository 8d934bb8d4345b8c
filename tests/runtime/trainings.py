"""Models as files with weights and data, plans for them, and the same training by plain torch on one process."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from planner.kernels.shards import Array
from planner.planning import PlanDocument, read_plan
from planner.runtime.training.options import TrainingOptions
from tests.runtime.safetensors_files import write_safetensors
from tests.torch.training import made, planned

BATCH, SAMPLES = 8, 20  # samples of a step, and of the data: the third step takes the last ones and the first again
RATE, CLIP = 1e-2, 0.5


@dataclass(frozen=True)
class Files:
    """A model without weights, its weights, its data; `truth`: what plain torch makes of them."""

    model: Path
    weights: Path
    data: Path
    truth: Truth

    def options(self, steps: int, **more: Any) -> TrainingOptions:
        given: dict[str, Any] = {"weights": self.weights, "data": self.data, "lr": RATE, "clip": CLIP}
        return TrainingOptions(steps=steps, **(given | more))


@dataclass(frozen=True)
class Truth:
    """Losses and norms of gradients of each step, weights behind the last."""

    losses: list[float]
    norms: list[float]
    weights: dict[str, Array]


def drawn_data(name: str) -> dict[str, Array]:
    """By the names of the inputs of a captured model."""
    rng = np.random.default_rng(5)
    if name == "mlp":
        return {"x": rng.standard_normal((SAMPLES, 16), dtype=np.float32), "target": rng.integers(0, 8, SAMPLES)}
    return {"idx": rng.integers(0, 64, (SAMPLES, 16)), "target": rng.integers(0, 64, (SAMPLES, 16))}


def files_of(name: str, folder: Path, steps: int, optimizer: str = "adamw") -> Files:
    """A captured model of `tests.torch.models`, and its training by plain torch."""
    plan_of(name, {"pin": ["rest=data_parallel"], "devices": 2}, folder / "any")
    data = drawn_data(name)
    (folder / "data").mkdir()
    for key, value in data.items():
        np.save(folder / "data" / f"{key}.npy", value)
    case = made(name)
    shown = {n: p.detach().numpy().copy() for n, p in case.module.named_parameters()}
    write_safetensors(folder / "weights.safetensors", shown)
    truth = _plain(case, list(data.values()), steps, optimizer)
    return Files(folder / "any" / "model.onnx", folder / "weights.safetensors", folder / "data", truth)


def plan_of(name: str, options: dict[str, Any], folder: Path) -> PlanDocument:
    """A plan of four devices, unless the options say another number."""
    planned(made(name), {"devices": 4, **options}).save(folder)
    return read_plan(folder / "plan.json")


def _plain(case: Any, data: list[Array], steps: int, optimizer: str) -> Truth:
    torch.set_num_threads(1)
    kind: Any = torch.optim.AdamW if optimizer == "adamw" else torch.optim.SGD
    more = {} if optimizer == "adamw" else {"momentum": 0.9}
    stepping = kind(case.module.parameters(), lr=RATE, **more)
    losses, norms = [], []
    for step in range(steps):
        rows = np.arange(step * BATCH, (step + 1) * BATCH) % SAMPLES
        x, y = (torch.from_numpy(v[rows]) for v in data)
        loss = case.loss(case.module(x), y)
        stepping.zero_grad()
        loss.backward()
        norms.append(float(torch.nn.utils.clip_grad_norm_(case.module.parameters(), CLIP)))
        losses.append(loss.item())
        stepping.step()
    return Truth(losses, norms, {n: p.detach().numpy() for n, p in case.module.named_parameters()})
