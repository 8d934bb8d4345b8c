"""`planner search MODEL --devices N`: the main job."""

from __future__ import annotations

import argparse
import json
import os
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from planner.cli.options import (
    add_model_options,
    add_pin_options,
    bindings,
    byte_size,
    constraints_of,
    positive,
    profile_of,
    progress_to,
)
from planner.errors import UsageError

if TYPE_CHECKING:
    from planner.ir import Graph
    from planner.planning import Planned
    from planner.planning.constraints import Constraints

__all__ = ["configure", "run"]

MOST_DEVICES = 16384  # ranks are listed in the plan, group by group


def configure(parser: argparse.ArgumentParser) -> None:
    add_model_options(parser)
    parser.add_argument("--devices", required=True, metavar="N[,N...]", help="number of devices, or several")
    parser.add_argument("--hardware", default="a100-80", metavar="NAME|FILE", help="profile (see `planner hardware`)")
    parser.add_argument("--nodes", type=positive, metavar="K", help="servers; default: as many as full servers need")
    parser.add_argument("--mesh", metavar="AxB", help="only this logical mesh; default: all of one and two axes")
    parser.add_argument("--mode", choices=("training", "inference"), help="default: training where there is a loss")
    parser.add_argument(
        "--memory-limit", type=byte_size, metavar="SIZE", help="per device; default: what the profile leaves"
    )
    parser.add_argument("--optimizer", choices=("adam", "momentum", "sgd"), default="adam")
    parser.add_argument("--precision", choices=("bf16", "fp16", "fp32"), default="bf16")
    parser.add_argument(
        "--recompute",
        choices=("auto", "none", "blocks"),
        default="auto",
        help="run equal layers again in the backward pass; auto: on meshes where nothing fits without",
    )
    add_pin_options(parser)
    parser.add_argument("--solver", choices=("auto", "dp", "ilp"), default="auto")
    parser.add_argument("--time-limit", type=float, metavar="S", help="seconds for the whole search")
    parser.add_argument("--target", choices=("any", "torch", "mindspore"), default="any", help="plans it can express")
    parser.add_argument("--reproducible", action="store_true", help="no limits in seconds: the same bytes every time")
    parser.add_argument("--out", type=Path, metavar="DIR", help="directory for plan.json; default: MODEL.plan")
    parser.add_argument("--json", action="store_true", help="one JSON document on standard output")


def run(options: argparse.Namespace) -> int:
    # The search multiplies many small matrices: a second BLAS thread would spin more than it computes.  Read when
    # numpy is first imported, which is below.
    for variable in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ.setdefault(variable, "1")
    counts = _counts(options.devices)
    if options.mesh and len(counts) > 1:
        raise UsageError("--mesh fits one number of devices; give one --devices with it")
    if options.time_limit is not None and not 0 < options.time_limit < 10**7:
        raise UsageError(f"--time-limit {options.time_limit:g}: expected a positive number of seconds")
    if options.reproducible and options.time_limit is not None:
        raise UsageError("--reproducible forbids --time-limit: a limit in seconds gives other plans on other days")
    profile = profile_of(options.hardware)
    constraints = constraints_of(options)
    from planner.frontends import load_model

    graph = load_model(options.model, bind=bindings(options.bind), batch=options.batch)
    documents = [_search(options, graph, profile, n, len(counts) > 1, constraints) for n in counts]
    if options.json:
        print(json.dumps(documents[0] if len(documents) == 1 else documents, indent=1))
    return 0


def _counts(text: str) -> list[int]:
    try:
        counts = [positive(part) for part in text.split(",")]
    except argparse.ArgumentTypeError as e:
        raise UsageError(f"--devices {text}: {e}") from e
    if max(counts) > MOST_DEVICES:
        raise UsageError(f"--devices {max(counts)}: expected at most {MOST_DEVICES}; plan one replica of the job")
    return counts


def _search(
    options: argparse.Namespace,
    graph: Graph,
    profile: Any,
    devices: int,
    several: bool,
    constraints: Constraints | None,
) -> dict[str, Any]:
    from planner.planning import Request, describe, make_plan, write_plan
    from planner.planning.meshes import parse_mesh
    from planner.planning.planner import on_nodes
    from planner.pricing import Settings
    from planner.report.text import summary

    training = graph.loss is not None if options.mode is None else options.mode == "training"
    if training and graph.loss is None:
        print("note: the graph ends before its loss; gradients are taken to enter at its outputs", file=sys.stderr)
    request = Request(
        devices=devices,
        profile=on_nodes(profile, devices, options.nodes),
        settings=Settings(training, options.precision, options.optimizer, options.target),
        meshes=(parse_mesh(options.mesh, devices),) if options.mesh else None,
        memory_limit=options.memory_limit,
        solver=options.solver,
        time_limit=options.time_limit,
        recompute=options.recompute,
        constraints=constraints,
    )
    planned = make_plan(graph, request, progress_to(quiet=False))
    for warning in planned.warnings:
        print(f"warning: {warning}", file=sys.stderr)
    folder = options.out or Path(f"{options.model.stem}.plan")
    path = folder / (f"plan-{devices}.json" if several else "plan.json")
    write_plan(describe(planned, bind=bindings(options.bind), batch=options.batch), path)
    if not options.json:
        print(summary(planned))
        print(f"plan written to {path}")
    return _document(planned, path, graph)


def _document(planned: Planned, path: Path, graph: Graph) -> dict[str, Any]:
    settings = planned.request.settings
    traffic = planned.program.traffic({t.name: settings.tensor_bytes(t) for t in graph.tensors.values()})
    fed = [graph.tensors[t].shape for t in graph.inputs]
    return {
        "plan": str(path),
        "devices": planned.mesh.devices,
        "mesh": str(planned.mesh),
        "batch": next((s[0] for s in fed if s), None),
        "objective_s": planned.objective_s,
        "objective_lower_bound_s": planned.bound_s,
        "gap": planned.gap,
        "step_time_s": planned.step_time_s,
        "status": "optimal" if planned.gap == 0 else "feasible",
        "peak_memory_bytes": planned.peak_memory_bytes,
        "memory_limit_bytes": planned.memory_limit,
        "search_seconds": planned.search_seconds,
        "operators": len(graph.ops),
        "operators_replicated_for_want_of_a_rule": list(planned.without_rule),
        "collectives": {kind: asdict(t) for kind, t in traffic.items()},
        "parts_s": planned.parts.seconds(planned.priced.machine.unit_s),
        "candidates": [
            {
                "mesh": str(c.mesh),
                "recompute": c.recompute,
                "status": c.status,
                "objective_s": c.objective_s,
                "bound_s": c.bound_s,
            }
            for c in planned.candidates
        ],
        "warnings": list(planned.warnings),
        "solver": planned.solution.solver,
    }
