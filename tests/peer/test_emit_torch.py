"""The exported DTensor plan on PyTorch's own modules, on 2x2 gloo processes: forward, gradients, one step."""

from __future__ import annotations

import importlib.util
import os
import sys
from functools import reduce
from itertools import pairwise
from operator import add
from pathlib import Path
from typing import Any

import pytest

from cost_models import load_profile
from planner.builder import build
from planner.emit.names import NameRules
from planner.emit.torch import emit_torch
from planner.frontends import import_bytes
from planner.planning import PlanDocument, Request, describe, make_plan
from planner.planning.constraints import parse_pin
from planner.pricing import Settings

torch = pytest.importorskip("torch")
pytestmark = [pytest.mark.peer, pytest.mark.slow]

SIZES = {"features": 32, "hidden": 64, "layers": 3, "classes": 16, "batch": 16}
PLANS = {
    "data": ("mesh=2x2", "rest=data_parallel"),
    "zero": ("mesh=2x2", "rest=zero"),
    "tensor": ("mesh=2x2", "type=MatMul m=x n=y", "rest=data_parallel"),
    "rows": ("mesh=2x2", "type=MatMul m=x k=y", "rest=data_parallel"),
}


def network() -> Any:
    torch.manual_seed(0)
    layers: list[Any] = []
    widths = [SIZES["features"], *[SIZES["hidden"]] * (SIZES["layers"] - 1), SIZES["classes"]]
    for i, (a, b) in enumerate(pairwise(widths)):
        layers += [torch.nn.Linear(a, b)] + [torch.nn.ReLU()] * (i < len(widths) - 2)
    return torch.nn.Sequential(*layers)


def plan(pins: tuple[str, ...]) -> PlanDocument:
    graph = import_bytes(build("mlp", SIZES).SerializeToString(), name="mlp")
    constraints = reduce(add, map(parse_pin, pins))
    request = Request(4, load_profile("cpu"), Settings(training=True, precision="fp32"), constraints=constraints)
    return describe(make_plan(graph, request), bind={}, batch=None)


def files(folder: Path, pins: tuple[str, ...]) -> Path:
    made = plan(pins)
    shapes = {n: tuple(p.shape) for n, p in made.parameters.items()}
    listed = [(n, tuple(p.shape)) for n, p in network().named_parameters()]
    for name, content in emit_torch(made, NameRules(network=listed).apply(shapes)).files.items():
        (folder / name).write_bytes(content)
    return folder / "parallel.py"


def step(model: Any, x: Any, y: Any) -> tuple[Any, dict[str, Any], dict[str, Any]]:
    """Loss, gradients and parameters after one step of AdamW, whole."""

    def whole(t: Any) -> Any:
        return t.full_tensor() if hasattr(t, "full_tensor") else t

    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    loss = torch.nn.functional.mse_loss(whole(model(x)), y)
    loss.backward()
    named = dict(model.named_parameters())
    found = {n: whole(p.grad).detach().clone() for n, p in named.items()}
    optimizer.step()
    return whole(loss).detach(), found, {n: whole(p).detach().clone() for n, p in named.items()}


def rank_main(rank: int, module: str, store: str) -> None:
    os.environ.update({"RANK": str(rank), "WORLD_SIZE": "4", "LOCAL_RANK": str(rank)})
    torch.distributed.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=4)
    spec = importlib.util.spec_from_file_location("generated_parallel", module)
    assert spec is not None
    assert spec.loader is not None
    applied = importlib.util.module_from_spec(spec)
    sys.modules["generated_parallel"] = applied
    spec.loader.exec_module(applied)
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(SIZES["batch"], SIZES["features"], generator=generator)
    y = torch.randn(SIZES["batch"], SIZES["classes"], generator=generator)
    loss, gradients, after = step(network(), x, y)
    mesh = applied.device_mesh("cpu")
    model = applied.parallelize(network(), mesh)
    name = next(iter(applied.INPUTS))
    dims = applied.INPUTS[name]
    given = torch.distributed.tensor.distribute_tensor(x, mesh, applied._placements(dims))
    split_loss, split_gradients, split_after = step(model, given, y)
    torch.testing.assert_close(split_loss, loss)

    def plain(n: str) -> str:
        return n.replace("parametrizations.", "").replace(".original", "")

    assert {plain(n) for n in split_gradients} == set(gradients)
    for n, g in split_gradients.items():
        torch.testing.assert_close(g, gradients[plain(n)])
        torch.testing.assert_close(split_after[n], after[plain(n)])
    for n, p in model.named_parameters():
        kept = applied.PARAMETERS[plain(n)][0]
        assert list(p.placements) == applied._placements(kept)
    torch.distributed.destroy_process_group()


@pytest.mark.parametrize("name", PLANS)
def test_forward_gradients_and_a_step_are_those_of_one_process(tmp_path: Path, name: str) -> None:
    module = files(tmp_path, PLANS[name])
    torch.multiprocessing.spawn(rank_main, args=(str(module), str(tmp_path / "store")), nprocs=4)
