"""Processes of a training die at any point; those that are left go on by themselves, to the losses of one unbroken."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytestmark = [pytest.mark.peer, pytest.mark.slow]

from planner.runtime.survivors import Survivors  # noqa: E402  they import torch
from planner.runtime.training.checkpoint import newest  # noqa: E402
from planner.runtime.training.driver import Step  # noqa: E402
from planner.runtime.workers import WorkerError  # noqa: E402
from tests.runtime.survivors import Job, Ran, armed, job_of, limited, quick_starts, trained, unbroken  # noqa: E402
from tests.runtime.test_training_faults import alive  # noqa: E402

STEPS = 80
PIPELINE = "megatron:pp=2,tp=1,zero=0,micro_batch=3"
TENSOR = "megatron:tp=4,zero=0"  # twice, so that each part is on two devices


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Job:
    return job_of(tmp_path_factory.mktemp("gpt"))


@pytest.fixture(scope="module", autouse=True)
def _quick() -> Iterator[None]:
    with quick_starts():
        yield


@pytest.fixture(autouse=True)
def _no_hang() -> Iterator[None]:
    with limited(300):
        yield


@pytest.fixture(scope="module")
def whole(job: Job) -> dict[int, float]:
    """The losses of the training that nothing befalls, on one device."""
    return unbroken(job, job.plan("ddp", 1), STEPS)


def same(ran: Ran, whole: dict[int, float], steps: int) -> None:
    assert list(ran.losses) == list(range(1, steps + 1))
    assert ran.losses == {n: pytest.approx(whole[n], rel=1e-5) for n in range(1, steps + 1)}


@pytest.mark.parametrize("strategy", ["ddp", TENSOR])
@pytest.mark.parametrize("seed", [0, 1])
def test_two_of_eight_die_at_any_point_and_no_step_is_lost(
    job: Job, whole: dict[int, float], strategy: str, seed: int
) -> None:
    """Three times in one training, eight to six to four to two, without a checkpoint."""
    rng = random.Random(f"{strategy} {seed}")

    def then(workers: Survivors, step: Step | None) -> None:
        if step is not None and step.step in (5, 15, 25):
            chosen = rng.sample(range(workers.count), 2)
            if chosen[0] % 4 == chosen[1] % 4:  # they may be the two that hold the same
                chosen[1] = (chosen[1] + 1) % workers.count
            for r in chosen:
                armed(workers, "timer", [r], after=rng.uniform(0, 0.08))

    ran = trained(job, job.plan(strategy), STEPS, then)
    same(ran, whole, STEPS)
    assert all(r.checkpoint is None for r in ran.recovered)
    assert sum(len(r.ranks) for r in ran.recovered) == 6


@pytest.mark.parametrize("strategy", ["ddp", PIPELINE])
def test_a_step_is_made_by_all_that_are_left_or_by_none(job: Job, whole: dict[int, float], strategy: str) -> None:
    """Ranks end around the barrier and in the update; one that is left does not hear of the sum, and makes the step
    with what the others found."""

    def then(workers: Survivors, step: Step | None) -> None:
        match step and step.step:
            case 3:
                armed(workers, "behind the barrier", [0])
                armed(workers, "sulk behind the barrier", [2])
            case 6:
                armed(workers, "before the barrier", [1])
            case 9:
                armed(workers, "in the update", [workers.count - 1])

    ran = trained(job, job.plan(strategy), STEPS, then, save=job.folder / f"around {strategy}", save_every=1)
    same(ran, whole, STEPS)
    first, second, third = ran.recovered
    assert (first.ranks, second.ranks) == ((0,), (1,))
    if first.checkpoint is None:
        assert first.step == 4  # made by those that are left
    if second.checkpoint is None:
        assert second.step == 6
    assert third.before == len(third.ranks) + third.left


def test_what_nobody_holds_comes_from_the_last_checkpoint(job: Job, whole: dict[int, float], tmp_path: Path) -> None:
    """Of ZeRO's parts each is on one device."""

    def then(workers: Survivors, step: Step | None) -> None:
        if step is not None and (step.step, workers.count) == (8, 8):
            armed(workers, "timer", [3, 7])

    ran = trained(job, job.plan("fsdp"), STEPS, then, save=tmp_path, save_every=5)
    same(ran, whole, STEPS)
    (done,) = ran.recovered
    assert done.checkpoint == tmp_path / "step-00000005"
    assert done.step == 5
    assert done.ranks == (3, 7)
    assert done.lost
    told = [t.step if isinstance(t, Step) else t for t in ran.told]
    at = told.index(done)
    assert told[at - 1] in (8, 9)
    assert told[at + 1] == 6


def test_without_a_checkpoint_what_is_lost_is_named(job: Job) -> None:
    def then(workers: Survivors, step: Step | None) -> None:
        if step is not None and step.step == 2:
            armed(workers, "timer", [1])

    ran = Ran()
    with pytest.raises(
        WorkerError, match=r"rank 1 of 8 was ended by SIGKILL.*no device that is left holds all of .*wte"
    ):
        trained(job, job.plan("fsdp"), 10, then, ran=ran)
    ended(ran)


