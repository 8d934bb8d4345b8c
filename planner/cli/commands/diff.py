"""`planner diff BASE PLAN...`: what plans do otherwise than a baseline, and what that costs or saves.  Exit status 1 on
difference."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from planner.cli.options import add_json_option
from planner.errors import InputError, UsageError
from planner.files import write_whole
from planner.requests.occupied import refuse_inputs_and_models
from planner.requests.values import plan_file, positive

__all__ = ["configure", "run"]

_GROUPS = 10  # of changes, in the details


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("a", type=plan_file, metavar="BASE", help="the plan to compare with: plan.json, or its folder")
    parser.add_argument(
        "b",
        type=plan_file,
        nargs="+",
        metavar="PLAN",
        help="a plan to compare: plan.json, or its folder; several are one table",
    )
    parser.add_argument("--details", action="store_true", help="also print all figures and the groups of equal changes")
    parser.add_argument(
        "--groups", type=positive, metavar="N", help=f"number of groups of changes in the details; default: {_GROUPS}"
    )
    parser.add_argument("--markdown", action="store_true", help="print Markdown, for the comment of a pull request")
    parser.add_argument(
        "--out", type=Path, metavar="FILE", help="also write one HTML page: two plans side by side, several as a table"
    )
    add_json_option(parser)


def run(options: argparse.Namespace) -> int:
    from planner.requests.comparison import Comparison, column_of_file

    if len(options.b) > 1 and (options.details or options.groups):
        raise UsageError("--details and --groups are of two plans; compare them pair by pair")
    if options.markdown and options.json:
        raise UsageError("--markdown contradicts --json; leave one out")
    found = Comparison([column_of_file(path) for path in (options.a, *options.b)])
    if options.out is not None:
        refuse_inputs_and_models(options.out, options.a, *options.b)
        try:
            write_whole(options.out, found.html.encode())
        except OSError as e:
            raise InputError(f"{options.out}: cannot be written ({e.strerror}); give another --out") from e
    if options.json:
        print(json.dumps(found.document(), indent=1))
    elif options.markdown:
        print(found.markdown)
    else:
        print(found.text(options.groups or (_GROUPS if options.details else None)))
    return 0 if found.identical else 1
