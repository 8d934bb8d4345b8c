"""`planner.torch.profile`: a parallel module's step as it ran, beside what its plan predicts."""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from planner.errors import UsageError
from planner.report.profiled import Profile, profiled
from planner.runtime.timed import Timed
from planner.runtime.watched import watched_step
from planner.torch.capture.exported import loss_of

__all__ = ["measured_steps", "profile"]


def profile(
    module: nn.Module,
    *arguments: Any,
    steps: int = 3,
    optimizer: torch.optim.Optimizer | None = None,
    **keywords: Any,
) -> Profile:
    """Measures the step of a parallel module on a batch, and every operator and redistribution in it.

    All ranks call it together, and all get the same profile.  `print` shows tables by type of operator and collective;
    `Profile.document()` has a row for each, and `Profile.trace()` is what Perfetto opens: the plan's simulated step
    beside the measured one of every rank.

    The step as a whole is measured in the module's own mode.  Operators are timed one by one, in the interpreter,
    whose hand-over counts where they are small.

    Args:
        module: a module under a plan (`parallelize`), in training mode.
        arguments, keywords: a batch and its targets, as the module is called.
        steps: how many are measured, and how many are watched.
        optimizer: steps with the others, as part of the step; the weights change then.  Gradients are dropped.

    Raises:
        UsageError: the module runs under no plan; less than one step.
    """
    runner = getattr(type(module), "_planner", None)
    if runner is None:
        raise UsageError(f"planner.torch.profile: the {type(module).__name__} runs under no plan; parallelize it first")
    if steps < 1:
        raise UsageError(f"planner.torch.profile: steps={steps}: expected 1 or more")

    def step() -> None:
        loss_of(module(*arguments, **keywords)).backward()
        if optimizer is not None:
            optimizer.step()
        module.zero_grad()

    seconds = measured_steps(step, steps, runner.device)
    listed: list[list[Timed]] = []
    with torch.no_grad():
        feed = runner.feed(arguments, keywords)
        ahead = 0.0
        for n in range(1 + steps):
            dist.barrier()
            begin = time.perf_counter()
            _, found = watched_step(runner.stage, feed, ahead)
            if n:
                listed.append(found)
            else:  # what the host takes to hand over a step
                ahead = 1.5 * (time.perf_counter() - begin)
    ranks: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(ranks, listed)
    return profiled(runner.document, ranks, median(seconds))


def measured_steps(step: Callable[[], object], count: int, device: torch.device, warm: int = 1) -> list[float]:
    """Seconds of each of `count` steps behind `warm` others, from a common begin to the end of the slowest rank."""
    found = []
    for n in range(warm + count):
        dist.barrier()
        begin = time.perf_counter()
        step()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        if n >= warm:
            found.append(time.perf_counter() - begin)
    slowest = torch.tensor(found, dtype=torch.float64, device=device)
    dist.all_reduce(slowest, dist.ReduceOp.MAX)
    return [float(s) for s in slowest]
