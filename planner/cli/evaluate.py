"""`planner evaluate MODEL --devices N --strategy …`: what a known configuration costs, without searching."""

from __future__ import annotations

import argparse
import json
from dataclasses import fields
from pathlib import Path
from typing import Any

from planner.cli.options import add_model_options
from planner.errors import InfeasibleError, UsageError
from planner.requests.evaluation import EvaluationRequest, evaluated
from planner.requests.occupied import FORCE, refuse_other_document
from planner.requests.options import add_options
from planner.requests.values import plan_file

__all__ = ["configure", "run"]

GIB = 2**30
_SAME = ("model", "hardware", "devices", "batch", "strategy")  # of evaluations of one request


def configure(parser: argparse.ArgumentParser) -> None:
    add_model_options(parser)
    add_options(parser, EvaluationRequest, ("devices",))
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument(
        "--strategy",
        metavar="SCHEME[:KEY=VALUE,…]",
        help="ddp, zero1, zero2, zero3, fsdp, hsdp:shard=8, megatron:tp=8,pp=4,zero=1,recompute=full,micro_batch=1,…",
    )
    what.add_argument("--plan", type=plan_file, metavar="PLAN", help="a plan.json, or its folder: priced as it stands")
    add_options(parser, EvaluationRequest, ("hardware", "precision", "optimizer", "memory_limit"))
    parser.add_argument("--out", type=Path, metavar="DIR", help="write evaluation.json there")
    parser.add_argument("--force", action="store_true", help=FORCE)
    parser.add_argument("--json", action="store_true", help="one JSON document on standard output")


def run(options: argparse.Namespace) -> int:
    request = EvaluationRequest(**{f.name: getattr(options, f.name) for f in fields(EvaluationRequest)})
    found = evaluated(request)
    text = json.dumps(found, indent=1)
    if options.out is not None:
        if not options.force:
            refuse_other_document(options.out / "evaluation.json", found, _SAME)
        try:
            options.out.mkdir(parents=True, exist_ok=True)
            (options.out / "evaluation.json").write_text(text + "\n", encoding="utf-8")
        except OSError as e:
            raise UsageError(f"--out {options.out}: cannot be written ({e.strerror}); name another folder") from e
    print(text if options.json else _text(found))
    return 0 if found["fits"] else InfeasibleError.exit_status


def _text(d: dict[str, Any]) -> str:
    from planner.requests.headline import extrapolation

    rate = f"   {d['samples_per_s']:.4g} samples/s" if d["samples_per_s"] else ""
    step = f"  step           {d['step_time_s']:.4g} s"
    if "step_time_interval_s" in d:
        low, high = d["step_time_interval_s"]
        step += f"  (80 % between {low:.4g} and {high:.4g} s)"
    lines = [
        f"{d['strategy']} on {d['devices']} x {d['hardware']}, batch {d['batch']}",
        f"  configuration  {d['configuration']}",
        step + rate,
    ]
    lines += extrapolation(d.get("extrapolated", ()), "  extrapolated   ")
    total = d["step_time_s"]
    if "objective_s" in d:  # of a plan: its parts one after the other, where the step lets them overlap
        lines += _parts(d["step_parts_s"], total)
        for number, stage in enumerate(d["stages"]):
            passes = f"{stage['forward_s']:.4g} s forward, {stage['backward_s']:.4g} s backward"
            lines.append(f"  stage {number:<8} {passes}, {stage['peak_memory_bytes'] / GIB:.2f} GiB")
        total = d["objective_s"]
        one = " of a micro-batch" if d["micro_batches"] > 1 else ""
        lines.append(f"  objective      {total:.4g} s{one}, nothing overlapping")
    lines += _parts(d["breakdown_s"], total)
    limit = d["memory_limit_bytes"]
    told = "" if limit is None else f" of {limit / GIB:.1f} GiB" + ("" if d["fits"] else ": DOES NOT FIT")
    lines.append(f"  memory         {d['peak_memory_bytes'] / GIB:.2f} GiB{told}")
    lines += [f"    {name:20} {size / GIB:10.2f} GiB" for name, size in d["memory_bytes"].items() if size > 0]
    for kind, traffic in d.get("collectives", {}).items():
        lines.append(f"  {kind:14} {traffic['count']} x, {traffic['bytes'] / GIB:.3f} GiB")
    if "planned" in d:
        p = d["planned"]
        lines.append(
            f"  as planned     {p['step_time_s']:.4g} s, {p['peak_memory_bytes'] / GIB:.2f} GiB on {p['hardware']}"
        )
    return "\n".join(lines)


def _parts(seconds: dict[str, float], total: float) -> list[str]:
    return [f"    {name:20} {s:10.4g} s  {s / total:6.1%}" for name, s in seconds.items() if s > 0]
