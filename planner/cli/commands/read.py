"""`planner read FILE --format FORMAT --model MODEL --out PLAN`: another system's strategy as a plan of ours, priced."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from planner.cli.options import add_json_option, add_model_options
from planner.requests.model import ModelSource
from planner.requests.occupied import FORCE, refuse_other_plan
from planner.requests.reading import HARDWARE, strategy_file
from planner.requests.values import bindings, plan_file, positive

__all__ = ["configure", "run"]


def configure(parser: argparse.ArgumentParser) -> None:
    from planner.emit import FORMATS

    parser.add_argument("file", type=Path, metavar="FILE", help="strategy file, .ckpt or .json")
    parser.add_argument("--format", required=True, choices=tuple(FORMATS), help="the system that wrote the file")
    parser.add_argument("--out", type=plan_file, required=True, metavar="PLAN", help="the file to write, plan.json")
    parser.add_argument("--force", action="store_true", help=FORCE)
    parser.add_argument(
        "--names", type=Path, metavar="FILE", help="JSON file with the names that the model's parameters have in FILE"
    )
    parser.add_argument("--hardware", default=HARDWARE, metavar="NAME|FILE", help="profile; default: %(default)s")
    parser.add_argument(
        "--micro-batches",
        type=positive,
        metavar="M",
        help="number of micro-batches of a pipeline; default: up to 4 a stage",
    )
    parser.add_argument(
        "--compare", action="store_true", help="also search without the file, and say how that plan differs"
    )
    add_json_option(parser)
    add_model_options(parser, named=True)


def run(options: argparse.Namespace) -> int:
    from planner.emit.wording import some
    from planner.planning import write_plan
    from planner.planning.compare import differences

    read = strategy_file(
        options.file,
        options.format,
        ModelSource(options.model),
        names=options.names,
        hardware=options.hardware,
        bind=bindings(options.bind),
        batch=options.batch,
        micro_batches=options.micro_batches,
    )
    unused = read.found.unused
    planned, plan = read.plan()
    if not options.force:
        refuse_other_plan(options.out, plan)
    write_plan(plan, options.out)
    document: dict[str, Any] = {
        "plan": str(options.out),
        "mesh": str(read.mesh),
        "devices": plan.cluster.devices,
        "stages": read.stages,
        "micro_batches": read.parts.micro_batches,
        "objective_s": planned.objective_s,
        "gap": planned.gap,
        "step_time_s": plan.cost.step_time_s,
        "peak_memory_bytes": plan.cost.peak_memory_bytes,
        "unused": list(unused),
    }
    if options.compare:
        own = read.free()
        other = differences(plan, own)
        document["ours"] = {
            "mesh": str(own.mesh),
            "objective_s": own.cost.objective_s,
            "step_time_s": own.cost.step_time_s,
            "peak_memory_bytes": own.cost.peak_memory_bytes,
            "operators_otherwise": list(other.operators),
            "parameters_otherwise": list(other.parameters),
        }
    if options.json:
        print(json.dumps(document, indent=1))
    else:
        print(
            f"{options.out}: {f'{read.stages} stages, ' if read.stages > 1 else ''}mesh {read.mesh}, "
            f"step {document['step_time_s']:.4g} s, "
            f"gap {planned.gap:.2%} under the file's layouts"
        )
        if options.compare:
            print(
                f"searched freely: mesh {own.mesh}, step {own.cost.step_time_s:.4g} s, "
                f"{own.cost.peak_memory_bytes / 2**30:.2f} GiB against {plan.cost.peak_memory_bytes / 2**30:.2f}; "
                f"otherwise {len(other.operators)} of {len(plan.operators)} operators ({some(other.operators)}), "
                f"{len(other.parameters)} of {len(plan.parameters)} parameters ({some(other.parameters)})"
            )
        if unused:
            print(f"not used, and searched instead: {len(unused)} ({some(unused)})")
    return 0
