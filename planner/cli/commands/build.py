"""`planner build ARCHITECTURE --out MODEL`: a model graph of any size, without weights."""

from __future__ import annotations

import argparse
import math
from dataclasses import Field, fields
from pathlib import Path
from typing import Any

from planner.errors import UsageError
from planner.requests.values import not_negative, positive

__all__ = ["configure", "run"]

_HEAD = 200  # bytes of a model within which it says who produced it


def configure(parser: argparse.ArgumentParser) -> None:
    from planner.builder import ARCHITECTURES
    from planner.builder.sizes import flag

    kinds = parser.add_subparsers(dest="architecture", metavar="ARCHITECTURE", required=True)
    for name, architecture in sorted(ARCHITECTURES.items()):
        sub = kinds.add_parser(
            name, help=f"build this architecture: {architecture.line}", description=architecture.sizes.__doc__
        )
        for f in fields(architecture.sizes):
            _add_option(sub, flag(f.name), f)
        sub.add_argument("--out", type=Path, required=True, metavar="MODEL.onnx", help="file to write")
        sub.add_argument("--force", action="store_true", help="replace a model that is there, whoever made it")


def _add_option(parser: argparse.ArgumentParser, name: str, size: Field[Any]) -> None:
    text = size.metadata["help"]
    if size.default is True:
        parser.add_argument(name, action=argparse.BooleanOptionalAction, default=True, help=text)
        return
    if size.default is False:
        parser.add_argument(name, action="store_true", help=text)
        return
    # Where the default is None, the text itself says what follows from what.
    text = text if size.default is None else f"{text}; default: {size.default}"
    if "choices" in size.metadata:
        parser.add_argument(name, choices=size.metadata["choices"], default=size.default, help=text)
    else:
        number = positive if size.metadata["least"] else not_negative
        parser.add_argument(name, type=number, default=size.default, metavar="N", help=text)


def run(options: argparse.Namespace) -> int:
    from planner.builder import ARCHITECTURES, build
    from planner.builder.graph import PRODUCER

    names = [f.name for f in fields(ARCHITECTURES[options.architecture].sizes)]
    model = build(options.architecture, {n: getattr(options, n) for n in names})
    data = model.SerializeToString(deterministic=True)
    if not options.force and options.out.is_file() and PRODUCER.encode() not in options.out.read_bytes()[:_HEAD]:
        raise UsageError(f"--out {options.out}: is another model; name another file, or replace it with --force")
    try:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_bytes(data)
    except OSError as e:
        raise UsageError(f"--out {options.out}: cannot be written ({e.strerror}); name another file") from e
    weights = sum(math.prod(t.dims) for t in model.graph.initializer if t.external_data)
    print(f"{options.out}: {len(model.graph.node)} operators, {weights:,} weights, {len(data):,} bytes")
    return 0
