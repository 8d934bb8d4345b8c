"""`planner emit PLAN --target TARGET --out DIR`: a plan as the files that a runtime loads."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from planner.cli.options import add_json_option
from planner.requests.occupied import refuse_inputs
from planner.requests.values import plan_file

__all__ = ["configure", "run"]


def configure(parser: argparse.ArgumentParser) -> None:
    from planner.emit import TARGETS

    parser.add_argument(
        "plan", type=plan_file, metavar="PLAN", help="the plan: plan.json of `planner search`, or its folder"
    )
    parser.add_argument("--target", required=True, choices=tuple(TARGETS), help="the runtime that loads the files")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="directory to write them to")
    parser.add_argument(
        "--names", type=Path, metavar="FILE", help="JSON file with the names of the network's parameters"
    )
    parser.add_argument(
        "--model",
        type=Path,
        metavar="MODEL",
        help="the model that was planned; ONNX targets need it, torch takes the one beside the plan",
    )
    parser.add_argument(
        "--hosts",
        type=Path,
        metavar="FILE",
        help="file of the servers, in lines of SERVER DEVICE_IP… or SERVER slots=N",
    )
    add_json_option(parser)


def run(options: argparse.Namespace) -> int:
    from planner.emit import TARGETS, Given, emit
    from planner.planning import read_plan
    from planner.requests.emission import other_files, write_emission
    from planner.requests.plan_model import model_of_plan

    plan, model = read_plan(options.plan), options.model
    if TARGETS[options.target].weightless:
        model = model_of_plan(options.plan, model, "--model")
    given = Given(plan, options.names, options.hosts, model)
    emission = emit(options.target, given)
    for name in emission.files:
        refuse_inputs(options.out / name, options.plan, model)
    written = write_emission(emission, options.out)
    others = other_files(options.out, written)
    if options.json:
        document = {
            "target": options.target,
            "files": [str(p) for p in written],
            "lost": list(emission.lost),
            "others": others,
        }
        print(json.dumps(document, indent=1))
    else:
        print("\n".join(str(p) for p in written))
        if emission.lost:
            print(f"not in these files ({options.target} cannot express it):")
            print("\n".join(f"  {line}" for line in emission.lost))
        if others:
            more = f" and {len(others) - 6} more" if len(others) > 6 else ""
            print(f"note: {options.out} holds files that are not of this plan: {', '.join(others[:6])}{more}")
    return 0
