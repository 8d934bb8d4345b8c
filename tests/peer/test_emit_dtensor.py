"""The exported DTensor plan on PyTorch's own modules, on 2x2 gloo processes: forward, gradients, one step."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from functools import reduce
from itertools import pairwise
from operator import add
from pathlib import Path
from typing import Any

import pytest

from planner.builder import build
from planner.cost_models import load_profile
from planner.emit.dtensor import emit_dtensor
from planner.emit.names import Name
from planner.frontends import import_bytes
from planner.planning import PlanDocument, Request, describe, make_plan
from planner.planning.constraints import parse_pin
from planner.planning.pipeline import pipelined
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


def plan(pins: tuple[str, ...], devices: int = 4) -> PlanDocument:
    graph = import_bytes(build("mlp", SIZES).SerializeToString(), name="mlp")
    constraints = reduce(add, map(parse_pin, pins))
    request = Request(devices, load_profile("cpu"), Settings(training=True, precision="fp32"), constraints=constraints)
    return describe(make_plan(graph, request), bind={}, batch=None)


def files(folder: Path, made: PlanDocument) -> Path:
    # layers.N of the graph is the 2N-th module of the network, ReLUs between; nn.Linear holds its weight turned.
    layers = {n: (int(n.split(".")[1]), n.split(".")[2]) for n in made.parameters}
    names = {n: Name(f"{2 * layer}.{what}", what == "weight") for n, (layer, what) in layers.items()}
    for name, content in emit_dtensor(made, names).files.items():
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


def loaded(module: str) -> Any:
    spec = importlib.util.spec_from_file_location("generated_parallel", module)
    assert spec is not None
    assert spec.loader is not None
    applied = importlib.util.module_from_spec(spec)
    sys.modules["generated_parallel"] = applied
    spec.loader.exec_module(applied)
    return applied


def start(rank: int, store: str) -> None:
    os.environ.update({"RANK": str(rank), "WORLD_SIZE": "4", "LOCAL_RANK": str(rank)})
    torch.distributed.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=4)


def batch() -> tuple[Any, Any]:
    generator = torch.Generator().manual_seed(1)
    return (
        torch.randn(SIZES["batch"], SIZES["features"], generator=generator),
        torch.randn(SIZES["batch"], SIZES["classes"], generator=generator),
    )


def rank_main(rank: int, module: str, store: str) -> None:
    start(rank, store)
    applied = loaded(module)
    x, y = batch()
    loss, gradients, after = step(network(), x, y)
    mesh = applied.device_mesh("cpu")
    model = applied.parallelize(network(), mesh)
    given = applied.shard_inputs({next(iter(applied.INPUTS)): x}, mesh)
    split_loss, split_gradients, split_after = step(model, *given.values(), y)
    torch.testing.assert_close(split_loss, loss)
    assert set(split_gradients) == set(gradients)
    for n, g in split_gradients.items():
        torch.testing.assert_close(g, gradients[n])
        torch.testing.assert_close(split_after[n], after[n])
    for n, p in model.named_parameters():
        kept = applied.PARAMETERS[n][0]
        assert list(p.placements) == applied._placements(kept)
    torch.distributed.barrier()  # gloo aborts where a peer leaves early
    torch.distributed.destroy_process_group()


@pytest.mark.parametrize("name", PLANS)
def test_forward_gradients_and_a_step_are_those_of_one_process(tmp_path: Path, name: str) -> None:
    module = files(tmp_path, plan(PLANS[name]))
    torch.multiprocessing.spawn(rank_main, args=(str(module), str(tmp_path / "store")), nprocs=4)


def fully_main(rank: int, module: str, store: str, shards: int) -> None:
    start(rank, store)
    applied = loaded(module)
    x, y = batch()
    _, gradients, after = step(network(), x, y)
    model = applied.fully(network(), "cpu")
    for n, p in network().named_parameters():
        local = dict(model.named_parameters())[n].to_local()
        assert local.shape == (p.shape[0] // shards, *p.shape[1:])
    _, split_gradients, split_after = step(model, x.chunk(4)[rank], y.chunk(4)[rank])
    for n, g in gradients.items():
        torch.testing.assert_close(split_gradients[n], g)
        torch.testing.assert_close(split_after[n], after[n])
    torch.distributed.barrier()  # gloo aborts where a peer leaves early
    torch.distributed.destroy_process_group()


@pytest.mark.parametrize(("over", "shards"), [("x.y", 4), ("y", 2)])
def test_fully_shard_makes_the_same_step(tmp_path: Path, over: str, shards: int) -> None:
    """Weights of the graph are inputs x outputs, those of nn.Linear the other way round."""
    pins = ("mesh=2x2", f"*.weight stored=[_,{over}]", f"*.bias stored=[{over}]", "rest=data_parallel")
    module = files(tmp_path, plan(pins))
    torch.multiprocessing.spawn(fully_main, args=(str(module), str(tmp_path / "store"), shards), nprocs=4)


def stages_main(rank: int, module: str, store: str) -> None:
    """Two stages of two data-parallel ranks; micro-batches one after the other, gradients added up."""
    start(rank, store)
    applied = loaded(module)
    x, y = batch()
    loss = torch.nn.functional.mse_loss
    whole = network()
    for a, b in zip(x.chunk(2), y.chunk(2), strict=True):
        (loss(whole(a), b) / 2).backward()
    mesh, stage = applied.device_mesh("cpu")
    part = network()
    for name in list(dict(part.named_children())):
        here = applied.STAGE_OF.get(name, applied.STAGE_OF.get(str(int(name) - 1)))  # a ReLU runs behind its layer
        if here != stage:
            part[int(name)] = torch.nn.Identity()
    applied.parallelize(part, mesh)
    assert {n.split(".")[0] for n, _ in part.named_parameters()} == {
        m for m, s in applied.STAGE_OF.items() if s == stage
    }
    dtensor, half = torch.distributed.tensor, SIZES["batch"] // 4
    split = [dtensor.Shard(0)]
    for a, b in zip(x.chunk(2), y.chunk(2), strict=True):
        if stage == 0:
            sent = part(applied.shard_inputs({next(iter(applied.INPUTS)): a}, mesh).popitem()[1])
            local = sent.redistribute(mesh, split).to_local()
            torch.distributed.send(local.detach().contiguous(), rank + 2)
            back = torch.empty_like(local)
            torch.distributed.recv(back, rank + 2)
            local.backward(back)
        else:
            got = torch.empty(half, SIZES["hidden"])
            torch.distributed.recv(got, rank - 2)
            entered = dtensor.DTensor.from_local(got.requires_grad_(), mesh, split)
            (loss(part(entered).full_tensor(), b) / 2).backward()
            torch.distributed.send(got.grad, rank - 2)
    for n, p in part.named_parameters():
        torch.testing.assert_close(p.grad.full_tensor(), dict(whole.named_parameters())[n].grad)
    torch.distributed.barrier()  # gloo aborts where a peer leaves early
    torch.distributed.destroy_process_group()


def pipelined_plan() -> PlanDocument:
    """Of a micro-batch on two ranks; its last layer in a second stage."""
    graph = import_bytes(build("mlp", SIZES | {"batch": SIZES["batch"] // 2}).SerializeToString(), name="mlp")
    constraints = reduce(add, map(parse_pin, ("mesh=2", "rest=data_parallel")))
    request = Request(2, load_profile("cpu"), Settings(training=True, precision="fp32"), constraints=constraints)
    planned = make_plan(graph, request)
    held = {t.name: int(t.name.startswith("layers.2")) for t in graph.parameters}
    return describe(planned, bind={}, batch=None, pipeline=pipelined(planned, 2, 2, held))


def test_stages_by_module_path_compute_what_one_process_does(tmp_path: Path) -> None:
    module = files(tmp_path, pipelined_plan())
    torch.multiprocessing.spawn(stages_main, args=(str(module), str(tmp_path / "store")), nprocs=4)


def test_pipelining_cuts_where_the_plan_does(tmp_path: Path) -> None:
    applied = loaded(str(files(tmp_path, pipelined_plan())))
    pipelining = importlib.import_module("torch.distributed.pipelining")
    spec = dict.fromkeys(applied.BEGINS, pipelining.SplitPoint.BEGINNING)
    pipe = pipelining.pipeline(network(), mb_args=(batch()[0],), split_spec=spec)
    for stage in range(applied.STAGES):
        found = {n.rpartition(".")[0] for n, _ in pipe.get_stage_module(stage).named_parameters()}
        assert found == {m for m, s in applied.STAGE_OF.items() if s == stage}
