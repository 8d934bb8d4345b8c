"""`planner emit PLAN --target TARGET --out DIR`: a plan as the files that a runtime loads."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

from planner.errors import InputError, UsageError
from planner.files import write_whole
from planner.requests.occupied import refuse_inputs
from planner.requests.values import plan_file

__all__ = ["configure", "emit_beside", "run"]


def configure(parser: argparse.ArgumentParser) -> None:
    from planner.emit import TARGETS

    parser.add_argument("plan", type=plan_file, metavar="PLAN", help="plan.json of `planner search`, or its folder")
    parser.add_argument("--target", required=True, choices=tuple(TARGETS), help="the runtime that loads the files")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="directory to write them to")
    parser.add_argument("--names", type=Path, metavar="FILE", help="JSON: names of the network's parameters")
    parser.add_argument("--model", type=Path, metavar="MODEL", help="the model that was planned, for ONNX targets")
    parser.add_argument("--hosts", type=Path, metavar="FILE", help="lines of SERVER DEVICE_IP… or SERVER slots=N")
    parser.add_argument("--json", action="store_true", help="one JSON document on standard output")


def run(options: argparse.Namespace) -> int:
    from planner.emit import Given, emit
    from planner.planning import read_plan

    given = Given(read_plan(options.plan), options.names, options.hosts, options.model)
    emission = emit(options.target, given)
    for name in emission.files:
        refuse_inputs(options.out / name, options.plan, options.model)
    written = [_write(options.out / name, content) for name, content in emission.files.items()]
    others = _others(options.out, written)
    if options.json:
        document = {
            "target": options.target,
            "files": [str(p) for p in written],
            "lost": list(emission.lost),
            "others": others,
        }
        print(json.dumps(document, indent=1))
    else:
        print("\n".join(str(p) for p in written))
        if emission.lost:
            print(f"not in these files ({options.target} has no words for it):")
            print("\n".join(f"  {line}" for line in emission.lost))
        if others:
            more = f" and {len(others) - 6} more" if len(others) > 6 else ""
            print(f"note: {options.out} holds files that are not of this plan: {', '.join(others[:6])}{more}")
    return 0


def emit_beside(plan: Path, target: str, model: Path, out: Path) -> tuple[list[str], list[str]]:
    """The files of a plan that was just written, with the model's own names: paths, and what they do not carry."""
    from planner.emit import TARGETS, Given, emit
    from planner.planning import read_plan

    given = Given(read_plan(plan), model_file=model if "model" in TARGETS[target].needs else None)
    emission = emit(target, given)
    return [str(_write(out / name, content)) for name, content in emission.files.items()], list(emission.lost)


def _others(folder: Path, written: Sequence[Path]) -> list[str]:
    """Files of the folder that were there before: of another plan, perhaps, which a runtime would load with these."""
    return sorted(p.name for p in folder.iterdir() if p.is_file() and p not in written)


def _write(path: Path, content: bytes) -> Path:
    try:
        write_whole(path, content, executable=path.suffix == ".sh")
    except (FileExistsError, NotADirectoryError) as e:
        raise UsageError(f"--out {path.parent}: is not a directory ({e.strerror}); name another") from e
    except OSError as e:
        raise InputError(f"--out {path}: cannot be written ({e.strerror}); name another directory") from e
    return path
