"""Checkpoints have the module's names, whatever the plan; buckets; bfloat16."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.peer

import torch.distributed as dist  # noqa: E402
import torch.distributed.checkpoint as dcp  # noqa: E402
from torch import nn  # noqa: E402

import planner.torch  # noqa: E402
from planner.runtime.workers import Context, Workers  # noqa: E402
from tests.torch.training import KINDS, alone, made, optimizer_of, planned, step_loss, train  # noqa: E402

# Among them a parameter of which each of three equal parts is split by itself, over two axes.
PLANS: dict[str, dict[str, Any]] = {
    "ddp": KINDS["ddp"], "zero3": KINDS["zero3"], "2-d": KINDS["2-d"],
    "stages": {"strategy": "megatron:tp=2,pp=2,micro_batch=4"},
}  # fmt: skip


@pytest.fixture(scope="module")
def workers() -> Iterator[Workers]:
    with Workers(4) as found:
        yield found


def _saved(context: Context, name: str, options: dict[str, Any], folder: str) -> dict[str, np.ndarray]:
    torch.set_num_threads(1)
    case = made(name)
    module = planner.torch.parallelize(case.module, planned(case, options))
    optimizer = optimizer_of(module)
    for _ in range(2):
        loss = step_loss(case, module, parallel=True)
        optimizer.zero_grad()
        loss.backward()
        planner.torch.clip_grad_norm_(module.parameters(), 0.5)
        optimizer.step()
    dcp.save(planner.torch.state_dict(module, optimizer), checkpoint_id=folder)
    return {n: v.numpy() for n, v in planner.torch.whole_state_dict(module).items()}


def _loaded(context: Context, name: str, options: dict[str, Any], folder: str) -> tuple[dict[str, np.ndarray], float]:
    """What another plan reads, and the loss of its next step."""
    case = made(name, seed=1)
    module = planner.torch.parallelize(case.module, planned(case, options))
    optimizer = optimizer_of(module)
    state = planner.torch.state_dict(module, optimizer)
    dcp.load(state, checkpoint_id=folder)
    planner.torch.load_state_dict(module, state, optimizer)
    found = {n: v.numpy() for n, v in planner.torch.whole_state_dict(module).items()}
    for _ in range(2):
        loss = step_loss(case, module, parallel=True)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return found, loss.item()


@pytest.mark.parametrize("plan", PLANS)
def test_a_checkpoint_of_any_plan_is_read_under_any_other_and_by_the_module(
    workers: Workers, plan: str, tmp_path: Path
) -> None:
    folder = str(tmp_path / "checkpoint")
    saved = workers.call(_saved, "vit", PLANS[plan], folder)[0]
    losses = []
    for other in PLANS:
        found, loss = workers.call(_loaded, "vit", PLANS[other], folder)[0]
        losses.append(loss)
        assert list(found) == list(saved)
        for n, v in saved.items():
            np.testing.assert_array_equal(found[n], v)
    assert losses == pytest.approx([losses[0]] * len(losses), rel=1e-5)
    plain = made("vit", seed=2).module
    state = {"model": plain.state_dict()}
    assert list(state["model"]) == list(saved)
    dcp.load(state, checkpoint_id=folder, no_dist=True)
    plain.load_state_dict(state["model"])
    for n, v in plain.state_dict().items():
        np.testing.assert_array_equal(v.numpy(), saved[n])


def _given_whole(context: Context, options: dict[str, Any]) -> list[str]:
    torch.set_num_threads(1)
    case, other = made("vit"), made("vit", seed=1)
    module = planner.torch.parallelize(case.module, planned(case, options))
    given = other.module.state_dict()
    module.load_state_dict(given)
    found = planner.torch.whole_state_dict(module)
    with pytest.raises(RuntimeError, match="size mismatch"):
        module.load_state_dict(given | {next(iter(given)): torch.ones(3, 5, 7)})
    return [n for n, v in given.items() if not torch.equal(found[n], v)]


@pytest.mark.parametrize("plan", PLANS)
def test_the_plain_modules_weights_are_loaded_whole(workers: Workers, plan: str) -> None:
    for found in workers.call(_given_whole, PLANS[plan]):
        assert found == []


def test_gradients_travel_in_buckets(workers: Workers) -> None:
    found = workers.call(train, "gpt", KINDS["ddp"], 1)[0]
    bytes_ = sum(g.nbytes for g in found.gradients.values())
    assert found.executed == found.planned
    assert found.executed["all_reduce"][0] <= -(-bytes_ // (25 << 20)) + 1
    assert found.executed["all_reduce"][1] == bytes_


def test_bfloat16_halves_what_travels_and_trains(workers: Workers) -> None:
    low = workers.call(train, "gpt", {**KINDS["2-d"], "precision": "bf16"}, 3)[0]
    full = workers.call(train, "gpt", KINDS["2-d"], 3)[0]
    assert low.executed == low.planned
    assert {k: 2 * size for k, (_, size) in low.executed.items()} == {k: size for k, (_, size) in full.executed.items()}
    assert all(v.dtype == np.float32 for v in low.state.values() if v.dtype.kind == "f")
    assert low.losses == pytest.approx(alone("gpt", 3).losses, rel=3e-2)


def _norms(context: Context, options: dict[str, Any]) -> float:
    case = made("vit")
    module = planner.torch.parallelize(case.module, planned(case, options))
    step_loss(case, module, parallel=True).backward()
    return planner.torch.clip_grad_norm_(module.parameters(), 0.5).item()


@pytest.mark.parametrize("plan", PLANS)
def test_the_norm_that_clips_is_that_of_the_whole_model(workers: Workers, plan: str) -> None:
    case = made("vit")
    step_loss(case, case.module, parallel=False).backward()
    truth = torch.nn.utils.clip_grad_norm_(case.module.parameters(), 0.5).item()
    assert workers.call(_norms, PLANS[plan]) == pytest.approx([truth] * 4, rel=1e-5)


def _shapes(context: Context, rows: int) -> str:
    case = made("mlp")
    module = planner.torch.parallelize(case.module, planned(case, KINDS["ddp"]))
    try:
        module(case.inputs[0][:rows], case.targets[0][:rows])
    except planner.InputError as error:
        return str(error)
    return ""


def test_a_batch_may_be_the_ranks_own_and_nothing_else(workers: Workers) -> None:
    assert workers.call(_shapes, 8) == [""] * 4
    assert workers.call(_shapes, 2) == [""] * 4
    assert (
        "expected the whole batch [8, 16] or this rank's 2 samples of it, found [3, 16]" in workers.call(_shapes, 3)[0]
    )


def _twice(context: Context) -> str:
    case = made("mlp")
    plan = planned(case, KINDS["ddp"])
    module = planner.torch.parallelize(case.module, plan)
    try:
        planner.torch.parallelize(module, plan)
    except planner.UsageError as error:
        return str(error)
    return ""


def test_a_module_runs_under_one_plan(workers: Workers) -> None:
    assert "runs under a plan already" in workers.call(_twice)[0]


def test_a_plan_of_another_size_is_refused(workers: Workers) -> None:
    assert "the plan is for 2 devices, and the process group has 4" in workers.call(_refused)[0]


def _refused(context: Context) -> str:
    case = made("mlp")
    plan = planned(case, {**KINDS["ddp"], "devices": 2})
    dist.barrier()
    try:
        planner.torch.parallelize(case.module, plan)
    except planner.UsageError as error:
        return str(error)
    return ""


def _clipped(context: Context, name: str, options: dict[str, Any]) -> float:
    torch.set_num_threads(1)
    case = made(name)
    module = planner.torch.parallelize(case.module, planned(case, options))
    step_loss(case, module, parallel=True).backward()
    return float(planner.torch.clip_grad_norm_(module.parameters(), 0.5))


@pytest.mark.parametrize("kind", PLANS)
def test_the_norm_counts_every_gradient_once(workers: Workers, kind: str) -> None:
    """Among them a weight that two stages hold, as the embedding and as the output layer."""
    case = made("nanogpt")
    step_loss(case, case.module, parallel=False).backward()
    alone = float(torch.nn.utils.clip_grad_norm_(case.module.parameters(), 0.5))
    found = workers.call(_clipped, "nanogpt", PLANS[kind])
    assert found == pytest.approx([alone] * 4, rel=1e-5)


class Counted(nn.Module):
    """Blocks with running statistics, and a running copy of a weight, which is made of weights alone."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last = nn.Linear(16, 32), nn.Linear(32, 8)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(32, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 32)) for _ in range(4)
        )
        self.register_buffer("past", torch.zeros(8, 32))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        for block in self.blocks:
            x = x + block(x)
        with torch.no_grad():
            self.past.lerp_(self.last.weight, 0.5)
        return self.last(x) + nn.functional.linear(x, self.past)


