"""`planner solve INSTANCE`: the best choice for a saved problem, with its proven bound, in the time given.

The search runs in a worker process (`planner.cli.solve_worker`).  This process only watches it: whatever happens to the
worker (a library that ignores its limit, a crash, no memory left), the best choice it had reported is printed in time.

Exit status: 0 a choice was found · 2 usage · 3 the instance is malformed, or every choice is forbidden ·
4 proven not to fit in memory · 5 nothing known at the limit.
"""

from __future__ import annotations

import argparse
import json
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any, TextIO

from planner.cli.options import add_json_option
from planner.cli.solve_watch import SolveState, started, watch
from planner.errors import InputError, UsageError
from planner.requests.values import seconds
from planner.search.saved.whole import WHOLE
from planner.search.solvers import SOLVERS, solver_help

__all__ = ["configure", "run"]

DEFAULT_LIMIT = 60.0
EXIT = {"optimal": 0, "feasible": 0, "unknown": 5}
RESULT_TEXT = {
    "optimal": "the choice is proven optimal",
    "feasible": "the best choice found in time",
    "infeasible": "no choice is valid: proven",
    "unknown": "no choice was found within the limit",
}


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("instance", type=Path, metavar="INSTANCE", help="problem in a .json or .json.gz file")
    parser.add_argument(
        "--time-limit", type=seconds, metavar="S", help=f"seconds that solving may take; default: {DEFAULT_LIMIT:g}"
    )
    parser.add_argument(
        "--solver", choices=(*SOLVERS, *WHOLE), default="auto", help=f"how to solve; {solver_help(SOLVERS, WHOLE)}"
    )
    parser.add_argument(
        "--seed", type=int, default=0, metavar="N", help="seed of the random choices that a search makes"
    )
    parser.add_argument(
        "--reproducible",
        action="store_true",
        help="limit the work and not the seconds, so that the answer is always the same",
    )
    parser.add_argument("--solution", type=Path, metavar="FILE", help="start from this choice (output of --json)")
    parser.add_argument("--evaluate", action="store_true", help="only price the choice in --solution, search nothing")
    parser.add_argument("--certificate", type=Path, metavar="OUT", help="write a proof for `planner check`")
    parser.add_argument(
        "--events", metavar="FILE|-", help="write progress as JSON lines; -: to standard error, instead of text"
    )
    parser.add_argument("--quiet", action="store_true", help="print no progress on standard error")
    add_json_option(parser)


def run(options: argparse.Namespace) -> int:
    request = _request(options)
    with ExitStack() as open_files:
        outcome = watch(request, _Progress(options, open_files).show)
    if outcome.error is not None:
        raise InputError(outcome.error)
    for warning in outcome.warnings:
        print(f"warning: {warning}", file=sys.stderr)
    document = _document(outcome)
    if options.json:
        print(json.dumps(document))
    else:
        _print(document)
    return _exit_status(document, outcome)


def _request(options: argparse.Namespace) -> dict[str, Any]:
    limit = options.time_limit
    if options.reproducible and limit is not None:
        raise UsageError("--reproducible forbids --time-limit: a limit in seconds gives other answers on other days")
    if not 0 <= options.seed < 2**31:
        raise UsageError(f"--seed {options.seed}: expected an integer from 0 to {2**31 - 1}")
    if options.evaluate and options.solution is None:
        raise UsageError("--evaluate prices a choice: give it with --solution FILE")
    if options.certificate is not None and not options.certificate.absolute().parent.is_dir():
        raise UsageError(f"--certificate {options.certificate}: there is no such directory")
    return {
        "instance": str(options.instance),
        "time_limit": None if options.reproducible else (limit or DEFAULT_LIMIT),
        "started": started(),
        "solver": options.solver,
        "seed": options.seed,
        "solution": None if options.solution is None else str(options.solution),
        "evaluate": options.evaluate,
        "certificate": None if options.certificate is None else str(options.certificate),
    }


class _Progress:
    """Shows reports: text on standard error, JSON lines where `--events` says."""

    def __init__(self, options: argparse.Namespace, open_files: ExitStack) -> None:
        self.text = not options.quiet and options.events != "-"
        self.events: TextIO | None = None
        if options.events == "-":
            self.events = sys.stderr
        elif options.events is not None:
            try:
                file = Path(options.events).open("w", encoding="utf-8")  # noqa: SIM115 (the stack closes it)
                self.events = open_files.enter_context(file)
            except OSError as e:
                raise UsageError(f"--events {options.events}: cannot be written: {e.strerror}") from e
        self.shown = 0.0

    def show(self, event: dict[str, Any]) -> None:
        if self.events is not None:
            print(json.dumps(event), file=self.events, flush=True)
        if not self.text:
            return
        if event["kind"] == "say":
            print(f"{event['seconds']:8.2f} s  {event['line']}", file=sys.stderr, flush=True)
        elif event["kind"] == "report" and (event["gap"] == 0 or event["seconds"] > self.shown + 0.1):
            self.shown = event["seconds"]
            print(f"{event['seconds']:8.2f} s  {_figures(event)}  [{event['solver']}]", file=sys.stderr, flush=True)


def _figures(event: dict[str, Any]) -> str:
    gap = "" if event["gap"] is None else f"  gap {100 * event['gap']:.3f} %"
    cost = "-" if event["incumbent"] is None else event["incumbent"]
    return f"cost {cost}  bound {'-' if event['bound'] is None else event['bound']}{gap}"


def _document(outcome: SolveState) -> dict[str, Any]:
    gap = None
    if outcome.cost is not None:
        gap = (outcome.cost - outcome.bound) / outcome.cost if outcome.cost else 0.0
    return {
        "solution": None if outcome.choice is None else list(outcome.choice),
        "cost": outcome.cost,
        "lower_bound": outcome.bound,
        "status": outcome.status,
        "gap": gap,
        "solver": outcome.solver,
        "seconds": round(outcome.seconds, 3),
        **outcome.facts,
    }


def _print(document: dict[str, Any]) -> None:
    print(f"{document['status']}: {RESULT_TEXT[document['status']]}")
    for key, value in document.items():
        if key not in ("status", "solution") and value is not None:
            print(f"  {key.replace('_', ' ')}: {value}")
    if document["solution"] is not None:
        print(f"  solution: {document['solution']}")


def _exit_status(document: dict[str, Any], outcome: SolveState) -> int:
    if document["status"] != "infeasible":
        return EXIT[document["status"]]
    least = document.get("memory_lower_bound")
    if least is None:
        print("planner solve: every choice uses a forbidden entry", file=sys.stderr)
        return 3
    limit = document.get("usage_limit")
    print(f"planner solve: every choice needs at least {least} bytes; the limit is {limit}", file=sys.stderr)
    return 4
