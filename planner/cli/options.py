"""Options that several commands share."""

from __future__ import annotations

import argparse
from pathlib import Path

from planner.requests.values import positive

__all__ = ["add_json_option", "add_model_options"]


def add_json_option(parser: argparse.ArgumentParser) -> None:
    """--json."""
    parser.add_argument("--json", action="store_true", help="print one JSON document on standard output")


def add_model_options(parser: argparse.ArgumentParser, *, optional: bool = False, named: bool = False) -> None:
    """MODEL, --bind and --batch; `named`: the model follows --model."""
    description = "ONNX file (weights are not needed)"
    if named:
        parser.add_argument("--model", type=Path, metavar="MODEL", required=True, help=description)
    else:
        parser.add_argument("model", type=Path, metavar="MODEL", nargs="?" if optional else None, help=description)
    parser.add_argument(
        "--bind", action="append", default=[], metavar="DIM=SIZE", help="size of a symbolic dimension; may be repeated"
    )
    parser.add_argument(
        "--batch",
        type=positive,
        metavar="B",
        help="global batch size; it binds the batch dimension, or replaces a static one",
    )
