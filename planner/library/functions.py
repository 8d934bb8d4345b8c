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
        plan: a plan of `planner.search`, or a plan.json, or its folder.
        model: the model that was planned; default: the one that the plan knows.
        seed: the seed of the random weights and inputs.
        whole: whether the whole graph and the file are executed, however long that takes.
        progress: True prints progress to standard error.

    Returns:
        The verdict, with the plan that holds its record.

    Raises:
        InputError: the model is not known, or is not the one that was planned.
        VerificationError: the process that executed the plan died.
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
        plan: a plan of `planner.search`, or a plan.json, or its folder.
        target: one of mindspore, mindformers, hyper-parallel, torch, dtensor, huggingface, torchtitan, deepspeed,
            megatron, onnx or onnx-ranks.
        out: the folder to write to; None: the files are in the result alone.
        names: a JSON file with the names of the network's parameters.
        hosts: a file with lines of SERVER DEVICE_IP… or SERVER slots=N.
        model: the model that was planned, which ONNX targets and torch need; default: the one that the plan knows.

    Raises:
        InputError: the target cannot express the plan, or the files cannot be written.
        UsageError: there is no such target, or the target needs the model.
    """
    return plan_of(plan, model).emit(target, out, names=names, hosts=hosts)


@worded
def report(plan: Plan | str | os.PathLike[str], out: str | os.PathLike[str] | None = None) -> Report:
    """Shows a plan, as `planner report` does: inline in a notebook, and as one HTML file where `out` is given.

    Args:
        plan: a plan of `planner.search`, or a plan.json, or its folder.
        out: the file to write the page to.

    Raises:
        InputError: `plan` is not a plan, or the file cannot be written.
    """
    return plan_of(plan).report(out)


@worded
def diff(
    a: Plan | str | os.PathLike[str], b: Plan | str | os.PathLike[str], out: str | os.PathLike[str] | None = None
) -> Diff:
    """Shows how plan `b` differs from plan `a`, and what each difference costs or saves, as `planner diff` does.

    Args:
        a, b: plans of `planner.search`, or plan.json files, or their folders.
        out: the file to write the page to.

    Raises:
        InputError: one of them is not a plan, or the file cannot be written.
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
        plan: a plan of `planner.search`, or a plan.json, or its folder.
        op: the operator, or the module with its operators, to explain; None: the plan as a whole.
        model: the model that was planned; default: the one that the plan knows.
        alternatives: how many of the operator's best alternatives are shown.
        hardware: the hardware profile; None: the one that was planned for.
        progress: a function that is called at every search, or True to print progress to standard error.

    Raises:
        InputError: the model is not known or another one, there is no such operator, or the plan does not
            record what was requested.
    """
    return plan_of(plan, model).explain(op, alternatives=alternatives, hardware=hardware, progress=progress)
