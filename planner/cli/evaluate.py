"""`planner evaluate MODEL --devices N --strategy …`: what a known configuration costs, without searching."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from planner.cli.options import add_model_options, bindings, byte_size, plan_file, positive, profile_of
from planner.errors import InfeasibleError, UsageError

if TYPE_CHECKING:
    from cost_models import HardwareProfile
    from planner.evaluate import Configuration, Prediction
    from planner.ir import Graph
    from planner.lowering import Program

__all__ = ["configure", "evaluated", "run"]

GIB = 2**30


def configure(parser: argparse.ArgumentParser) -> None:
    add_model_options(parser)
    parser.add_argument("--devices", type=positive, metavar="N", help="devices to train on; of a plan, its own")
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument(
        "--strategy",
        metavar="SCHEME[:KEY=VALUE,…]",
        help="ddp, zero1, zero2, zero3, fsdp, hsdp:shard=8, megatron:tp=8,pp=4,zero=1,recompute=full,micro_batch=1,…",
    )
    what.add_argument("--plan", type=plan_file, metavar="PLAN", help="a plan.json, or its folder: priced as it stands")
    parser.add_argument(
        "--hardware", metavar="NAME|FILE", help="profile (see `planner hardware`); default: a100-80; of a plan, its own"
    )
    parser.add_argument("--precision", choices=("bf16", "fp16", "fp32"), help="default: bf16; of a plan, its own")
    parser.add_argument("--optimizer", choices=("adam", "sgd", "momentum"), help="default: adam; of a plan, its own")
    parser.add_argument("--memory-limit", type=byte_size, metavar="SIZE", help="default: the device's less its reserve")
    parser.add_argument("--out", type=Path, metavar="DIR", help="write evaluation.json there")
    parser.add_argument("--json", action="store_true", help="one JSON document on standard output")


def run(options: argparse.Namespace) -> int:
    found = evaluated(options)
    text = json.dumps(found, indent=1)
    if options.out is not None:
        try:
            options.out.mkdir(parents=True, exist_ok=True)
            (options.out / "evaluation.json").write_text(text + "\n", encoding="utf-8")
        except OSError as e:
            raise UsageError(f"--out {options.out}: cannot be written ({e.strerror}); name another folder") from e
    print(text if options.json else _text(found))
    return 0 if found["fits"] else InfeasibleError.exit_status


def evaluated(options: argparse.Namespace) -> dict[str, Any]:
    """The document of `--json`."""
    return _plan(options) if options.plan is not None else _strategy(options)


def _strategy(options: argparse.Namespace) -> dict[str, Any]:
    from planner.evaluate import predict, program_of_configuration, traced_as
    from planner.frontends import load_model
    from planner.planning.schemes import parse_strategy

    if options.devices is None:
        raise UsageError("--strategy needs --devices N")
    profile = profile_of(options.hardware or "a100-80")
    bound = bindings(options.bind)
    graph = load_model(options.model, bind=bound, batch=options.batch)
    batch = options.batch or _samples(graph)
    c = parse_strategy(
        options.strategy,
        devices=options.devices,
        batch=batch,
        precision=options.precision or "bf16",
        optimizer=options.optimizer or "adam",
    )
    if _samples(graph) != c.micro_batch * c.dp:
        graph = load_model(options.model, bind=bound, batch=c.micro_batch * c.dp)
    program = program_of_configuration(graph, c, profile, f"--strategy {options.strategy}")
    return _document(options, c, predict(traced_as(c, program), c, profile), profile, program)


def _samples(graph: Graph) -> int:
    """Size of the first dimension of the first input: the batch."""
    shape = next((graph.tensors[t].shape for t in graph.inputs if graph.tensors[t].shape), None)
    if not shape:
        raise UsageError("the model has no input with a batch dimension; give one that has")
    return int(shape[0])


def _document(
    options: argparse.Namespace, c: Configuration, p: Prediction, profile: HardwareProfile, program: Program
) -> dict[str, Any]:
    from cost_models import usable_memory_bytes
    from planner.clock import extrapolated
    from planner.planning.schemes import spelled
    from planner.pricing import Settings

    limit = options.memory_limit or usable_memory_bytes(profile)
    return {
        "schema": "planner.evaluation/1",
        "model": str(options.model),
        "hardware": profile.name,
        "devices": c.devices,
        "batch": c.global_batch,
        "strategy": options.strategy,
        "configuration": spelled(c),
        "step_time_s": p.step_time_s,
        "step_time_interval_s": [p.time_low_s, p.time_high_s],
        "extrapolated": list(extrapolated(c)),
        "samples_per_s": c.global_batch / p.step_time_s,
        "breakdown_s": dict(p.breakdown),
        "peak_memory_bytes": round(p.allocated_bytes),
        "reserved_memory_bytes": round(p.reserved_bytes),
        "memory_bytes": dict(p.memory),
        "memory_limit_bytes": limit,
        "fits": limit is None or round(p.allocated_bytes) <= limit,
        "collectives": {
            kind: asdict(t) for kind, t in program.traffic(Settings(True, c.precision, c.optimizer)).items()
        },
    }


def _plan(options: argparse.Namespace) -> dict[str, Any]:
    from planner.evaluate.plan import evaluate_plan
    from planner.frontends import load_model

    for name in ("precision", "optimizer"):
        if getattr(options, name) is not None:
            raise UsageError(f"--{name} goes with --strategy; a plan says its own")

    def load(batch: int | None, bind: Mapping[str, int]) -> Graph:
        return load_model(options.model, bind=bindings(options.bind) or bind, batch=options.batch or batch)

    profile = None if options.hardware is None else profile_of(options.hardware)
    found = evaluate_plan(options.plan, load, profile, options.devices, options.memory_limit)
    return {"schema": "planner.evaluation/1", "model": str(options.model), "strategy": str(options.plan), **found}


def _text(d: dict[str, Any]) -> str:
    from planner.cli.headline import extrapolation

    rate = f"   {d['samples_per_s']:.4g} samples/s" if d["samples_per_s"] else ""
    step = f"  step           {d['step_time_s']:.4g} s"
    if "step_time_interval_s" in d:
        low, high = d["step_time_interval_s"]
        step += f"  (80 % between {low:.4g} and {high:.4g} s)"
    lines = [
        f"{d['strategy']} on {d['devices']} x {d['hardware']}, batch {d['batch']}",
        f"  configuration  {d['configuration']}",
        step + rate,
    ]
    lines += extrapolation(d.get("extrapolated", ()), "  extrapolated   ")
    total = d["step_time_s"]
    if "objective_s" in d:  # of a plan: its parts one after the other, where the step lets them overlap
        lines += _parts(d["step_parts_s"], total)
        for number, stage in enumerate(d["stages"]):
            passes = f"{stage['forward_s']:.4g} s forward, {stage['backward_s']:.4g} s backward"
            lines.append(f"  stage {number:<8} {passes}, {stage['peak_memory_bytes'] / GIB:.2f} GiB")
        total = d["objective_s"]
        one = " of a micro-batch" if d["micro_batches"] > 1 else ""
        lines.append(f"  objective      {total:.4g} s{one}, nothing overlapping")
    lines += _parts(d["breakdown_s"], total)
    limit = d["memory_limit_bytes"]
    told = "" if limit is None else f" of {limit / GIB:.1f} GiB" + ("" if d["fits"] else ": DOES NOT FIT")
    lines.append(f"  memory         {d['peak_memory_bytes'] / GIB:.2f} GiB{told}")
    lines += [f"    {name:20} {size / GIB:10.2f} GiB" for name, size in d["memory_bytes"].items() if size > 0]
    for kind, traffic in d.get("collectives", {}).items():
        lines.append(f"  {kind:14} {traffic['count']} x, {traffic['bytes'] / GIB:.3f} GiB")
    if "planned" in d:
        p = d["planned"]
        lines.append(
            f"  as planned     {p['step_time_s']:.4g} s, {p['peak_memory_bytes'] / GIB:.2f} GiB on {p['hardware']}"
        )
    return "\n".join(lines)


def _parts(seconds: dict[str, float], total: float) -> list[str]:
    return [f"    {name:20} {s:10.4g} s  {s / total:6.1%}" for name, s in seconds.items() if s > 0]
