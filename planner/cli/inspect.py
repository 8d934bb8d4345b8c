"""`planner inspect MODEL`: what the importer understood."""

from __future__ import annotations

import argparse
import json
from typing import Any

from planner.cli.options import add_model_options, bindings

__all__ = ["configure", "run"]


def configure(parser: argparse.ArgumentParser) -> None:
    add_model_options(parser)
    parser.add_argument("--json", action="store_true", help="one JSON document on standard output")


def run(options: argparse.Namespace) -> int:
    from planner.frontends import load_model
    from planner.frontends.inspect import inspect_graph
    from planner.pricing import bind_rules

    graph = load_model(options.model, bind=bindings(options.bind), batch=options.batch)
    found = inspect_graph(graph)
    found["operators_without_rule"] = bind_rules(graph)[1]
    print(json.dumps(found, indent=1) if options.json else _text(found))
    return 0


def _tensor(t: dict[str, Any]) -> str:
    return f"{t['name']} {t['dtype']}{t['shape']}"


def _text(d: dict[str, Any]) -> str:
    p = d["parameters"]
    opsets = ", ".join(f"{domain} {version}" for domain, version in d["opsets"].items())
    lines = [
        f"{d['name']}: {d['operators']} operators, opset {opsets}, digest {d['digest'][:12]}",
        f"  parameters  {p['elements']:,} in {p['tensors']} tensors ({p['bytes'] / 1e9:.3f} GB as stored)",
        f"  forward     {d['flops'] / 1e9:,.1f} GFLOP in products and convolutions",
        f"  loss        {d['loss'] or 'none: planned for inference'}",
        f"  inputs      {', '.join(_tensor(t) for t in d['inputs'])}",
        f"  outputs     {', '.join(_tensor(t) for t in d['outputs'])}",
        f"  operators   {', '.join(f'{n} {k}' for k, n in d['operator_types'].items())}",
    ]
    lines += [
        f"  repeated    {b['count']} x a block of {b['operators']} operators, from {b['first']} {b['module']}"
        for b in d["repeated_blocks"]
    ]
    if d["unresolved_shapes"]:
        lines.append(f"  unresolved  {len(d['unresolved_shapes'])} shapes depend on data: {d['unresolved_shapes'][:8]}")
    lines.append(
        f"  no rule     {', '.join(d['operators_without_rule']) or 'none: every operator has a sharding rule'}"
    )
    return "\n".join(lines)
