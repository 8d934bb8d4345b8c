"""What is done with a plan, as functions that take one in any form."""

from __future__ import annotations

import os

from planner.library.comparing import Diff
from planner.library.emitting import Emission
from planner.library.explaining import Explanation
from planner.library.model import Model, Proto
from planner.library.plan import Plan, compared, plan_of
from planner.library.progress import Listener
from planner.library.reporting import Report
from planner.library.verifying import Verification
from planner.library.wording import worded

__all__ = ["diff", "emit", "explain", "report", "verify"]


@worded
def verify(
    plan: Plan | str | os.PathLike[str],
    model: Model | str | os.PathLike[str] | bytes | Proto | None = None,
    *,
    seed: int = 0,
    whole: bool = False,
    progress: bool | None = None,
) -> Verification[Plan]:
    """Executes a plan on virtual devices and compares it with the whole model, as `planner verify` does.

    Args:
        plan: of `planner.search`, or a plan.json, or its folder.
        model: the plan's own unless given.
        seed: of the random weights and inputs.
        whole: whether the whole graph and the file are executed, however long that takes.
        progress: True prints lines to standard error.

    Returns:
        The verdict, with the plan that holds its record.

    Raises:
        InputError: the model is not known or another one.
        VerificationError: the process that executed it died.
    """
    return plan_of(plan).verify(model, seed=seed, whole=whole, progress=progress)


@worded
def emit(
    plan: Plan | str | os.PathLike[str],
    target: str,
    out: str | os.PathLike[str] | None = None,
    *,
    names: str | os.PathLike[str] | None = None,
    hosts: str | os.PathLike[str] | None = None,
    model: Model | str | os.PathLike[str] | bytes | Proto | None = None,
) -> Emission:
    """Writes a plan for a runtime, as `planner emit` does.

    Args:
        plan: of `planner.search`, or a plan.json, or its folder.
        target: mindspore, mindformers, hyper-parallel, torch, huggingface, torchtitan, deepspeed, megatron, onnx or
            onnx-ranks.
        out: folder to write to; None: the files are in the answer alone.
        names: JSON file with the names of the network's parameters.
        hosts: file with lines of SERVER DEVICE_IP… or SERVER slots=N.
        model: for the ONNX targets; the plan's own unless given.

    Raises:
        InputError: the target has no words for the plan, or the files cannot be written.
        UsageError: there is no such target, or it lacks the model.
    """
    return plan_of(plan, model).emit(target, out, names=names, hosts=hosts)


@worded
def report(plan: Plan | str | os.PathLike[str], out: str | os.PathLike[str] | None = None) -> Report:
    """Shows a plan, as `planner report` does: inline in a notebook, and as one HTML file where `out` is given.

    Args:
        plan: of `planner.search`, or a plan.json, or its folder.
        out: file to write the page to.

    Raises:
        InputError: it is no plan, or the file cannot be written.
    """
    return plan_of(plan).report(out)


@worded
def diff(
    a: Plan | str | os.PathLike[str], b: Plan | str | os.PathLike[str], out: str | os.PathLike[str] | None = None
) -> Diff:
    """What plan `b` does otherwise than plan `a`, and what that costs or saves, as `planner diff` says it.

    Args:
        a, b: of `planner.search`, or plan.json files, or their folders.
        out: file to write the page to.

    Raises:
        InputError: one is no plan, or the file cannot be written.
    """
    found = compared(a, b)
    if out is not None:
        found.save(out)
    return found


@worded
def explain(
    plan: Plan | str | os.PathLike[str],
    op: str | None = None,
    *,
    model: Model | str | os.PathLike[str] | bytes | Proto | None = None,
    alternatives: int = 3,
    hardware: str | None = None,
    progress: Listener | bool | None = None,
) -> Explanation:
    """Says why a plan is as it is, by the very search that found it, as `planner explain` does.

    Args:
        plan: of `planner.search`, or a plan.json, or its folder.
        op: an operator; None: the plan as a whole.
        model: the plan's own unless given.
        alternatives: how many of the operator's best.
        hardware: profile; None: the one planned for.
        progress: a function that hears of every search, or True for lines on standard error.

    Raises:
        InputError: the model is not known or another one, there is no such operator, or the plan does not say what was
            asked for.
    """
    return plan_of(plan, model).explain(op, alternatives=alternatives, hardware=hardware, progress=progress)
