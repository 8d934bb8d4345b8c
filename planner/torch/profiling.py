"""`planner.torch.profile`: a parallel module's step as it ran, beside what its plan predicts."""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from planner.errors import UsageError
from planner.report.profiled import Profile, profiled
from planner.runtime.live import peak_bytes
from planner.runtime.placements import local_tensor
from planner.runtime.traced import TracedStage
from planner.runtime.watched import watched_steps
from planner.torch.capture.returned import loss_of

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

    The step as a whole is measured in the module's own mode, and what it holds at its fullest moment.  Operators are
    timed one by one, in the interpreter, whose hand-over counts where they are small.

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
    held = _held(step, runner, module, optimizer)
    with torch.no_grad():
        listed = watched_steps(runner.stage, runner.feed(arguments, keywords), steps)
    ranks: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(ranks, (listed, held))
    most = max((size for _, size in ranks if size is not None), default=None)
    watched = [each for each, _ in ranks]
    return profiled(runner.document, watched, median(seconds), most, program=runner.staged.program)


def _held(
    step: Callable[[], object], runner: Any, module: nn.Module, optimizer: torch.optim.Optimizer | None
) -> int | None:
    """Bytes that live on this rank at the fullest moment of a step, parameters and the optimizer's state among them;
    None of a compiled step on CPUs, whose tensors nobody sees."""
    compiled = isinstance(runner.stepper, TracedStage) and runner.stepper.compiled
    if compiled and runner.device.type == "cpu":
        step()
        return None
    states = [] if optimizer is None else [v for s in optimizer.state.values() for v in s.values()]
    there = (*module.parameters(), *module.buffers(), *states)
    local = (local_tensor(x.detach()) for x in there if isinstance(x, Tensor) and not x.is_meta)
    return peak_bytes(step, runner.device, local)


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