def _counted(context: Context, strategy: str, folder: str) -> list[str]:
    torch.set_num_threads(1)
    module, plain = Counted(), Counted()
    x, y = torch.randn(8, 16, generator=torch.Generator().manual_seed(1)), torch.arange(8)
    loss = nn.functional.cross_entropy
    plan = planner.torch.plan(module, x, targets=y, loss=loss, hardware="a100-80", strategy=strategy, cache=False)
    module = planner.torch.parallelize(module, plan)
    ours, theirs = (torch.optim.SGD(m.parameters(), lr=0.1) for m in (module, plain))
    for _ in range(3):
        for optimizer, value in ((ours, module(x, y)), (theirs, loss(plain(x), y))):
            optimizer.zero_grad()
            value.backward()
            optimizer.step()
    truth, whole = plain.state_dict(), planner.torch.whole_state_dict(module)
    dcp.save(planner.torch.state_dict(module), checkpoint_id=folder)
    read = {"model": Counted().state_dict()}
    dcp.load(read, checkpoint_id=folder)
    return [n for n, v in truth.items() for s in (whole, read["model"]) if not torch.allclose(s[n], v, atol=1e-5)]


@pytest.mark.parametrize("strategy", ["fsdp", "megatron:tp=2,pp=2,micro_batch=8"])
def test_buffers_are_those_of_the_plain_module(workers: Workers, strategy: str, tmp_path: Path) -> None:
    """Whichever stage writes them, and whatever is gathered to make them."""
    for found in workers.call(_counted, strategy, str(tmp_path / "checkpoint")):
        assert found == []
