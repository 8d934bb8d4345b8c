"""`planner.torch.autotune`: the plans that are predicted fastest, run for some steps, and the fastest of them."""

from __future__ import annotations

import copy
import functools
import gc
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from planner.errors import PlannerError, UsageError
from planner.report.words import time_text
from planner.torch.capture.returned import loss_of
from planner.torch.parallel import Mode, parallelize
from planner.torch.planning import Examples, ModulePlan, arguments_of, optimizer_name, plans_of
from planner.torch.profiling import measured_steps

__all__ = ["Tuned", "TunedPlan", "autotune"]


@dataclass(frozen=True, slots=True)
class TunedPlan:
    """A plan that was run.  `measured_s`: the median of its steps, optimizer included, each until the slowest rank
    ends; `between_s`: the shortest and the longest of them.  `failed`: why it was not run, empty where it was."""

    plan: ModulePlan
    predicted_s: float
    measured_s: float
    between_s: tuple[float, float]
    failed: str = ""


@dataclass(frozen=True, slots=True)
class Tuned:
    """`plans`, the fastest first; `plan` is that one."""

    plans: tuple[TunedPlan, ...]

    @property
    def plan(self) -> ModulePlan:
        return self.plans[0].plan

    def __str__(self) -> str:
        lines = [f"{'measured':>10} {'predicted':>10}  plan"]
        for p in self.plans:
            measured = "failed" if p.failed else time_text(p.measured_s)
            why = f": {p.failed}" if p.failed else ""
            lines.append(f"{measured:>10} {time_text(p.predicted_s):>10}  {p.plan.parallelism}{why}")
        return "\n".join(lines)


def autotune(
    module: nn.Module,
    example_inputs: Examples = (),
    *,
    targets: Examples = (),
    loss: Callable[..., Tensor] | None = None,
    optimizer: str | type[torch.optim.Optimizer] = "adamw",
    plans: int | Sequence[ModulePlan] = 4,
    steps: int = 5,
    mode: Mode = "eager",
    **options: Any,
) -> Tuned:
    """Runs the plans that are predicted fastest on the processes of the process group, and says which is.

    Every plan trains a copy of the module for two steps and then for `steps` that are measured; the module itself is
    left as it is.  All ranks call it together.

    Args:
        module, example_inputs, targets, loss, optimizer, options (`fixed` too): as of `planner.torch.plan`.
        plans: how many of the search's plans are run; or the plans themselves, of this module and these inputs.
        mode: how steps are run (`planner.torch.parallelize`), which decides what is fastest.

    Raises:
        UsageError: there is no process group; no plan could be run.
    """
    if not dist.is_initialized():
        raise UsageError("planner.torch.autotune: no process group; start the script with torchrun")
    if isinstance(plans, int):
        listed = plans_of(
            module, example_inputs, count=plans, targets=targets, loss=loss, optimizer=optimizer, **options
        )
    else:
        listed = list(plans)
    if steps < 1:
        raise UsageError(f"planner.torch.autotune: steps={steps}: expected 1 or more")
    listed_inputs, keywords, behind = arguments_of(example_inputs, targets)
    arguments = (*listed_inputs, *behind)
    making = _optimizer(optimizer)
    rows = [_measured(module, p, arguments, keywords, making, steps, mode) for p in listed]
    rows.sort(key=lambda r: (bool(r.failed), r.measured_s))
    if not rows or rows[0].failed:
        why = "; ".join(r.failed for r in rows) or "none was given"
        raise UsageError(f"planner.torch.autotune: no plan could be run: {why}")
    return Tuned(tuple(rows))


def _optimizer(given: str | type[torch.optim.Optimizer]) -> Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]:
    if isinstance(given, type):
        return lambda parameters: given(parameters, lr=1e-4)
    kinds: dict[str, Callable[..., torch.optim.Optimizer]] = {
        # One kernel for all parameters, of which DTensor has none for SGD.
        "adamw": functools.partial(torch.optim.AdamW, fused=True),
        "adam": functools.partial(torch.optim.Adam, fused=True), "sgd": torch.optim.SGD,
        "momentum": lambda parameters, lr: torch.optim.SGD(parameters, lr=lr, momentum=0.9),
    }  # fmt: skip
    optimizer_name(given)  # which refuses a name that it does not know
    return lambda parameters: kinds[given.lower()](parameters, lr=1e-4)


def _measured(
    module: nn.Module,
    plan: ModulePlan,
    arguments: tuple[Any, ...],
    keywords: dict[str, Any],
    optimizer: Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer],
    steps: int,
    mode: Mode,
) -> TunedPlan:
    try:
        own = parallelize(copy.deepcopy(module), plan, mode=mode)
    except PlannerError as error:  # the same on all ranks
        return TunedPlan(plan, plan.step_time, float("inf"), (float("inf"), float("inf")), str(error))
    seconds = _steps(own, optimizer, lambda: own(*arguments, **keywords), steps)
    return TunedPlan(plan, plan.step_time, median(seconds), (min(seconds), max(seconds)))


def _steps(
    own: Any, optimizer: Callable[..., torch.optim.Optimizer], run: Callable[[], Any], count: int
) -> list[float]:
    """Seconds of training steps of a copy."""
    stepping = optimizer([p for p in own.parameters() if not p.is_meta])

    def step() -> None:
        loss_of(run()).backward()
        stepping.step()
        stepping.zero_grad()

    device = type(own)._planner.device
    seconds = measured_steps(step, count, device, warm=2)
    gc.collect()  # what earlier copies held in circles
    if device.type == "cuda":
        torch.cuda.empty_cache()
    return seconds
