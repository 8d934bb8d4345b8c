"""`planner export MODULE:FUNCTION --inputs SPEC --out MODEL.onnx`: a PyTorch module as an ONNX file without weights."""

from __future__ import annotations

import argparse
import os
import re
import shlex
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from planner.errors import UsageError
from planner.requests.values import positive
from planner.torch.export.tensors import DTYPES, TensorSpec, empty_tensors, named_value, tensor_specs

if TYPE_CHECKING:
    from planner.torch.export.source import Source

__all__ = ["configure", "run"]

_OUR_MARKS = (b"planner.torch", b"pytorch")  # within the first bytes of what this command writes
_HEAD = 200
_BATCH = 8  # with --hf


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "module",
        nargs="?",
        metavar="MODULE:FUNCTION",
        help="package.module:function or path/to/file.py:function that returns the module (or a class, or a module)",
    )
    parser.add_argument(
        "--hf",
        type=Path,
        metavar="CONFIG",
        help="instead: a config.json of Hugging Face's transformers, or its folder; no weights, no network",
    )
    parser.add_argument("--out", type=Path, required=True, metavar="MODEL.onnx", help="file to write")
    parser.add_argument(
        "--inputs",
        type=tensor_specs,
        action="append",
        default=[],
        metavar="NAME:TYPE[SIZES]",
        help="inputs of a global batch, such as ids:int64[8,2048]; without a name by place; may be repeated",
    )
    parser.add_argument(
        "--arg",
        type=named_value,
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="argument of the function, or with --hf an entry of the configuration; may be repeated",
    )
    parser.add_argument(
        "--call",
        type=named_value,
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="argument of the module's call that is no tensor; may be repeated",
    )
    parser.add_argument(
        "--loss",
        metavar="LOSS",
        help="cross_entropy, mse, mean or sum of what the module returns, or package.module:function, which is called "
        "with it and the targets; without it, the loss that the module returns, if any",
    )
    parser.add_argument(
        "--targets",
        type=tensor_specs,
        action="append",
        default=[],
        metavar="TYPE[SIZES]",
        help="what the loss reads after the module's result, such as int64[8,2048]; may be repeated",
    )
    parser.add_argument(
        "--mode",
        choices=("training", "inference"),
        help="whether dropout drops and batch norms use their batch; default: training where there is a loss",
    )
    parser.add_argument("--no-dropout", action="store_true", help="drop nothing in training mode either")
    parser.add_argument("--dtype", choices=[d for d in DTYPES if "float" in d], help="type of the weights")
    parser.add_argument("--batch", type=positive, metavar="B", help="global batch, with --hf; default: 8")
    parser.add_argument("--sequence", type=positive, metavar="N", help="tokens of a sample, with --hf; default: 512")
    parser.add_argument("--architecture", metavar="CLASS", help="class of transformers, with --hf")
    parser.add_argument(
        "--exporter",
        choices=("planner", "onnx"),
        help="planner: the capture of planner.torch.plan; onnx: torch.onnx.export, with the extra [export]; default: "
        "the first, and the second where an operator has no translation",
    )
    parser.add_argument("--opset", type=positive, metavar="N", help="operator set, by torch.onnx.export")
    parser.add_argument(
        "--dynamic",
        action="append",
        default=[],
        metavar="INPUT.AXIS=NAME",
        help="a dimension that stays symbolic, such as ids.0=batch, by torch.onnx.export; may be repeated",
    )
    parser.add_argument("--force", action="store_true", help="replace a file that this command did not write")


def run(options: argparse.Namespace) -> int:
    from planner.runtime.extra import require_torch

    _check(options)
    require_torch("planner export")
    from planner.status import show_progress
    from planner.torch.export.files import written

    began = time.monotonic()
    out = options.out.absolute()  # the user's code may change the current folder
    show_progress("making the module")
    step = _source(options)
    show_progress("exporting")
    found = written(
        step.module,
        step.listed,
        step.named,
        step.targets,
        step.loss,
        exporter=options.exporter,
        opset=options.opset,
        dynamic=dict(map(_dimension, options.dynamic)),
        mode_by_loss=step.mode_by_loss,
    )
    if found.reason:
        print(f"note: written by torch.onnx.export, as {found.reason}", file=sys.stderr)
    _write(out, options.out, found.data)
    print("\n".join(_summary(options, step, found.data, time.monotonic() - began)))
    return 0


