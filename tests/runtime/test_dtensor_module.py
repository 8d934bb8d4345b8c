"""The emitted DTensor module on gloo processes: the names of its parameters, and what a step communicates."""

from __future__ import annotations

import importlib.util
import os
from functools import reduce
from operator import add
from pathlib import Path
from typing import Any

import pytest

from planner.builder import build
from planner.cost_models import load_profile
from planner.emit.dtensor import emit_dtensor
from planner.emit.names import Name
from planner.frontends import import_bytes
from planner.planning import Request, describe, make_plan
from planner.planning.constraints import parse_pin
from planner.pricing import Settings

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.peer

SIZES = {"features": 16, "hidden": 32, "layers": 2, "classes": 8, "batch": 8}
RANKS = 2
# Of each plan what the backward pass communicates, by collective: each of four gradients once.
PLANS = {
    "data": (("mesh=2", "rest=data_parallel"), {"all_reduce": 4}),
    "zero": (("mesh=2", "rest=zero"), {"reduce_scatter": 4}),
}


def network() -> Any:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 8))


def written(folder: Path, pins: tuple[str, ...]) -> Path:
    graph = import_bytes(build("mlp", SIZES).SerializeToString(), name="mlp")
    constraints = reduce(add, map(parse_pin, pins))
    settings = Settings(training=True, precision="fp32")
    request = Request(RANKS, load_profile("cpu"), settings, constraints=constraints)
    plan = describe(make_plan(graph, request), bind={}, batch=None)
    named = {"layers.0": "0", "layers.1": "2"}  # a ReLU between; nn.Linear holds its weight turned
    names = {
        n: Name(f"{named[n.rpartition('.')[0]]}.{n.rpartition('.')[2]}", n.endswith("weight")) for n in plan.parameters
    }
    path = folder / "parallel.py"
    path.write_bytes(emit_dtensor(plan, names).files["parallel.py"])
    return path


def joined(rank: int, store: str, module: str) -> Any:
    """The generated module, in a process of the group."""
    os.environ.update({"RANK": str(rank), "WORLD_SIZE": str(RANKS), "LOCAL_RANK": str(rank)})
    torch.distributed.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=RANKS)
    spec = importlib.util.spec_from_file_location("generated_parallel", module)
    assert spec is not None
    assert spec.loader is not None
    applied = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(applied)
    return applied


def left() -> None:
    torch.distributed.barrier()  # gloo aborts where a peer leaves early
    torch.distributed.destroy_process_group()


def started(applied: Any, mesh: Any) -> tuple[Any, Any]:
    """The divided network and its loss on the whole of the same samples."""
    model = applied.parallelize(network(), mesh)
    torch.manual_seed(1)
    x, y = torch.randn(8, 16), torch.randn(8, 8)
    given = applied.shard_inputs({next(iter(applied.INPUTS)): x}, mesh)
    return model, torch.nn.functional.mse_loss(model(*given.values()).full_tensor(), y)


def counted(mode: Any) -> dict[str, int]:
    kinds = ("all_reduce", "reduce_scatter", "all_gather")
    found = {str(k): n for k, n in mode.get_comm_counts().items()}
    totals = {kind: sum(n for k, n in found.items() if kind in k) for kind in kinds}
    return {kind: n for kind, n in totals.items() if n}


def step_main(rank: int, store: str, module: str, expected: dict[str, int]) -> None:
    applied = joined(rank, store, module)
    debug = importlib.import_module("torch.distributed.tensor.debug")
    mesh = applied.device_mesh("cpu")
    model, loss = started(applied, mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    with debug.CommDebugMode() as backward, applied.Moved() as moved:
        loss.backward()
    assert moved.bytes == 4 * sum(p.numel() for p in network().parameters())
    with debug.CommDebugMode() as update:
        optimizer.step()
    assert counted(backward) == expected
    assert counted(update) == {}
    for p in model.parameters():
        assert p.grad.placements == p.placements
    left()


@pytest.mark.parametrize("name", PLANS)
def test_a_gradient_is_communicated_once_and_an_update_not_at_all(tmp_path: Path, name: str) -> None:
    """Law: what the backward pass leaves pending AdamW would sum at each of its uses of a gradient."""
    pins, expected = PLANS[name]
    module = written(tmp_path, pins)
    arguments = (str(tmp_path / "store"), str(module), expected)
    torch.multiprocessing.spawn(step_main, args=arguments, nprocs=RANKS)


def micro_main(rank: int, store: str, module: str) -> None:
    applied = joined(rank, store, module)
    applied.MICRO_BATCHES = 2
    debug = importlib.import_module("torch.distributed.tensor.debug")
    mesh = applied.device_mesh("cpu")
    model, loss = started(applied, mesh)
    with debug.CommDebugMode() as first:
        loss.backward(retain_graph=True)
    with debug.CommDebugMode() as second:
        loss.backward()
    assert (counted(first), counted(second)) == ({}, {"all_reduce": 4})
    whole = network()
    torch.manual_seed(1)
    x, y = torch.randn(8, 16), torch.randn(8, 8)
    (2 * torch.nn.functional.mse_loss(whole(x), y)).backward()
    for n, p in model.named_parameters():
        torch.testing.assert_close(p.grad.full_tensor(), whole.get_parameter(n).grad)
    left()


def test_gradients_of_micro_batches_are_added_up_before_they_are_communicated(tmp_path: Path) -> None:
    module = written(tmp_path, PLANS["data"][0])
    torch.multiprocessing.spawn(micro_main, args=(str(tmp_path / "store"), str(module)), nprocs=RANKS)


def checkpoint_main(rank: int, store: str, module: str, folder: str) -> None:
    applied = joined(rank, store, module)
    checkpoint = importlib.import_module("torch.distributed.checkpoint")
    of_state = importlib.import_module("torch.distributed.checkpoint.state_dict")
    mesh = applied.device_mesh("cpu")
    model, loss = started(applied, mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    loss.backward()
    optimizer.step()
    names = set(network().state_dict())
    assert set(model.state_dict()) == names == {n for n, _ in model.named_parameters()}
    parameters, slots = of_state.get_state_dict(model, optimizer)
    assert set(parameters) == set(slots["state"]) == names
    checkpoint.save({"model": parameters, "optimizer": slots}, checkpoint_id=folder)
    # Into the network as it was, by its own names.
    alone = network()
    state = {"model": alone.state_dict()}
    checkpoint.load(state, checkpoint_id=folder)
    for n, p in alone.named_parameters():
        torch.testing.assert_close(p.data, model.state_dict()[n].full_tensor())
    # And into another divided one.
    other, _ = started(applied, mesh)
    other.load_state_dict(parameters)
    for n, p in other.named_parameters():
        torch.testing.assert_close(p.full_tensor(), alone.get_parameter(n))
    left()


@pytest.mark.parametrize("name", PLANS)
def test_state_and_checkpoints_have_the_names_of_the_network(tmp_path: Path, name: str) -> None:
    module = written(tmp_path, PLANS[name][0])
    arguments = (str(tmp_path / "store"), str(module), str(tmp_path / "checkpoint"))
    torch.multiprocessing.spawn(checkpoint_main, args=arguments, nprocs=RANKS)
