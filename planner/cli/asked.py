"""The options of `planner search` as the request that stands in plan.json, and back as a command line."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from cost_models import profile_names
from planner.cli.options import bindings
from planner.errors import InputError
from planner.planning.constraints import constraints_text, read_constraints
from planner.planning.document import SCHEMA as PLAN_SCHEMA
from planner.planning.searched import FileDocument, RequestDocument

__all__ = ["arguments_of", "asked", "profile_text"]


def asked(options: argparse.Namespace) -> RequestDocument:
    """What the options ask for; devices are those of the first count.  InputError where a file cannot be read."""
    return RequestDocument(
        devices=int(options.devices.split(",")[0]),
        hardware=options.hardware,
        profile=profile_text(options.hardware),
        nodes=options.nodes,
        mesh=options.mesh,
        mode=options.mode,
        memory_limit=options.memory_limit,
        optimizer=options.optimizer,
        precision=options.precision,
        recompute=options.recompute,
        stages=options.stages,
        micro_batches=options.micro_batches,
        solver=options.solver,
        target=options.target,
        strategy=options.strategy,
        constraints=None if options.constraints is None else _constraints(options.constraints),
        pins=list(options.pin),
        bind=dict(sorted(bindings(options.bind).items())),
        batch=options.batch,
        time_limit=options.time_limit,
        space=options.space,
    )


def profile_text(hardware: str) -> FileDocument | None:
    """The file of a hardware that is not packaged.  InputError where it cannot be read."""
    return None if hardware in profile_names() else _file(Path(hardware), "--hardware")


def _constraints(path: Path) -> FileDocument:
    """A plan given as constraints is kept as the pins that it comes to."""
    file = _file(path, "--constraints")
    if f'"{PLAN_SCHEMA}"' in file.text[:200]:
        return FileDocument(name=file.name, text=constraints_text(read_constraints(path)))
    return file


def _file(path: Path, option: str) -> FileDocument:
    try:
        return FileDocument(name=str(path), text=path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as e:
        raise InputError(f"{option} {path}: cannot be read ({e}); give a text file in UTF-8") from e


def arguments_of(request: RequestDocument, model: str, pins: Sequence[str] = ()) -> list[str]:
    """Arguments of `planner search` that ask the same of `model`, with further `pins`.  Files go by their names."""
    found: list[str] = [f"./{model}" if model.startswith("-") else model, "--devices", str(request.devices)]

    def add(option: str, value: object, default: object = None) -> None:
        if value != default:
            text = str(value)
            found.extend((f"{option}={text}",) if text.startswith("-") else (option, text))

    add("--hardware", request.hardware, "a100-80")
    add("--nodes", request.nodes)
    add("--mesh", request.mesh)
    add("--mode", request.mode)
    add("--batch", request.batch)
    for name, size in request.bind.items():
        add("--bind", f"{name}={size}")
    add("--memory-limit", request.memory_limit)
    add("--optimizer", request.optimizer, "adam")
    add("--precision", request.precision, "bf16")
    add("--recompute", request.recompute, "auto")
    add("--stages", request.stages, 1)
    add("--micro-batches", request.micro_batches)
    add("--strategy", request.strategy)
    add("--solver", request.solver, "auto")
    add("--time-limit", request.time_limit)
    add("--target", request.target, "any")
    add("--space", request.space)
    add("--constraints", None if request.constraints is None else request.constraints.name)
    for pin in (*request.pins, *pins):
        add("--pin", pin)
    return found
