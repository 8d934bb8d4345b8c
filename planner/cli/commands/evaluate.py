"""`planner evaluate MODEL --devices N --strategy …`: what a known configuration costs, without searching."""

from __future__ import annotations

import argparse
import json
from dataclasses import fields
from pathlib import Path

from planner.cli.options import add_json_option, add_model_options
from planner.errors import InfeasibleError, UsageError
from planner.requests.evaluation import EvaluationRequest, evaluated
from planner.requests.evaluation_text import evaluation_text
from planner.requests.occupied import FORCE, refuse_other_document
from planner.requests.options import add_options
from planner.requests.plan_model import model_of_plan
from planner.requests.values import plan_file

__all__ = ["configure", "run"]

_SAME = ("model", "hardware", "devices", "batch", "strategy")  # of evaluations of one request


def configure(parser: argparse.ArgumentParser) -> None:
    add_model_options(parser, optional=True)
    add_options(parser, EvaluationRequest, ("devices",))
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument(
        "--strategy",
        metavar="SCHEME[:KEY=VALUE,…]",
        help="configuration to price: ddp, zero1, zero2, zero3, fsdp, hsdp:shard=8, "
        "megatron:tp=8,pp=4,zero=1,recompute=full,micro_batch=1,…",
    )
    what.add_argument(
        "--plan",
        type=plan_file,
        metavar="PLAN",
        help="the plan.json, or its folder, to price as it is; without MODEL on the model beside it",
    )
    add_options(parser, EvaluationRequest, ("hardware", "precision", "optimizer", "memory_limit"))
    parser.add_argument("--out", type=Path, metavar="DIR", help="write evaluation.json there")
    parser.add_argument("--force", action="store_true", help=FORCE)
    add_json_option(parser)


def run(options: argparse.Namespace) -> int:
    if options.model is None:
        if options.plan is None:
            raise UsageError("missing MODEL: --strategy needs the model; --plan has it beside the plan")
        options.model = model_of_plan(options.plan, None, "MODEL")
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
    print(text if options.json else evaluation_text(found))
    return 0 if found["fits"] else InfeasibleError.exit_status
