"""`planner run PLAN MODEL`: a plan executed by PyTorch, one process per device; also under torchrun."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, Final

from planner.cli.options import add_json_option
from planner.errors import UsageError
from planner.requests.values import not_negative, plan_file, positive

if TYPE_CHECKING:
    from planner.planning import PlanDocument
    from planner.runtime.launch import RunResult

__all__ = ["configure", "run"]

# Element type of each precision that is planned for, and bytes of those that models are in.
_TYPES: Final = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}
_BYTES: Final = {"bfloat16": 2, "float16": 2, "float32": 4, "float64": 8}


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("plan", type=plan_file, metavar="PLAN", help="plan.json of `planner search`, or its folder")
    parser.add_argument("model", type=Path, metavar="MODEL", help="the model that was planned")
    parser.add_argument(
        "--device", choices=("cpu", "cuda"), default="cpu", help="cpu: gloo on the host; cuda: NCCL on GPUs"
    )
    parser.add_argument(
        "--threads", type=positive, default=1, metavar="N", help="CPU threads of each process; default: 1"
    )
    parser.add_argument(
        "--steps", type=positive, default=3, metavar="N", help="number of steps that are timed; default: 3"
    )
    parser.add_argument("--seed", type=not_negative, default=0, help="seed of the random parameters and inputs")
    parser.add_argument(
        "--precision", choices=("model", "plan"), default="model",
        help="compute in the model's own types, or in the plan's precision; default: model",
    )  # fmt: skip
    parser.add_argument("--check", action="store_true", help="compare the results with the whole model on one process")
    add_json_option(parser)


def run(options: argparse.Namespace) -> int:
    from planner.planning import read_plan
    from planner.runtime.extra import require_torch

    plan = read_plan(options.plan)
    as_planned = options.precision == "plan"
    if as_planned and options.check and plan.schedule.precision != "fp32":
        raise UsageError(
            f"--check --precision plan: results in {plan.schedule.precision} differ from the whole model's by rounding;"
            " leave one of the two out"
        )
    require_torch("planner run")
    from planner.runtime.launch import run_plan

    outcome = run_plan(
        options.model,
        plan,
        device=options.device,
        threads=options.threads,
        steps=options.steps,
        seed=options.seed,
        check=options.check,
        as_planned=as_planned,
        say=lambda text: print(text, file=sys.stderr),
    )
    if outcome is None:  # another rank reports
        return 0
    document = _document(outcome, plan, as_planned=as_planned)
    print(json.dumps(document, indent=1) if options.json else _text(document))
    return 0 if outcome.passed else 1


def _document(o: RunResult, plan: PlanDocument, *, as_planned: bool) -> dict[str, Any]:
    def table(traffic: Any) -> dict[str, Any]:
        return {kind: {"count": n, "bytes": size} for kind, (n, size) in traffic.items()}

    return {
        "devices": plan.devices,
        "precision": {
            "planned": plan.schedule.precision,
            "executed": _TYPES[plan.schedule.precision] if as_planned else _executed(plan),
        },
        "step_seconds": list(o.seconds),
        "loss": o.loss,
        "collectives": table(o.traffic.executed),
        "planned": table(o.traffic.planned),
        "inside_operators": table(o.traffic.inside),
        "fallbacks": sorted(o.fallbacks),
        "errors": o.errors,
        "ok": o.passed,
    }


def _executed(plan: PlanDocument) -> str:
    """The element type that a run computes in: that of the model, whatever precision was planned for.  The plan says
    types of inputs and of tensors that move; of several the widest."""
    found = {t.dtype for t in plan.tensors.values()} | {x.dtype for x in plan.inputs.values()}
    return max(found & _BYTES.keys(), key=lambda t: (_BYTES[t], t), default="float32")


def _text(d: dict[str, Any]) -> str:
    steps = d["step_seconds"]
    lines = [f"{len(steps)} steps on {d['devices']} processes, median {median(steps):.4g} s"]
    planned, executed = _TYPES[d["precision"]["planned"]], d["precision"]["executed"]
    as_planned = "as planned"
    if planned != executed:
        times = _BYTES[executed] / _BYTES[planned]
        size = {2.0: "twice the plan's", 0.5: "half the plan's", 1.0: "the plan's"}.get(
            times, f"{times:g} times the plan's"
        )
        as_planned = f"as many as planned, in {executed}"
        lines.append(
            f"  computed in {executed}, as the model is, and planned for {d['precision']['planned']}: bytes of floats "
            f"are {size}, and times are those of {executed}"
        )
    if d["loss"] is not None:
        lines.append(f"  loss {d['loss']:.6g}")
    lines += [
        f"  {k:16} {v['count']:5} x  {v['bytes'] / 1e6:12.3f} MB, {as_planned}" for k, v in d["collectives"].items()
    ]
    lines += [f"  {k:16} {v['count']:5} x  {v['bytes'] / 1e6:12.3f} MB, inside operators"
              for k, v in d["inside_operators"].items()]  # fmt: skip
    if d["fallbacks"]:
        lines.append(f"  by numpy, for want of a torch function: {', '.join(d['fallbacks'])}")
    if d["errors"] is not None:
        errors = ", ".join(f"{k} {v:.2g}" for k, v in d["errors"].items())
        lines.append(
            f"  {'equal to' if d['ok'] else 'DIFFERENT from'} the whole model: largest relative error of {errors}"
        )
    return "\n".join(lines)
