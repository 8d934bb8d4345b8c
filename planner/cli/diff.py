"""`planner diff A B`: what B does otherwise than A, and what that costs or saves.  Exit status 1 on difference."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from planner.cli.options import positive

__all__ = ["configure", "run"]


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("a", type=Path, metavar="A", help="plan.json")
    parser.add_argument("b", type=Path, metavar="B", help="plan.json")
    parser.add_argument("--groups", type=positive, default=10, metavar="N", help="groups of changes shown; default: 10")
    parser.add_argument("--json", action="store_true", help="one JSON document on standard output")


def run(options: argparse.Namespace) -> int:
    from planner.planning import read_plan
    from planner.report.diff import diff, document, text

    found = diff(read_plan(options.a), read_plan(options.b))
    if options.json:
        print(json.dumps(document(found), indent=1))
    else:
        print(text(found, (str(options.a), str(options.b)), options.groups))
    return 0 if found.identical else 1
