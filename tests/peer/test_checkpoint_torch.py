"""PyTorch itself reads what we write, and we read what it writes: files of torch.save, and torch.distributed.checkpoint
as FSDP2 and tensor parallelism leave it."""

from __future__ import annotations

import multiprocessing
import random
import socket
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from planner.checkpoint.comparing import compared
from planner.checkpoint.source import open_checkpoint
from planner.checkpoint.transforming import Options, planned, transform
from planner.errors import InputError
from planner.stored.formats.registry import read_file
from tests.checkpoint.layouts import Whole, random_layouts, random_tensors, write_file, write_ranks
from tests.checkpoint.test_transforming import arrays_of, check_ranks, moved

pytestmark = pytest.mark.peer
torch = pytest.importorskip("torch")

SHAPES = {"blocks.0.weight": (8, 12), "blocks.0.bias": (12,), "scale": (), "experts": (4, 6, 2)}


def test_torch_loads_what_we_write(tmp_path: Path) -> None:
    weights, _ = random_tensors(random.Random(0), SHAPES)
    import ml_dtypes

    weights["half"] = weights["experts"].astype(ml_dtypes.bfloat16)
    weights["count"] = np.arange(5)
    write_file(tmp_path / "a.safetensors", weights)
    moved(tmp_path / "a.safetensors", None, tmp_path / "b.pt", None)
    found = torch.load(tmp_path / "b.pt", weights_only=True)
    assert set(found) == set(weights)
    for name, value in weights.items():
        assert found[name].shape == value.shape
        np.testing.assert_array_equal(found[name].float().numpy(), value.astype(np.float32))


def test_we_read_what_torch_saves(tmp_path: Path) -> None:
    a = torch.arange(24.0).reshape(4, 6)
    saved = {"model": {"a": a, "turned": a.t(), "part": a[1:3, 2:5], "half": a.to(torch.bfloat16), "tied": a,
                       "parameter": torch.nn.Parameter(a), "f8": a.to(torch.float8_e4m3fn)},
             "step": 7, "optimizer": {"state": {0: {"exp_avg": a + 1}}, "param_groups": [{"lr": 0.1}]}}  # fmt: skip
    torch.save(saved, tmp_path / "x.pt")
    found = arrays_of(tmp_path / "x.pt")
    for name, value in saved["model"].items():  # type: ignore[attr-defined]
        np.testing.assert_array_equal(found[f"model.{name}"].astype(np.float32), value.detach().float().numpy())
    np.testing.assert_array_equal(found["optimizer.state.0.exp_avg"], (a + 1).numpy())
    assert read_file(tmp_path / "x.pt").values["step"] == 7


@pytest.mark.parametrize("seed", range(8))
def test_dcp_loads_what_we_write_of_any_layout(seed: int, tmp_path: Path) -> None:
    import torch.distributed.checkpoint as dcp

    rng = random.Random(seed)
    lays = random_layouts(rng, SHAPES)
    weights, slots = random_tensors(rng, SHAPES)
    write_ranks(tmp_path / "a", lays, weights, slots)
    moved(tmp_path / "a", lays, tmp_path / "dcp", None, format="dcp")
    into: dict[str, Any] = {f"model.{n}": torch.zeros(s) for n, s in SHAPES.items()}
    into |= {f"optimizer.state.{n}.exp_avg": torch.zeros(s) for n, s in SHAPES.items()}
    dcp.load(into, checkpoint_id=tmp_path / "dcp")
    for n, v in weights.items():
        np.testing.assert_array_equal(into[f"model.{n}"].numpy(), v)
    for n, v in slots.items():
        np.testing.assert_array_equal(into[f"optimizer.state.{n}"].numpy(), v)
    other = random_layouts(rng, SHAPES)
    moved(tmp_path / "dcp", None, tmp_path / "b", other, format="npz")
    check_ranks(tmp_path / "b", other, weights, slots)