def _check(options: argparse.Namespace) -> None:
    """UsageError where options contradict each other."""
    if (options.module is None) == (options.hf is None):
        raise UsageError(
            "expected one of MODULE:FUNCTION and --hf CONFIG, found "
            + ("neither" if options.module is None else "both")
        )
    if options.module is not None and not options.inputs:
        raise UsageError(
            f"missing --inputs: the tensors that {options.module} reads, such as --inputs 'ids:int64[8,2048]'"
        )
    of_hf = [n for n in ("sequence", "architecture") if getattr(options, n) is not None]
    if options.hf is None and of_hf:
        raise UsageError(f"--{of_hf[0]} goes with --hf alone; the sizes of a module's inputs stand in --inputs")
    if options.hf is None and options.batch is not None:
        raise UsageError("--batch goes with --hf alone; the sizes of a module's inputs stand in --inputs")
    for option in ("arg", "call"):
        _once([name for name, _ in getattr(options, option)], option)
    fed = {s.name for specs in options.inputs for s in specs}
    both = next((name for name, _ in options.call if name in fed), None)
    if both is not None:
        raise UsageError(f"--call {both}: is one of --inputs already; leave one out")
    if options.exporter == "planner" and (options.opset or options.dynamic):
        raise UsageError("--opset and --dynamic need torch.onnx.export; leave --exporter planner out")
    if options.targets and not options.loss:
        raise UsageError("--targets are read by a loss; name it with --loss, such as --loss cross_entropy")
    for text in options.dynamic:
        _dimension(text)
    out = options.out
    if out.is_dir():
        raise UsageError(f"--out {out}: is a folder; name a file in it, such as {out / 'model.onnx'}")
    if not options.force and out.is_file():
        with out.open("rb") as file:
            head = file.read(_HEAD)
        if not any(mark in head for mark in _OUR_MARKS):
            raise UsageError(f"--out {out}: is a file of something else; name another file, or replace it with --force")


def _once(names: list[str], option: str) -> None:
    twice = next((n for n in names if names.count(n) > 1), None)
    if twice is not None:
        raise UsageError(f"--{option} {twice}: is given twice; leave one out")


def _dimension(text: str) -> tuple[tuple[str, int], str]:
    match = re.fullmatch(r"([A-Za-z_]\w*)\.(\d{1,2})=([A-Za-z_]\w*)", text)
    if match is None:
        raise UsageError(
            f"--dynamic: expected an axis of an input and its name, such as ids.0=batch, found {text!r:.80}"
        )
    return (match[1], int(match[2])), match[3]


def _source(options: argparse.Namespace) -> Source:
    from planner.torch.export import source

    inputs: tuple[TensorSpec, ...] = tuple(s for specs in options.inputs for s in specs)
    targets: tuple[TensorSpec, ...] = tuple(s for specs in options.targets for s in specs)
    listed, named = empty_tensors(inputs, "--inputs")
    wanted, by_name = empty_tensors(targets, "--targets")
    given = source.Given(
        listed, named, (*wanted, *by_name.values()), dict(options.call), options.loss, options.mode,
        dropout=not options.no_dropout, dtype=options.dtype,
    )  # fmt: skip
    if options.module is not None:
        return source.of_code(options.module, dict(options.arg), given)
    return source.of_configuration(
        options.hf,
        given,
        batch=options.batch or _BATCH,
        sequence=options.sequence,
        architecture=options.architecture,
        settings=dict(options.arg),
    )


def _write(out: Path, given: Path, data: bytes) -> None:
    """`given`: the path as it was put."""
    from planner.files import write_whole

    try:
        write_whole(out, data)
    except OSError as e:
        raise UsageError(f"--out {given}: cannot be written ({e.strerror}); name another file") from e


def _summary(options: argparse.Namespace, step: Any, data: bytes, seconds: float) -> list[str]:
    import math

    import onnx

    model = onnx.ModelProto.FromString(data)
    known = {p.key: p.value for p in model.metadata_props}
    weights = sum(math.prod(t.dims) for t in model.graph.initializer if t.external_data)
    fed = ", ".join(f"{v.name}[{','.join(_size(d) for d in v.type.tensor_type.shape.dim)}]" for v in model.graph.input)
    ends = (
        f"loss {known['planner.loss']}" if "planner.loss" in known else "no loss, so that it is planned for inference"
    )
    command = f"planner search {shlex.quote(str(options.out))} --devices N" + (
        f" --bind {_bound(model)}" if _bound(model) else ""
    )
    return [
        f"{os.fspath(options.out)}: {type(step.module).__name__}, {len(model.graph.node):,} operators, {weights:,} "
        f"weights, {len(data):,} bytes, {seconds:.1f} s",
        f"  inputs  {fed}",
        f"  ends    in {ends}",
        f"  next    {command}",
    ]


def _size(dimension: Any) -> str:
    return dimension.dim_param or str(dimension.dim_value)


def _bound(model: Any) -> str:
    names = {d.dim_param for v in model.graph.input for d in v.type.tensor_type.shape.dim if d.dim_param}
    return " --bind ".join(f"{n}=SIZE" for n in sorted(names))