def test_too_few_are_left(job: Job) -> None:
    def then(workers: Survivors, step: Step | None) -> None:
        if step is not None and step.step == 2:
            armed(workers, "timer", [1, 2])

    ran = Ran()
    with pytest.raises(WorkerError, match=r"7 devices left|6 devices left, and --min-devices asks for 8"):
        trained(job, job.plan("ddp"), 10, then, ran=ran, least=8)
    ended(ran)


def ended(ran: Ran) -> None:
    assert ran.workers is not None
    assert all(p.exitcode is not None for p in ran.workers._processes)


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_more_end_while_the_others_find_together(
    job: Job, whole: dict[int, float], tmp_path: Path, strategy: str
) -> None:
    """In the search, in the exchange, behind it, and while checkpoints are read."""
    places = iter(
        ["in the meeting", "in the exchange", "in the new plan"]
        if strategy == "ddp"
        else ["in the meeting", "in reading"]
    )

    def at_replan(workers: Survivors) -> None:
        where = next(places, None)
        if where is not None and len(workers.alive) > 3:
            armed(workers, where, [workers.alive[-1]])

    def then(workers: Survivors, step: Step | None) -> None:
        if step is not None and step.step in (4, 20) and workers.count > 3:
            armed(workers, "timer", [0], after=0.01)

    ran = trained(job, job.plan(strategy), STEPS, then, at_replan=at_replan, save=tmp_path, save_every=2)
    same(ran, whole, STEPS)
    assert len(ran.recovered[0].ranks) > 1


@pytest.mark.parametrize("where", ["in a checkpoint", "before its name", "behind its name"])
def test_no_checkpoint_is_half(job: Job, whole: dict[int, float], tmp_path: Path, where: str) -> None:
    """Rank 0, which gives it its name, ends, and so does another one."""

    def then(workers: Survivors, step: Step | None) -> None:
        if step is not None and (step.step, workers.count) == (3, 8):
            armed(workers, where, [0])
            if where == "in a checkpoint":
                armed(workers, where, [5])

    ran = trained(job, job.plan("fsdp"), STEPS, then, save=tmp_path, save_every=2)
    same(ran, whole, STEPS)
    (done,) = ran.recovered
    assert done.step == (4 if where == "behind its name" else 2)
    assert sorted(f.name for f in tmp_path.iterdir()) == [f"step-{n:08d}" for n in range(2, STEPS + 1, 2)]
    assert all((f / ".metadata").is_file() for f in tmp_path.iterdir())
    last = newest(tmp_path)
    assert last is not None
    again = unbroken(job, job.plan("ddp", 1), 1, load=last, seed=None)
    assert list(again) == [STEPS + 1]


# The command


def command(job: Job, plan: str, *options: str) -> list[str]:
    job.plan(plan)
    given = [str(job.folder / f"{plan}-8"), str(job.model), "--data", str(job.data), "--lr", "0.01", "--clip", "0.5"]
    return [sys.executable, "-m", "planner", "run", *given, "--seed", "0", *options]


def test_the_command_goes_on_and_says_so(job: Job, whole: dict[int, float]) -> None:
    """Rank 0 is among those that are killed from outside."""
    asked = command(job, "ddp", "--steps", "30", "--min-devices", "4", "--json")
    lines: list[dict[str, Any]] = []
    with subprocess.Popen(asked, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as ran:
        assert ran.stdout is not None
        assert ran.stderr is not None
        for line in ran.stdout:
            lines.append(json.loads(line))
            if lines[-1].get("step") == 12 and "gradient_norm" in lines[-1]:
                workers = alive(ran.pid)
                assert len(workers) == 8
                for k in (0, 6):
                    os.kill(workers[k], signal.SIGKILL)
            if "recovered" in lines[-1]:
                assert len(alive(ran.pid)) == 6  # and no one that has ended and is not waited for
        error = ran.stderr.read()
    assert ran.returncode == 0, error[-2000:]
    assert error.strip() == ""
    (done,) = [d["recovered"] for d in lines if "recovered" in d]
    assert (done["devices_before"], done["devices"], done["checkpoint"]) == (8, 6, None)
    assert len(done["ranks"]) == 2
    losses = {d["step"]: d["loss"] for d in lines if "gradient_norm" in d}
    assert losses == {n: pytest.approx(whole[n], rel=1e-5) for n in range(1, 31)}
    assert lines[-1]["devices"] == 6
    assert lines[-1]["collectives"] == lines[-1]["planned"]


@pytest.mark.parametrize(
    ("options", "environment", "words"),
    [
        (["--min-devices", "9"], {}, "the plan is for 8 devices"),
        (["--min-devices", "2", "--device", "cuda"], {}, "not with NCCL"),
        (["--min-devices", "2", "--check"], {}, "--check and --min-devices"),
        (
            ["--min-devices", "2"],
            {"RANK": "0", "WORLD_SIZE": "8", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29999"},
            "torchrun started the ranks, and ends all of them when one has ended",
        ),
    ],
)
def test_where_nobody_could_go_on_it_is_refused(
    job: Job, options: list[str], environment: dict[str, str], words: str
) -> None:
    asked = [word for word in command(job, "ddp")[:6] if word != "--data"]
    done = subprocess.run(
        [*asked, *options], capture_output=True, text=True, check=False, timeout=100,
        env={**os.environ, **environment},
    )  # fmt: skip
    assert done.returncode == 2
    assert words in done.stderr
    assert "Traceback" not in done.stderr
