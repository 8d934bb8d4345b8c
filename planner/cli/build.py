"""`planner build ARCHITECTURE --out MODEL`: a graph of any size, without weights."""

from __future__ import annotations

import argparse
import math
from pathlib import Path

from planner.cli.options import positive
from planner.errors import InputError

__all__ = ["configure", "run"]

ARCHITECTURES = ("gpt", "llama", "moe", "resnet", "bert", "vit", "mlp")
SIZES = (
    "layers", "hidden", "heads", "kv_heads", "ffn", "vocab", "seq", "batch", "experts", "top_k", "image", "patch",
    "classes",
)  # fmt: skip


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("architecture", choices=ARCHITECTURES)
    for name in SIZES:
        parser.add_argument(f"--{name.replace('_', '-')}", type=positive, metavar="N")
    parser.add_argument("--inference", action="store_true", help="without labels and loss")
    parser.add_argument("--out", type=Path, required=True, metavar="MODEL", help="ONNX file to write")


def run(options: argparse.Namespace) -> int:
    from planner.builder import build

    sizes = {name: getattr(options, name) for name in SIZES if getattr(options, name) is not None}
    model = build(options.architecture, {**sizes, "loss": not options.inference})
    data = model.SerializeToString(deterministic=True)
    try:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_bytes(data)
    except OSError as e:
        raise InputError(f"--out {options.out}: cannot be written ({e})") from e
    parameters = sum(math.prod(t.dims) for t in model.graph.initializer if t.external_data)
    print(f"{options.out}: {len(model.graph.node)} operators, {parameters:,} parameters, {len(data) / 1e6:.2f} MB")
    return 0
