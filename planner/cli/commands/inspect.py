"""`planner inspect MODEL`: what the importer understood.  `--operators`: the sharding rules of it, or of all types."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from planner.cli.options import add_json_option, add_model_options
from planner.errors import UsageError
from planner.requests.values import bindings

if TYPE_CHECKING:
    from planner.rules.catalogue import CatalogueEntry

__all__ = ["configure", "run"]


def configure(parser: argparse.ArgumentParser) -> None:
    add_model_options(parser, optional=True)
    parser.add_argument(
        "--operators",
        action="store_true",
        help="list operator types with their sharding rules; without MODEL, list all of them",
    )
    add_json_option(parser)


def run(options: argparse.Namespace) -> int:
    if options.operators:
        return _operators(options)
    from planner.frontends import load_model
    from planner.frontends.inspect import inspect_graph
    from planner.pricing import bind_rules

    if options.model is None:
        raise UsageError("planner inspect needs a MODEL, or --operators to list the rules of all operators")
    graph = load_model(options.model, bind=bindings(options.bind), batch=options.batch)
    found = inspect_graph(graph)
    found["operators_without_rule"] = bind_rules(graph)[1]
    print(json.dumps(found, indent=1) if options.json else _text(found))
    return 0


def _operators(options: argparse.Namespace) -> int:
    from planner.rules.catalogue import catalogue, graph_operators

    if options.model is None:
        if options.bind or options.batch:
            raise UsageError("--bind and --batch need a MODEL")
        found = catalogue()
    else:
        from planner.frontends import load_model

        found = graph_operators(load_model(options.model, bind=bindings(options.bind), batch=options.batch))
    if options.json:
        print(json.dumps({"operators": [e.as_dict() for e in found]}, indent=1))
    else:
        print("\n".join(_rule_lines(found)))
    return 0


def _rule_lines(entries: Iterable[CatalogueEntry]) -> list[str]:
    entries = list(entries)
    split = sum(bool(e.splits) for e in entries)
    opaque = sum(e.opaque for e in entries)
    lines = [f"{len(entries)} operator types: {split} that can be split, {opaque} opaque for a stated reason", ""]
    for e in entries:
        lines.append(f"{e.type}{f'  x{e.count}' if e.count else ''}")
        lines.append(f"    rule    {e.rule}")
        if e.example:
            lines.append(f"    bound   {e.example}")
        if e.splits:
            lines.append(
                f"    an axis may split {', '.join(s for s in e.splits if not s.startswith('+')) or 'nothing'}"
            )
            sums = [s for s in e.splits if s.startswith("+")]
            if sums:
                lines.append(f"    pending sums pass through operand group{'s' * (len(sums) > 1)} {', '.join(sums)}")
    return lines


def _tensor(t: dict[str, Any]) -> str:
    return f"{t['name']} {t['dtype']}{t['shape']}"


def _text(d: dict[str, Any]) -> str:
    p = d["parameters"]
    opsets = ", ".join(f"{domain} {version}" for domain, version in d["opsets"].items())
    lines = [
        f"{d['name']}: {d['operators']} operators, opset {opsets}, digest {d['digest'][:12]}",
        f"  parameters  {p['elements']:,} in {p['tensors']} tensors ({p['bytes'] / 1e9:.3f} GB as stored)"
        + (f", of which {p['frozen']:,} are frozen" if p["frozen"] else ""),
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
