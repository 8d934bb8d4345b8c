"""Trainings on processes that are told to end at given points, and the same trainings unbroken."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Collection
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from planner.builder import build
from planner.cache import Store
from planner.cli.main import main
from planner.planning import PlanDocument, read_plan
from planner.requests.resuming import resumed
from planner.runtime import survivors
from planner.runtime.survivors import Survivors
from planner.runtime.training import checkpoint, moved, rank
from planner.runtime.training.driver import Step, train_on
from planner.runtime.training.options import TrainingOptions
from planner.runtime.training.recovery import Recovered, Replanned, Surviving
from planner.runtime.workers import Context, Workers

GPT: dict[str, Any] = {"layers": 2, "hidden": 32, "heads": 4, "vocab": 64, "batch": 24, "seq": 8}
SAMPLES = 104  # of the data, of which a step takes 24
OPTIMIZERS = {2: "adam", 1: "momentum", 0: "sgd"}


@dataclass(frozen=True)
class Job:
    """A model, its data, and a folder for plans, each of eight devices."""

    folder: Path
    model: Path
    data: Path

    def plan(self, strategy: str, devices: int = 8) -> PlanDocument:
        out = self.folder / f"{strategy}-{devices}"
        if not out.is_dir():
            search = ["search", str(self.model), "--devices", str(devices), "--hardware", "cpu", "--precision", "fp32"]
            assert main([*search, "--strategy", strategy, "--out", str(out)]) == 0
        return read_plan(out / "plan.json")


def job_of(folder: Path) -> Job:
    (folder / "data").mkdir()
    model = folder / "gpt.onnx"
    model.write_bytes(build("gpt", GPT).SerializeToString())
    rng = np.random.default_rng(3)
    for name in ("input_ids", "labels"):
        np.save(folder / "data" / f"{name}.npy", rng.integers(0, 64, (SAMPLES, 8)))
    return Job(folder, model, folder / "data")


@contextmanager
def quick_starts() -> Any:
    """Processes are forked off one that has loaded torch, where many have to be started."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["planner.runtime.training.recovery", "planner.runtime.training.driver"])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("planner.runtime.workers.multiprocessing.get_context", lambda _: context)
        patch.setattr("planner.runtime.workers._RESERVE_BYTES", 0)
        patch.setenv("TORCH_CPP_LOG_LEVEL", "ERROR")
        yield


@contextmanager
def limited(seconds: int) -> Any:
    """Fails where what is done takes longer."""

    def late(*_: Any) -> None:
        raise TimeoutError(f"not done in {seconds} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


@dataclass
class Ran:
    """What was told of a training, in its order, and the steps that it was made of."""

    told: list[Step | Recovered] = field(default_factory=list)
    steps: tuple[Step, ...] = ()
    workers: Survivors | None = None

    @property
    def recovered(self) -> list[Recovered]:
        return [t for t in self.told if isinstance(t, Recovered)]

    @property
    def losses(self) -> dict[int, float]:
        return {s.step: s.loss for s in self.steps}


Then = Callable[[Survivors, Step | None], None]


def trained(
    job: Job, plan: PlanDocument, steps: int, then: Then, *, least: int = 2, ran: Ran | None = None,
    at_replan: Callable[[Survivors], None] | None = None, store: Store | None = None, **options: Any,
) -> Ran:  # fmt: skip
    """Trains; `then` is called behind every step that is told, and once before the first."""
    ran = Ran() if ran is None else ran
    with Survivors(plan.devices) as workers:
        ran.workers = workers

        def replan(now: PlanDocument, lost: Collection[int], slots: tuple[str, ...]) -> Replanned:
            if at_replan is not None:
                at_replan(workers)
            found = resumed(now, job.model, lost, store=store, optimizer=OPTIMIZERS[len(slots)])
            return Replanned(found.plan, found.transfer.schedule)

        def tell(step: Step) -> None:
            ran.told.append(step)
            then(workers, step)

        then(workers, None)
        asked = TrainingOptions(steps=steps, data=job.data, **{"seed": 0, "lr": 1e-2, "clip": 0.5, **options})
        surviving = Surviving(least, replan, ran.told.append)
        ran.steps = train_on(workers, job.model, plan, asked, tell=tell, surviving=surviving).steps
    return ran


def unbroken(job: Job, plan: PlanDocument, steps: int, **options: Any) -> dict[int, float]:
    """The losses of the same training where nothing ends."""
    asked = TrainingOptions(steps=steps, data=job.data, **{"seed": 0, "lr": 1e-2, "clip": 0.5, **options})
    with Workers(plan.devices) as workers:
        return {s.step: s.loss for s in train_on(workers, job.model, plan, asked).steps}


# On the ranks


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def arm(_: Context, where: str, after: float = 0.0) -> None:
    """Has this process end (`sulk`: fail) where it comes next, or so many seconds from now."""
    if where == "timer":
        threading.Thread(target=lambda: (time.sleep(after), die()), daemon=True).start()
        return
    owner, name = _PLACES[where]
    before = getattr(owner, name)

    def armed(*given: Any, **named: Any) -> Any:
        setattr(owner, name, before)
        if "behind" in where:
            before(*given, **named)
        if where.startswith("sulk"):
            time.sleep(0.5)  # until the others have gone on
            raise RuntimeError("this rank did not hear of the sum")
        die()

    setattr(owner, name, armed)


_PLACES: dict[str, tuple[Any, str]] = {
    "before the barrier": (rank.RankTraining, "_measured"),
    "behind the barrier": (rank.RankTraining, "_measured"),
    "sulk behind the barrier": (rank.RankTraining, "_measured"),
    "in the update": (rank.RankTraining, "_update"),
    "in the meeting": (survivors.dist, "init_process_group"),
    "in the exchange": (moved, "exchange"),
    "behind the exchange": (moved, "exchange"),
    "in the new plan": (moved, "RankTraining"),
    "in a checkpoint": (checkpoint.dcp, "save"),
    "behind a checkpoint": (checkpoint.dcp, "save"),
    "before its name": (checkpoint, "_put"),
    "behind its name": (checkpoint, "_put"),
    "in reading": (checkpoint.dcp, "load"),
}


def armed(workers: Survivors, where: str, ranks: Collection[int], after: float = 0.0) -> None:
    workers.each(arm, dict.fromkeys(ranks, (where, after)))