def _train(rank: int, port: int, folder: str) -> None:
    import torch.distributed as dist
    import torch.distributed.checkpoint as dcp
    from torch import nn
    from torch.distributed.checkpoint.state_dict import get_state_dict
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=4)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 12), nn.ReLU(), nn.Linear(12, 7))  # 7 rows do not divide
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    parallelize_module(model, mesh["tp"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
    fully_shard(model, mesh=mesh["dp"])
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    for _ in range(3):
        model(torch.ones(4, 8)).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    weights, state = get_state_dict(model, optimizer)
    dcp.save({"model": weights, "optimizer": state}, checkpoint_id=f"{folder}/dcp")
    whole = {f"model.{n}": v.full_tensor() for n, v in weights.items()}
    for n, s in state["state"].items():
        whole |= {f"optimizer.state.{n}.{k}": v.full_tensor() if hasattr(v, "full_tensor") else v for k, v in s.items()}
    if rank == 0:
        torch.save({n: v.clone() for n, v in whole.items()}, f"{folder}/whole.pt")
    dist.destroy_process_group()


@pytest.mark.slow
def test_what_fsdp2_and_tensor_parallelism_leave_is_read_whole(tmp_path: Path) -> None:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    context = multiprocessing.get_context("spawn")
    ranks = [context.Process(target=_train, args=(r, port, str(tmp_path))) for r in range(4)]
    for r in ranks:
        r.start()
    for r in ranks:
        r.join(120)
    assert [r.exitcode for r in ranks] == [0] * 4
    faults, checked = compared(tmp_path / "whole.pt", tmp_path / "dcp", None, None)
    assert (faults, checked) == ([], 16)
    transform(planned(open_checkpoint(tmp_path / "dcp", None), tmp_path / "hf", None, Options(format="huggingface")))
    weights: Whole = arrays_of(tmp_path / "hf/model.safetensors")
    assert set(weights) == {"0.weight", "0.bias", "2.weight", "2.bias"}


def test_a_training_goes_on_from_what_went_through_dcp_and_a_file(tmp_path: Path) -> None:
    """Weights, moments, counts and the settings of the optimizer, by torch's own functions on both ends."""
    import torch.distributed.checkpoint as dcp
    from torch import nn
    from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

    def training(lr: float) -> Any:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(8, 12), nn.ReLU(), nn.Linear(12, 7))
        return model, torch.optim.AdamW(model.parameters(), lr=lr)

    def step(model: Any, optimizer: Any) -> float:
        loss = model(torch.ones(4, 8)).square().sum()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return float(loss)

    model, optimizer = training(0.1)
    for _ in range(3):
        step(model, optimizer)
    weights, state = get_state_dict(model, optimizer)
    dcp.save({"model": weights, "optimizer": state, "epoch": 4}, checkpoint_id=tmp_path / "a")
    moved(tmp_path / "a", None, tmp_path / "b.pt", None)
    loaded = torch.load(tmp_path / "b.pt", weights_only=True)
    assert loaded["epoch"] == 4
    assert loaded["optimizer"]["param_groups"][0]["betas"] == (0.9, 0.999)
    moved(tmp_path / "b.pt", None, tmp_path / "c", None, format="dcp")
    again, other = training(0.5)
    weights, state = get_state_dict(again, other)
    held = {"model": weights, "optimizer": state, "epoch": 0}
    dcp.load(held, checkpoint_id=tmp_path / "c")
    assert held["epoch"] == 4
    set_state_dict(again, other, model_state_dict=held["model"], optim_state_dict=held["optimizer"])
    third, last = training(0.5)
    set_state_dict(third, last, model_state_dict=loaded["model"], optim_state_dict=loaded["optimizer"])
    expected = [step(model, optimizer) for _ in range(3)]
    assert [step(again, other) for _ in range(3)] == expected
    assert [step(third, last) for _ in range(3)] == expected


@pytest.mark.parametrize("changed", ["conjugated", "negated"])
def test_numbers_that_change_when_they_are_read_are_refused(changed: str, tmp_path: Path) -> None:
    value = torch.tensor([1 + 2j]).conj() if changed == "conjugated" else torch._neg_view(torch.tensor([5.0]))
    torch.save({"w": value}, tmp_path / "a.pt")
    with pytest.raises(InputError, match=r"save x.resolve_conj\(\).resolve_neg\(\)"):
        open_checkpoint(tmp_path / "a.pt", None)
    torch.save({"w": value.resolve_conj().resolve_neg()}, tmp_path / "a.pt")
    open_checkpoint(tmp_path / "a.pt", None)
