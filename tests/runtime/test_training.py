"""Training by `planner run`: what plain torch makes of the same weights and data, under every kind of plan."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytestmark = [pytest.mark.peer, pytest.mark.slow]

import torch.distributed as dist  # noqa: E402
import torch.distributed.checkpoint as dcp  # noqa: E402

import planner.torch  # noqa: E402
from planner.errors import InputError, UsageError  # noqa: E402
from planner.runtime.training.driver import Agreed, Step, Trained, train_on  # noqa: E402  they import torch
from planner.runtime.workers import Context, Workers  # noqa: E402
from tests.runtime.trainings import BATCH, RATE, SAMPLES, Files, drawn_data, files_of, plan_of  # noqa: E402
from tests.torch.training import KINDS, STAGES, made, planned  # noqa: E402

STEPS = 5
PLANS: dict[str, dict[str, Any]] = {
    "ddp": KINDS["ddp"], "zero1": KINDS["zero1"], "zero3": KINDS["zero3"], "tp": KINDS["tp"], "2-d": KINDS["2-d"],
    "stages": STAGES["1f1b"], "recomputed": STAGES["1f1b+recompute=full"],
}  # fmt: skip
CASES = [("mlp", k) for k in ("ddp", "zero3", "columns")] + [("gpt", k) for k in PLANS]
COLUMNS = {"pin": ["mesh=4", "layers.0/linear.matmul n=x", "layers.2/linear.matmul k=x"]}


def options_of(kind: str) -> dict[str, Any]:
    return COLUMNS if kind == "columns" else PLANS[kind]


@pytest.fixture(scope="module")
def workers() -> Iterator[Workers]:
    with Workers(4) as started:
        yield started


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Files]:
    return {n: files_of(n, tmp_path_factory.mktemp(n), STEPS) for n in ("mlp", "gpt")}


def losses(trained: Trained) -> list[float]:
    return [s.loss for s in trained.steps]


def saved_weights(checkpoint: Path, like: dict[str, Any]) -> dict[str, Any]:
    state = {"model": {n: torch.zeros(v.shape) for n, v in like.items()}}
    dcp.load(state, checkpoint_id=checkpoint)
    return {n: v.numpy() for n, v in state["model"].items()}


@pytest.mark.parametrize(("model", "kind"), CASES)
def test_a_training_is_that_of_plain_torch(
    workers: Workers, files: dict[str, Files], tmp_path: Path, model: str, kind: str
) -> None:
    given = files[model]
    plan = plan_of(model, options_of(kind), tmp_path / "plan")
    told: list[Step] = []
    found = train_on(
        workers, given.model, plan, given.options(STEPS, save=tmp_path / "saved"), tell=told.append
    )  # fmt: skip
    assert tuple(told) == found.steps
    assert losses(found) == pytest.approx(given.truth.losses, rel=1e-6)
    assert [s.gradient_norm for s in found.steps] == pytest.approx(given.truth.norms, rel=1e-5)
    assert [s.step for s in found.steps] == list(range(1, STEPS + 1))
    assert found.traffic.executed == found.traffic.planned
    assert not found.fallbacks
    assert [p.name for p in (tmp_path / "saved").iterdir()] == [f"step-{STEPS:08d}"]
    after = saved_weights(found.steps[-1].saved, given.truth.weights)
    for name, value in given.truth.weights.items():
        if "attn.k.bias" in name:  # softmax does not see it: gradients are rounding, of which AdamW makes whole steps
            continue
        far = np.abs(after[name] - value) / np.abs(value).max()
        assert np.quantile(far, 0.95) < 1e-4, name  # the same happens to single elements


def test_sgd_with_momentum_is_torchs_too(workers: Workers, tmp_path: Path) -> None:
    given = files_of("gpt", tmp_path, STEPS, optimizer="sgd")
    plan = plan_of("gpt", PLANS["2-d"], tmp_path / "plan")
    options = given.options(STEPS, optimizer="sgd", momentum=0.9, save=tmp_path / "saved")
    found = train_on(workers, given.model, plan, options)
    assert losses(found) == pytest.approx(given.truth.losses, rel=1e-6)
    after = saved_weights(found.steps[-1].saved, given.truth.weights)
    for name, value in given.truth.weights.items():
        np.testing.assert_allclose(after[name], value, atol=1e-5 * float(np.abs(value).max()), err_msg=name)


def _held(context: Context, name: str) -> Any:
    return context.state["training"].parameters[name].numpy()


def test_a_parameter_that_two_stages_hold_stays_one(
    workers: Workers, files: dict[str, Files], tmp_path: Path
) -> None:  # fmt: skip
    """The table of words is read in the first stage, and is the head of the last one."""
    given = files["gpt"]
    plan = plan_of("gpt", PLANS["stages"], tmp_path / "plan")
    assert len(plan.parameters["wte.weight"].stages) == 2
    train_on(workers, given.model, plan, given.options(3))
    ranks = workers.call(_held, "wte.weight")
    for first, last in ((0, 2), (1, 3)):  # the same place in both stages
        np.testing.assert_array_equal(ranks[first], ranks[last])
    assert not np.array_equal(ranks[0], drawn_parameter(given, "wte.weight")[: len(ranks[0])])


def drawn_parameter(given: Files, name: str) -> Any:
    from planner.runtime.training.stored import safetensors

    return safetensors(given.weights)[name].read()


# Checkpoints


@pytest.mark.parametrize("kind", ["zero3", "stages"])
def test_a_training_that_was_interrupted_goes_on_with_the_same_bits(
    workers: Workers, files: dict[str, Files], tmp_path: Path, kind: str
) -> None:
    given = files["gpt"]
    plan = plan_of("gpt", PLANS[kind], tmp_path / "plan")
    whole = train_on(workers, given.model, plan, given.options(6, save=tmp_path / "saved", save_every=2))
    assert sorted(p.name for p in (tmp_path / "saved").iterdir()) == [f"step-{n:08d}" for n in (2, 4, 6)]
    first = train_on(workers, given.model, plan, given.options(3, save=tmp_path / "half"))
    # What was asked for before, the checkpoint knows: rate, clipping, position in the data.
    more = given.options(3, weights=None, lr=None, clip=None, load=tmp_path / "half")
    second = train_on(workers, given.model, plan, more)
    assert losses(first) + losses(second) == losses(whole)
    assert [s.step for s in second.steps] == [4, 5, 6]
    assert second.begun == 3
    for other in ("ddp", "tp"):
        there = train_on(workers, given.model, plan_of("gpt", PLANS[other], tmp_path / other), more)
        assert losses(there) == pytest.approx(losses(whole)[3:], rel=1e-6)


def _module(context: Context, folder: str, load: bool) -> list[float]:
    """A module under another plan: three steps, from a checkpoint or into one."""
    torch.set_num_threads(1)
    case = made("gpt")
    module = planner.torch.parallelize(case.module, planned(case, PLANS["2-d"]))
    optimizer = torch.optim.AdamW(module.parameters(), lr=RATE)
    if load:
        state = planner.torch.state_dict(module, optimizer)
        dcp.load(state, checkpoint_id=folder)
        planner.torch.load_state_dict(module, state, optimizer)
    idx, target = (torch.from_numpy(v) for v in drawn_data("gpt").values())
    found = []
    for step in range(3 if load else 0, 6 if load else 3):
        rows = np.arange(step * BATCH, (step + 1) * BATCH) % SAMPLES
        loss = module(idx[rows], target[rows])
        optimizer.zero_grad()
        loss.backward()
        planner.torch.clip_grad_norm_(module.parameters(), 0.5)
        optimizer.step()
        found.append(loss.item())
    if not load:
        dcp.save(planner.torch.state_dict(module, optimizer), checkpoint_id=folder)
    dist.barrier()
    return found


def test_modules_read_its_checkpoints_and_it_reads_theirs(
    workers: Workers, files: dict[str, Files], tmp_path: Path
) -> None:
    given = files["gpt"]
    plan = plan_of("gpt", PLANS["stages"], tmp_path / "plan")
    whole = losses(train_on(workers, given.model, plan, given.options(6)))
    half = train_on(workers, given.model, plan, given.options(3, save=tmp_path / "ours"))
    assert workers.call(_module, str(half.steps[-1].saved), True)[0] == pytest.approx(whole[3:], rel=1e-6)
    theirs = workers.call(_module, str(tmp_path / "theirs"), False)[0]
    assert theirs == pytest.approx(whole[:3], rel=1e-6)
    more = given.options(1, weights=None, load=tmp_path / "theirs")
    taken = train_on(workers, given.model, plan, more)
    assert taken.steps[0].step == 1  # nothing there says how many were made: data begins anew
    assert taken.begun == 0


def test_what_was_not_written_to_the_end_is_no_checkpoint(
    workers: Workers, files: dict[str, Files], tmp_path: Path
) -> None:
    given, saved = files["mlp"], tmp_path / "saved"
    plan = plan_of("mlp", PLANS["zero3"], tmp_path / "plan")
    train_on(workers, given.model, plan, given.options(2, save=saved, save_every=1))
    (saved / ".step-00000003.part").mkdir()
    (saved / "step-00000004").mkdir()  # of a copy that was broken off
    found = train_on(workers, given.model, plan, given.options(1, weights=None, load=saved, save=saved))
    assert found.steps[0].step == 3
    assert not list(saved.glob(".*"))


def test_checkpoints_that_do_not_fit_are_refused(workers: Workers, files: dict[str, Files], tmp_path: Path) -> None:
    given = files["mlp"]
    plan = plan_of("mlp", PLANS["zero3"], tmp_path / "plan")
    train_on(workers, given.model, plan, given.options(1, save=tmp_path / "saved"))

    def refused(error: type[Exception], words: str, **more: Any) -> None:
        with pytest.raises(Agreed, match=words) as raised:
            train_on(workers, given.model, plan, given.options(1, weights=None, **{"load": tmp_path / "saved", **more}))
        assert isinstance(raised.value.error, error)

    refused(InputError, "found no folder", load=tmp_path / "nothing")
    refused(InputError, "found neither", load=tmp_path)
    refused(UsageError, "of a training with adamw", optimizer="sgd")
    gpt, other = files["gpt"], plan_of("gpt", PLANS["ddp"], tmp_path / "other")
    with pytest.raises(Agreed, match=r"no parameter wte\.weight and \d+ more"):
        train_on(workers, gpt.model, other, gpt.options(1, weights=None, load=tmp_path / "saved"))
    (tmp_path / "file").write_text("")
    with pytest.raises(Agreed, match="cannot be written to: File exists"):
        train_on(workers, given.model, plan, given.options(1, save=tmp_path / "file"))
