"""`planner evaluate MODEL --devices N --strategy …`: what a known configuration costs, without searching."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from planner.cli.options import add_model_options, bindings, byte_size, positive, profile_of
from planner.errors import UsageError

if TYPE_CHECKING:
    from cost_models import HardwareProfile
    from planner.evaluate import Configuration, Prediction
    from planner.ir import Graph

__all__ = ["configure", "run"]

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
    what.add_argument("--plan", type=Path, metavar="FILE", help="a plan.json: priced as it stands")
    parser.add_argument("--hardware", default="a100-80", metavar="NAME|FILE", help="profile (see `planner hardware`)")
    parser.add_argument("--precision", choices=("bf16", "fp16", "fp32"), default="bf16")
    parser.add_argument("--optimizer", choices=("adam", "sgd", "momentum"), default="adam")
    parser.add_argument("--memory-limit", type=byte_size, metavar="SIZE", help="default: the device's less its reserve")
    parser.add_argument("--out", type=Path, metavar="DIR", help="write evaluation.json there")
    parser.add_argument("--json", action="store_true", help="one JSON document on standard output")


def run(options: argparse.Namespace) -> int:
    found = _plan(options) if options.plan is not None else _strategy(options)
    text = json.dumps(found, indent=1)
    if options.out is not None:
        options.out.mkdir(parents=True, exist_ok=True)
        (options.out / "evaluation.json").write_text(text + "\n", encoding="utf-8")
    print(text if options.json else _text(found))
    return 0


def _strategy(options: argparse.Namespace) -> dict[str, Any]:
    from planner.evaluate import predict, trace
    from planner.evaluate.schemes import parse_strategy
    from planner.frontends import load_model

    if options.devices is None:
        raise UsageError("--strategy needs --devices N")
    profile = profile_of(options.hardware)
    bound = bindings(options.bind)
    graph = load_model(options.model, bind=bound, batch=options.batch)
    batch = options.batch or _samples(graph)
    c = parse_strategy(
        options.strategy, devices=options.devices, batch=batch, precision=options.precision, optimizer=options.optimizer
    )
    # One pass of one rank; ranks that share experts exchange the tokens of all their samples.
    passed = c.micro_batch * c.ep
    if passed != _samples(graph):
        graph = load_model(options.model, bind=bound, batch=passed)
    return _document(options, c, predict(trace(graph, c), c, profile), profile)


def _samples(graph: Graph) -> int:
    """Size of the first dimension of the first input: the batch."""
    shape = next((graph.tensors[t].shape for t in graph.inputs if graph.tensors[t].shape), None)
    if not shape:
        raise UsageError("the model has no input with a batch dimension; give one that has")
    return int(shape[0])


def _document(options: argparse.Namespace, c: Configuration, p: Prediction, profile: HardwareProfile) -> dict[str, Any]:
    from cost_models import usable_memory_bytes

    limit = options.memory_limit or usable_memory_bytes(profile)
    return {
        "schema": "planner.evaluation/1",
        "model": str(options.model),
        "hardware": profile.name,
        "devices": c.devices,
        "batch": c.global_batch,
        "strategy": options.strategy,
        "configuration": c.text(),
        "step_time_s": p.step_time_s,
        "step_time_interval_s": [p.time_low_s, p.time_high_s],
        "samples_per_s": c.global_batch / p.step_time_s,
        "breakdown_s": dict(p.breakdown),
        "peak_memory_bytes": round(p.allocated_bytes),
        "reserved_memory_bytes": round(p.reserved_bytes),
        "memory_bytes": {k: round(v) for k, v in p.memory.items()},
        "memory_limit_bytes": limit,
        "fits": limit is None or p.allocated_bytes <= limit,
    }


def _plan(options: argparse.Namespace) -> dict[str, Any]:
    from planner.evaluate.plan import evaluate_plan
    from planner.frontends import load_model

    def load(batch: int | None) -> Graph:
        return load_model(options.model, bind=bindings(options.bind), batch=options.batch or batch)

    found = evaluate_plan(options.plan, load, profile_of(options.hardware), devices=options.devices)
    return {"schema": "planner.evaluation/1", "model": str(options.model), "strategy": str(options.plan), **found}


def _text(d: dict[str, Any]) -> str:
    lines = [
        f"{d['strategy']} on {d['devices']} x {d['hardware']}, batch {d['batch']}",
        f"  configuration  {d['configuration']}",
        f"  step           {d['step_time_s']:.4g} s",
    ]
    if "step_time_interval_s" in d:
        low, high = d["step_time_interval_s"]
        lines[-1] += f"  (80 % between {low:.4g} and {high:.4g} s)   {d['samples_per_s']:.4g} samples/s"
    total = d["step_time_s"]
    lines += [
        f"    {name:20} {seconds:10.4g} s  {seconds / total:6.1%}"
        for name, seconds in d["breakdown_s"].items()
        if seconds > 0
    ]
    limit = d["memory_limit_bytes"]
    told = "" if limit is None else f" of {limit / GIB:.1f} GiB" + ("" if d["fits"] else ": DOES NOT FIT")
    lines.append(f"  memory         {d['peak_memory_bytes'] / GIB:.2f} GiB{told}")
    lines += [f"    {name:20} {size / GIB:10.2f} GiB" for name, size in d["memory_bytes"].items() if size > 0]
    return "\n".join(lines)
