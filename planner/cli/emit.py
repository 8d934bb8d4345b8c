"""`planner emit PLAN --target TARGET --out DIR`: a plan as the files that a runtime loads."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING

from planner.errors import InputError, UsageError
from planner.files import write_whole

if TYPE_CHECKING:
    from planner.emit import Emission
    from planner.planning import PlanDocument

__all__ = ["configure", "emit_beside", "run"]


def configure(parser: argparse.ArgumentParser) -> None:
    from planner.emit import TARGETS

    parser.add_argument("plan", type=Path, metavar="PLAN", help="plan.json of `planner search`")
    parser.add_argument("--target", required=True, choices=TARGETS, help="the runtime that loads the files")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="directory to write them to")
    parser.add_argument("--names", type=Path, metavar="FILE", help="JSON: names of the network's parameters")
    parser.add_argument("--model", type=Path, metavar="MODEL", help="the model, which --target onnx annotates")
    parser.add_argument("--hosts", type=Path, metavar="FILE", help="lines of SERVER DEVICE_IP…: writes a rank table")
    parser.add_argument("--json", action="store_true", help="one JSON document on standard output")


def run(options: argparse.Namespace) -> int:
    from planner.planning import read_plan

    plan = read_plan(options.plan)
    emission = _emit(plan, options)
    written = [_write(options.out / name, content) for name, content in emission.files.items()]
    if options.json:
        document = {"target": options.target, "files": [str(p) for p in written], "lost": list(emission.lost)}
        print(json.dumps(document, indent=1))
    else:
        print("\n".join(str(p) for p in written))
        if emission.lost:
            print(f"not in these files ({options.target} has no words for it):")
            print("\n".join(f"  {line}" for line in emission.lost))
    return 0


def _emit(plan: PlanDocument, options: argparse.Namespace) -> Emission:
    from planner.emit import NameRules, read_names
    from planner.emit.mindspore import emit_mindspore, read_hosts
    from planner.emit.torch import emit_torch

    if options.model is not None and options.target != "onnx":
        raise UsageError("--model: the model to annotate, for --target onnx alone; leave it out")
    rules = NameRules() if options.names is None else read_names(options.names)
    names = rules.apply({n: tuple(p.shape) for n, p in plan.parameters.items()})
    if options.target == "onnx":
        return _annotated(plan, options)
    if options.target == "torch":
        if options.hosts is not None:
            raise UsageError("--hosts: writes a rank table, which --target mindspore alone reads; leave it out")
        return emit_torch(plan, names)
    return emit_mindspore(plan, names, servers=[] if options.hosts is None else read_hosts(options.hosts))


def _annotated(plan: PlanDocument, options: argparse.Namespace) -> Emission:
    import onnx
    from google.protobuf.message import DecodeError

    from planner.emit.onnx import emit_onnx
    from planner.frontends import load_model
    from planner.planning.describe import program_of

    if options.model is None or options.names is not None or options.hosts is not None:
        raise UsageError("--target onnx: needs --model MODEL, the file that was planned, and neither names nor hosts")
    graph = load_model(options.model, bind=plan.model.bind, batch=plan.model.batch)
    program_of(plan, graph)  # refuses another model
    try:
        model = onnx.load(str(options.model), load_external_data=False)
    except (OSError, DecodeError) as e:
        raise InputError(f"--model {options.model}: cannot be read ({e})") from e
    return emit_onnx(model, plan, graph)


def emit_beside(plan: Path, target: str, model: Path, out: Path) -> tuple[list[str], list[str]]:
    """The files of a plan that was just written, with the model's own names: paths, and what they do not carry."""
    told = argparse.Namespace(plan=plan, target=target, out=out, names=None, hosts=None, model=None)
    if target == "onnx":
        told.model = model
    from planner.planning import read_plan

    emission = _emit(read_plan(plan), told)
    return [str(_write(out / name, content)) for name, content in emission.files.items()], list(emission.lost)


def _write(path: Path, content: bytes) -> Path:
    try:
        write_whole(path, content, executable=path.suffix == ".sh")
    except (FileExistsError, NotADirectoryError) as e:
        raise UsageError(f"--out {path.parent}: is not a directory ({e.strerror}); name another") from e
    except OSError as e:
        raise InputError(f"--out {path}: cannot be written ({e.strerror}); name another directory") from e
    return path
