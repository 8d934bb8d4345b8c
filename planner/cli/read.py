"""`planner read FILE --format FORMAT --model MODEL --out PLAN`: another system's strategy as a plan of ours, priced."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from planner.cli.options import add_model_options
from planner.errors import InputError, UsageError
from planner.requests.occupied import FORCE, refuse_other_plan
from planner.requests.values import bindings, plan_file, positive, profile_of

if TYPE_CHECKING:
    from planner.ir import Graph
    from planner.planning import PlanDocument, Planned, Request

__all__ = ["configure", "run"]


def configure(parser: argparse.ArgumentParser) -> None:
    from planner.emit import FORMATS

    parser.add_argument("file", type=Path, metavar="FILE", help="strategy file, .ckpt or .json")
    parser.add_argument("--format", required=True, choices=tuple(FORMATS), help="what wrote it")
    parser.add_argument("--out", type=plan_file, required=True, metavar="PLAN", help="plan.json to write")
    parser.add_argument("--force", action="store_true", help=FORCE)
    parser.add_argument("--names", type=Path, metavar="FILE", help="JSON: names of the model's parameters in the file")
    parser.add_argument("--hardware", default="ascend-910b", metavar="NAME|FILE", help="profile; default: ascend-910b")
    parser.add_argument(
        "--micro-batches",
        type=positive,
        metavar="M",
        help="of a pipeline: parts of the batch; default: up to 4 a stage",
    )
    parser.add_argument(
        "--compare", action="store_true", help="also search without the file, and say what would be otherwise"
    )
    parser.add_argument("--json", action="store_true", help="one JSON document on standard output")
    add_model_options(parser, named=True)


def run(options: argparse.Namespace) -> int:
    from planner.emit import read
    from planner.emit.wording import some
    from planner.frontends import load_model
    from planner.planning import Request, describe, make_plan, write_plan
    from planner.planning.compare import differences
    from planner.planning.constraints import constraints_text
    from planner.planning.pipeline import in_parts, plan_in_parts
    from planner.planning.searched import FileDocument, RequestDocument
    from planner.pricing import Settings
    from planner.requests.recorded import profile_text

    bind = bindings(options.bind)

    def load(batch: int | None) -> Graph:
        return load_model(options.model, bind=bind, batch=batch)

    graph = load(options.batch)
    found = read(options.format, options.file, graph, options.names)
    mesh, unused = found.mesh, found.unused
    stages = max(found.stages.values(), default=0) + 1
    if stages == 1 and options.micro_batches is not None:
        raise UsageError(f"--micro-batches: {options.file} has no pipeline stages; leave it out")
    asked = options.micro_batches or found.micro_batches
    graph, parts = in_parts(load, options.batch, stages, asked, mesh.devices)
    settings = Settings(training=graph.loss is not None, target=found.target)
    request = Request(
        mesh.devices, profile_of(options.hardware), settings, meshes=(mesh,), constraints=found.constraints
    )

    asked_again = RequestDocument(
        devices=mesh.devices * stages,
        hardware=options.hardware,
        profile=profile_text(options.hardware),
        mesh=str(mesh),
        stages=stages,
        micro_batches=parts.micro_batches if stages > 1 else None,
        target=found.target,
        constraints=FileDocument(name="constraints.json", text=constraints_text(found.constraints)),
        bind=dict(sorted(bind.items())),
        batch=options.batch,
    )

    def planned_for(request: Request, held: Mapping[str, int] | None) -> tuple[Planned, PlanDocument]:
        pipeline = None
        if parts.stages > 1 or parts.micro_batches > 1:
            planned, pipeline = plan_in_parts(graph, request, parts, held=held)
        else:
            planned = make_plan(graph, request)
        as_read = None if request.constraints is None else asked_again
        return planned, describe(planned, bind=bind, batch=parts.batch, pipeline=pipeline, request=as_read)

    try:
        planned, plan = planned_for(request, found.stages or None)
    except InputError as e:
        raise InputError(f"{options.file}: {e}") from e
    if not options.force:
        refuse_other_plan(options.out, plan)
    write_plan(plan, options.out)
    document: dict[str, Any] = {
        "plan": str(options.out),
        "mesh": str(mesh),
        "devices": mesh.devices * stages,
        "stages": stages,
        "micro_batches": parts.micro_batches,
        "objective_s": planned.objective_s,
        "gap": planned.gap,
        "step_time_s": plan.cost.step_time_s,
        "peak_memory_bytes": plan.cost.peak_memory_bytes,
        "unused": list(unused),
    }
    if options.compare:
        _, own = planned_for(replace(request, meshes=None, constraints=None), None)
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
            f"{options.out}: {f'{stages} stages, ' if stages > 1 else ''}mesh {mesh}, "
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
