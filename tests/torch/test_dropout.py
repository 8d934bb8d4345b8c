"""What is dropped: other elements in every step and micro-batch, and the same ones under every plan."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.peer

import planner.torch  # noqa: E402
from planner.cli.main import main  # noqa: E402
from planner.errors import UsageError  # noqa: E402
from planner.runtime.workers import Context, Workers  # noqa: E402
from tests.torch.training import made, planned, step_loss, whole  # noqa: E402

Found = tuple[list[float], dict[str, Any]]


@pytest.fixture(scope="module")
def workers() -> Iterator[Workers]:
    with Workers(4) as found:
        yield found


def _steps(context: Context, options: dict[str, Any], mode: str) -> Found:
    """Losses of three steps that change no weight, and the gradients of the last."""
    torch.set_num_threads(1)
    case = made("dropped")
    module = planner.torch.parallelize(case.module, planned(case, options), mode=mode)
    losses = []
    for _ in range(3):
        module.zero_grad()
        loss = step_loss(case, module, parallel=True)
        loss.backward()
        losses.append(loss.item())
    return losses, {n: whole(p.grad).numpy() for n, p in module.named_parameters() if p.grad is not None}


def ran(workers: Workers, options: dict[str, Any], mode: str = "eager") -> Found:
    found: Found = workers.call(_steps, options, mode)[0]
    return found


def test_every_step_drops_other_elements(workers: Workers) -> None:
    losses, _ = ran(workers, {"pin": ["rest=data_parallel"]})
    assert len(set(losses)) == 3


@pytest.mark.parametrize(
    "strategy",
    ["fsdp", "megatron:tp=4,micro_batch=8", "megatron:tp=2,micro_batch=4", "megatron:tp=4,micro_batch=8,sp=0"],
)
def test_what_is_dropped_does_not_depend_on_the_plan(workers: Workers, strategy: str) -> None:
    truth, gradients = ran(workers, {"pin": ["rest=data_parallel"]})
    losses, found = ran(workers, {"strategy": strategy})
    assert losses == pytest.approx(truth, rel=1e-6)
    for name, g in gradients.items():
        assert found[name] == pytest.approx(g, abs=1e-6)


def _of_halves(context: Context) -> list[float]:
    """The losses of two micro-batches that hold the same samples."""
    torch.set_num_threads(1)
    case = made("dropped")
    module = planner.torch.parallelize(case.module, planned(case, {"strategy": "megatron:tp=4,micro_batch=4,sp=0"}))
    runner = module._planner
    with torch.no_grad():
        taken = runner.stage.step(runner.feed((*case.inputs, *case.targets), {}))
    return [float(value) for _, value in taken.outputs[runner.graph.loss].values()]


def test_every_micro_batch_drops_other_elements(workers: Workers) -> None:
    first, second = workers.call(_of_halves)[0]
    assert first != second


@pytest.mark.parametrize("strategy", ["fsdp", "megatron:tp=4,micro_batch=4,sp=0", "fsdp:micro_batch=1"])
def test_traced_steps_drop_what_interpreted_ones_do(workers: Workers, strategy: str) -> None:
    eager, traced = (ran(workers, {"strategy": strategy}, mode) for mode in ("eager", "traced"))
    assert eager[0] == traced[0]
    for name, g in eager[1].items():
        assert (traced[1][name] == g).all()


def test_a_training_that_goes_on_drops_what_one_without_a_break_does(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    planned(made("dropped"), {"strategy": "fsdp:micro_batch=2", "devices": 2}).save(tmp_path / "plan")
    given = ["run", str(tmp_path / "plan"), str(tmp_path / "plan" / "model.onnx"), "--json"]

    def losses(*more: str) -> list[float]:
        capsys.readouterr()
        assert main([*given, *more]) == 0
        return [json.loads(line)["loss"] for line in capsys.readouterr().out.splitlines()[:-1]]

    still = losses("--steps", "3", "--lr", "0", "--weight-decay", "0")
    assert len(set(still)) == 3
    whole_run = losses("--steps", "3")
    assert losses("--steps", "2", "--save", str(tmp_path / "saved")) == whole_run[:2]
    assert losses("--load", str(tmp_path / "saved")) == whole_run[2:]


def _gone_on(context: Context, kind: str) -> tuple[list[float], float]:
    """Losses of three steps, and that of the third one of a module that goes on from the state behind the second."""
    torch.set_num_threads(1)
    states: list[Any] = []

    def three(first: int) -> list[float]:
        case = made("dropped")
        module = planner.torch.parallelize(case.module, planned(case, {"strategy": "fsdp"}))
        make = torch.optim.AdamW if kind == "adamw" else torch.optim.SGD
        optimizer = make(module.parameters(), lr=1e-2)
        if first:
            step_loss(case, module, parallel=True).backward()  # which makes the optimizer's state
            optimizer.step()
            planner.torch.load_state_dict(module, states[0], optimizer)
            if kind == "sgd":
                planner.torch.set_step(module, first)
        losses = []
        for _ in range(first, 3):
            optimizer.zero_grad()
            loss = step_loss(case, module, parallel=True)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
            if len(losses) == 2:
                found = planner.torch.state_dict(module, optimizer)
                states.append(copy.deepcopy(found))
        return losses

    whole_run = three(0)
    return whole_run, three(2)[0]


@pytest.mark.parametrize("kind", ["adamw", "sgd"])
def test_a_module_that_goes_on_drops_what_one_without_a_break_does(workers: Workers, kind: str) -> None:
    for losses, third in workers.call(_gone_on, kind):
        assert third == losses[2]


def test_steps_are_of_parallel_modules() -> None:
    with pytest.raises(UsageError, match="Linear is not parallel"):
        planner.torch.set_step(torch.nn.Linear(1, 1), 3)
