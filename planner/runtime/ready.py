"""What is looked at before anything is started, and the processes that then carry a plan out."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch

from planner.errors import InputError, UsageError
from planner.frontends import load_model
from planner.planning import PlanDocument
from planner.planning.programs import program_of
from planner.runtime.hosted import hosted, hosted_text
from planner.runtime.started import Elsewhere, Ranks, Started, started
from planner.runtime.workers import Workers

__all__ = ["check", "ready", "workers_for"]


def ready(model: Path, plan: PlanDocument, device: str, say: Callable[[str], None] | None = None) -> Started | None:
    """How this process was started, None by itself, once all is found to be in order.  Operators that would run on the
    host are named to `say`; on GPUs they are refused.

    Raises:
        InputError: the plan is not for this model.
        UsageError: operators would run on the host of GPUs; the number of processes is not the plan's, or there are
            too few GPUs.
        Elsewhere: so it is, and another rank of this host says it.
    """
    here = started()
    if here is not None:
        here.expect(plan.devices)
    try:
        check(model, plan, device, say if here is None or here.reports else None)
    except (InputError, UsageError) as error:
        if here is not None and here.local_rank:
            raise Elsewhere(error) from None
        raise
    return here


def check(model: Path, plan: PlanDocument, device: str, say: Callable[[str], None] | None = None) -> None:
    """InputError, UsageError: as `ready`, of a plan and a machine alone."""
    program = program_of(plan, load_model(model, bind=plan.model.bind, batch=plan.model.batch))
    on_host = hosted(program)
    if on_host and device == "cuda":
        raise UsageError(
            f"--device cuda: PyTorch has no function here for {hosted_text(on_host)}; run the plan on the CPU "
            f"(--device cpu), pin these operators to another split, or register a function (docs/architecture.md)"
        )
    if on_host and say is not None:
        say(f"on the host, for want of a PyTorch function: {hosted_text(on_host)}")
    if device == "cuda" and torch.cuda.device_count() == 0:
        raise UsageError("--device cuda: this machine has no GPU that PyTorch sees; leave it out for the CPU")


def workers_for(here: Started | None, count: int, device: str, threads: int) -> Workers | Ranks:
    """Processes that are started here, or the ranks that others have started."""
    return Workers(count, device=device, threads=threads) if here is None else Ranks(here, device, threads)
