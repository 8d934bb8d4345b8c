"""`planner diff A B`: what B does otherwise than A, and what that costs or saves.  Exit status 1 on difference."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from planner.cli.options import add_json_option
from planner.errors import InputError
from planner.files import write_whole
from planner.requests.occupied import refuse_inputs_and_models
from planner.requests.values import plan_file, positive

__all__ = ["configure", "run"]


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("a", type=plan_file, metavar="A", help="the first plan: plan.json, or its folder")
    parser.add_argument("b", type=plan_file, metavar="B", help="the second plan: plan.json, or its folder")
    parser.add_argument(
        "--groups",
        type=positive,
        default=10,
        metavar="N",
        help="number of groups of changes that are shown; default: 10",
    )
    parser.add_argument("--out", type=Path, metavar="FILE", help="also write both plans side by side as one HTML page")
    add_json_option(parser)


def run(options: argparse.Namespace) -> int:
    from planner.planning import read_plan
    from planner.report.diff import diff, document, page_of, text

    found = diff(read_plan(options.a), read_plan(options.b))
    names = (str(options.a), str(options.b))
    if options.out is not None:
        refuse_inputs_and_models(options.out, options.a, options.b)
        try:
            write_whole(options.out, page_of(found, names).encode())
        except OSError as e:
            raise InputError(f"{options.out}: cannot be written ({e.strerror}); give another --out") from e
    if options.json:
        print(json.dumps(document(found), indent=1))
    else:
        print(text(found, names, options.groups))
    return 0 if found.identical else 1
