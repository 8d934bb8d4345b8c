"""What a known configuration, or a plan, costs."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any, Unpack

from planner.errors import OptionError
from planner.library.machine import Machine, settled_machine
from planner.library.model import Model, Proto, model_of
from planner.library.options import EvaluationOptions, documented, given_options
from planner.library.plan import Plan, plan_of
from planner.library.wording import worded
from planner.requests.evaluation import EvaluationRequest

__all__ = ["Evaluation", "evaluate"]


@dataclass(frozen=True, eq=False, repr=False)
class Evaluation:
    """Seconds of a step, where they go, and bytes of the fullest device.  `print` shows all of it.

    document  what `planner evaluate --json` prints
    """

    document: Mapping[str, Any]

    @property
    def step_time(self) -> float:
        """Seconds of a step, by the clock."""
        return float(self.document["step_time_s"])

    @property
    def step_time_interval(self) -> tuple[float, float] | None:
        """Seconds between which a step takes in 80 % of all cases; None where the profile states links alone."""
        found = self.document.get("step_time_interval_s")
        return None if found is None else (found[0], found[1])

    @property
    def memory(self) -> int:
        """Bytes of the fullest device at the peak."""
        return int(self.document["peak_memory_bytes"])

    @property
    def memory_limit(self) -> int | None:
        """Bytes that a device may use."""
        found: int | None = self.document["memory_limit_bytes"]
        return found

    @property
    def fits(self) -> bool:
        """Whether memory is below its limit."""
        return bool(self.document["fits"])

    @property
    def samples_per_s(self) -> float | None:
        """Samples that are trained on in a second."""
        found: float | None = self.document["samples_per_s"]
        return found

    @property
    def text(self) -> str:
        """As `planner evaluate` prints it."""
        from planner.requests.evaluation_text import evaluation_text

        return evaluation_text(dict(self.document))

    def to_dict(self) -> dict[str, Any]:
        """As the command prints it with --json."""
        return dict(self.document)

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        from planner.report.words import memory_text, time_text

        fits = "" if self.fits else ", does not fit"
        d = self.document
        return (
            f"<Evaluation {d['strategy']} on {d['devices']} x {d['hardware']}: step {time_text(self.step_time)}, "
            f"{memory_text(self.memory)} per device{fits}>"
        )

    def _repr_html_(self) -> str:
        return f"<pre>{escape(self.text)}</pre>"


@worded
@documented(EvaluationRequest, EvaluationOptions)
def evaluate(
    model: Model | str | os.PathLike[str] | bytes | Proto,
    machine: Machine | None = None,
    *,
    devices: int | None = None,
    plan: Plan | str | os.PathLike[str] | None = None,
    hardware: str | Machine | None = None,
    **options: Unpack[EvaluationOptions],
) -> Evaluation:
    """Prices a known configuration, or a plan, on a model, without searching, as `planner evaluate` does.

    Args:
        model: a model of `planner.load` or `planner.build`, or a file, its bytes, or an onnx.ModelProto.
        machine: the machine to price it on; or give `devices` and `hardware` instead.
        devices: the number of devices; default with a plan: the plan's own.
        plan: the plan to price as it is; or give a `strategy` instead.
        hardware: the name or file of a hardware profile; default: a100-80, or with a plan the plan's own.

    Raises:
        UsageError: neither or both of `plan` and `strategy` are given, or they do not fit the devices and the batch.
        InputError: the plan belongs to another model, or the profile cannot price it.
    """
    from planner.requests.evaluation import evaluated

    if (plan is None) == (options.get("strategy") is None):
        raise OptionError(
            "evaluate() needs either strategy=… or plan=…, found " + ("neither" if plan is None else "both")
        )
    model = model_of(model)
    given = given_options("evaluate()", EvaluationRequest, options)
    if machine is not None or hardware is not None:
        settled = settled_machine(machine, devices, hardware)
        given["hardware"], devices = settled.hardware, settled.devices
    if options.get("batch") is None:
        given["batch"] = model.batch
    if options.get("bind") is None:
        given["bind"] = [f"{name}={size}" for name, size in model.bind.items()]
    path = None if plan is None else Path("plan.json" if isinstance(plan, Plan) else plan)
    request = EvaluationRequest(model=model.source.path, devices=devices, plan=path, **given)
    document = None if plan is None else plan_of(plan).document
    return Evaluation(evaluated(request, model.source, document))
