"""`planner check INSTANCE CERTIFICATE`: whether what a solver claimed holds, without trusting the solver.

Exit status: 0 every claim holds · 1 a claim is refused · 3 a file is malformed.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from planner.cli.options import add_json_option
from planner.search.certificates.file import read_certificate
from planner.search.checks.check import check
from planner.search.saved.instance import read_instance

__all__ = ["configure", "run"]


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("instance", type=Path, metavar="INSTANCE", help="problem in a .json or .json.gz file")
    parser.add_argument(
        "certificate",
        type=Path,
        metavar="CERTIFICATE",
        help="certificate that `planner solve --certificate` has written",
    )
    add_json_option(parser)


def run(options: argparse.Namespace) -> int:
    problem = read_instance(options.instance)
    certificate = read_certificate(options.certificate)
    verdict = check(problem, certificate)
    document = {
        "accepted": verdict.accepted,
        "optimal": verdict.optimal,
        "infeasible": verdict.infeasible,
        "cost": verdict.cost,
        "lower_bound": verdict.bound,
        "peak_memory": verdict.peak_memory,
        "claimed_cost": certificate.cost,
        "claimed_lower_bound": certificate.bound,
        "defects": list(verdict.defects),
    }
    if options.json:
        print(json.dumps(document, indent=1))
    else:
        print("accepted: every claim holds" if verdict.accepted else "refused")
        for key, value in document.items():
            if key not in ("accepted", "defects") and value is not None:
                print(f"  {key.replace('_', ' ')}: {value}")
        for defect in verdict.defects:
            print(f"  defect: {defect}")
    return 0 if verdict.accepted else 1
