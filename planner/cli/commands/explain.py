"""`planner explain PLAN [OP]`: why the plan is as it is, by the very search that found it."""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path

from planner.cli.options import add_json_option
from planner.requests.values import plan_file, positive

__all__ = ["configure", "run"]


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "plan", type=plan_file, metavar="PLAN", help="the plan: plan.json of `planner search`, or its folder"
    )
    parser.add_argument(
        "operator",
        nargs="?",
        metavar="OP|MODULE",
        help="the operator, or the module with all of its operators, to explain; default: the plan as a whole",
    )
    parser.add_argument(
        "--model", type=Path, metavar="MODEL", help="the model that was planned; default: model.onnx beside the plan"
    )
    parser.add_argument(
        "--alternatives",
        type=positive,
        default=3,
        metavar="K",
        help="number of the best alternatives that are shown; default: 3",
    )
    parser.add_argument(
        "--hardware", metavar="NAME|FILE", help="the hardware profile; default: the one that was planned for"
    )
    add_json_option(parser)


def run(options: argparse.Namespace) -> int:
    for variable in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ.setdefault(variable, "1")  # as `planner search` does
    from planner.explain import explanation_text
    from planner.requests.explanation import explanation

    document = explanation(
        options.plan,
        options.operator,
        model=options.model,
        most=options.alternatives,
        hardware=options.hardware,
        quiet=False,
    )
    # In ASCII: what a terminal would obey is escaped on its way out, and not as JSON has it.
    text = json.dumps(document.model_dump(mode="json", by_alias=True), indent=1)
    print(text if options.json else explanation_text(document))
    return 0
