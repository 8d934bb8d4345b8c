"""Checkpoints of a training: what torch.distributed.checkpoint reads and writes, under plain names.

    FOLDER/step-00000100/    `model.NAME`, `optimizer.state.NAME.…`, as `planner.torch.state_dict` has them
        training.json        the step, the position in the data, the numbers of the optimizer, the seed

Shapes are those of the model, so that any other plan reads them, on another number of processes, and so does
`planner.torch.load_state_dict`.  A checkpoint is written beside its place and renamed: what has its name is whole.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException

from planner.errors import InputError, UsageError
from planner.runtime.placements import in_one_piece, in_shards_of
from planner.runtime.training.rank import RankTraining
from planner.runtime.workers import Context

__all__ = [
    "Kept",
    "chosen",
    "clear",
    "fresh",
    "is_whole",
    "load",
    "newest",
    "place_of",
    "record_of",
    "save",
    "stamp_of",
    "state_of",
]

_RECORD = "training.json"
_NAME = re.compile(r"step-(\d+)")


def place_of(folder: Path, step: int) -> Path:
    """Where the checkpoint behind a step lies."""
    return folder / f"step-{step:08d}"


def newest(folder: Path) -> Path | None:
    """The newest whole checkpoint in a folder."""
    inside = folder.iterdir() if folder.is_dir() else ()
    found = [(int(m[1]), f) for f in inside if (m := _NAME.fullmatch(f.name)) and is_whole(f)]
    return max(found)[1] if found else None


def chosen(folder: Path) -> Path:
    """The checkpoint that a folder is, or the newest of those in it.  InputError where it is and has none."""
    found = folder if is_whole(folder) else newest(folder)
    if found is None:
        raise InputError(
            f"--load {folder}: expected a checkpoint (a folder with .metadata), or a folder of such called step-N, "
            f"found {'neither' if folder.is_dir() else 'no folder'}"
        )
    return found


def is_whole(folder: Path) -> bool:
    """Whether a folder is a checkpoint: this file is its last."""
    return (folder / ".metadata").is_file()


def stamp_of(checkpoint: Path) -> tuple[int, int] | None:
    """What tells a checkpoint from another one at its place; None where there is none."""
    try:
        found = (checkpoint / ".metadata").stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns


def record_of(checkpoint: Path) -> dict[str, Any]:
    """What is said of the training; empty where only tensors were saved, as `planner.torch` does."""
    try:
        text = (checkpoint / _RECORD).read_text(encoding="utf-8")
        found = json.loads(text)
        if not isinstance(found, dict) or not isinstance(found.get("step"), int):
            raise ValueError("no step")
        return found
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise InputError(f"--load {checkpoint}: {_RECORD} cannot be read: {error}; load another checkpoint") from None


def clear(context: Context, folder: Path) -> None:
    """Makes the folder of checkpoints ready, on the first rank; before `save`, in which ranks wait for each other.
    UsageError where it cannot be."""
    if context.rank:
        return
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for old in folder.glob(".step-*.old"):  # who replaced it ended before its own, or itself, was in place
            place = folder / old.name.removeprefix(".").removesuffix(".old")
            if place.exists():
                shutil.rmtree(old)
            else:
                old.rename(place)
        for left in folder.glob(".step-*.part"):
            shutil.rmtree(left)
    except OSError as error:
        raise UsageError(f"--save {folder}: cannot be written to: {error.strerror}") from None


def save(training: RankTraining, folder: Path) -> None:
    """Writes a checkpoint; all ranks call it together.  UsageError, on all of them, where it cannot be written."""
    place = place_of(folder, training.step_number)
    part = place.with_name(f".{place.name}.part")
    try:
        dcp.save(_state(training, state_of(training)), checkpoint_id=part)
        if training.context.rank == 0:
            _record(training, part / _RECORD)
            _put(part, place)
    except (CheckpointException, OSError) as error:
        raise UsageError(f"--save {folder}: the checkpoint of step {training.step_number} cannot be written: "
                         f"{_reason(error)}") from None  # fmt: skip


def _record(training: RankTraining, file: Path) -> None:
    read = {"seed": training.seed, "data": None if training.data is None else str(training.data.folder)}
    found = {"step": training.step_number, "position": training.position, **asdict(training.numbers), **read}
    with file.open("w", encoding="utf-8") as opened:
        opened.write(json.dumps(found, indent=1) + "\n")
        opened.flush()
        os.fsync(opened.fileno())


def _put(part: Path, place: Path) -> None:
    """Renames what was written to its place; what had that place goes first."""
    if place.exists():
        old = place.with_name(f".{place.name}.old")
        shutil.rmtree(old, ignore_errors=True)
        place.rename(old)
        part.rename(place)
        shutil.rmtree(old)
    else:
        part.rename(place)
    handle = os.open(place.parent, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def load(training: RankTraining, checkpoint: Path) -> str:
    """Reads a checkpoint of any plan; all ranks call it together.  What is to be said of it; nothing, mostly.

    Raises:
        InputError: on all ranks: it lacks a parameter, holds one of another shape, or cannot be read.
    """
    try:
        there = dcp.FileSystemReader(checkpoint).read_metadata().state_dict_metadata
    except Exception as error:
        raise InputError(f"--load {checkpoint}: .metadata cannot be read: {_reason(error)}") from None
    _check(training, there, checkpoint)
    has_state = any(key.startswith("optimizer.state.") for key in there)
    kept = fresh(training)
    if has_state:
        lacking = [f"{n}.{k}" for n, s in kept.items() for k in s
                   if f"optimizer.state.{training.plain[n]}.{k}" not in there]  # fmt: skip
        # Every rank has the same say: those that hold other parameters would wait.
        if _anywhere(training, bool(lacking)):
            raise InputError(
                f"--load {checkpoint}: its optimizer's state is not that of {training.numbers.optimizer}"
                f"{f': no {lacking[0]}' if lacking else ''}; give the optimizer that it was saved with (--optimizer, "
                "--momentum)"
            )
    wanted = _state(training, kept if has_state else {}, groups=False)
    try:
        dcp.load(wanted, checkpoint_id=checkpoint)
    except (CheckpointException, OSError) as error:
        raise InputError(f"--load {checkpoint}: cannot be read: {_reason(error)}") from None
    _take(training, wanted, kept if has_state else {})
    about = record_of(checkpoint)
    training.begun(about.get("step", 0), about.get("position", 0))
    anew = not has_state and training.numbers.keeps_state
    return f"{checkpoint} holds weights alone: the optimizer begins anew" if anew else ""


def _check(training: RankTraining, there: Mapping[str, Any], checkpoint: Path) -> None:
    lacking = [p for p in training.plain.values() if f"model.{p}" not in there]
    if lacking:
        more = f" and {len(lacking) - 1} more" if len(lacking) > 1 else ""
        raise InputError(f"--load {checkpoint}: it has no parameter {lacking[0]}{more}, which the model trains; "
                         "load a checkpoint of this model")  # fmt: skip
    for name, plain in training.plain.items():
        expected, found = training.graph.tensors[name].shape, getattr(there[f"model.{plain}"], "size", None)
        if found is None or tuple(found) != expected:
            raise InputError(
                f"--load {checkpoint}: parameter {plain}: expected the shape {list(expected or ())}, found "
                f"{'no tensor' if found is None else list(found)}; load a checkpoint of this model"
            )


def _anywhere(training: RankTraining, here: bool) -> bool:
    flag = torch.tensor(float(here), device=training.context.device)
    torch.distributed.all_reduce(flag)
    return bool(flag)


# Tensors with their names

Kept = dict[str, dict[str, Any]]  # of the optimizer, by the graph's names of parameters


def state_of(training: RankTraining) -> Kept:
    """What the optimizer keeps of each trained parameter here; nothing before its first step."""
    optimizer = training.optimizer
    if optimizer is None:
        return {}
    held = {n: training.parameters[n] for n in training.trained if n in training.parameters}
    return {n: {k: v for k, v in optimizer.state[p].items() if v is not None} for n, p in held.items()
            if p in optimizer.state}  # fmt: skip


def fresh(training: RankTraining) -> Kept:
    """As the optimizer would begin, to be read into."""
    n = training.numbers
    found: Kept = {}
    for name in training.trained if training.optimizer is not None else ():
        p = training.parameters.get(name)
        if p is None:
            continue
        if n.optimizer == "adamw":
            moments = {k: torch.zeros_like(p, requires_grad=False) for k in ("exp_avg", "exp_avg_sq")}
            found[name] = {"step": torch.zeros((), device=p.device), **moments}
        elif n.momentum:
            found[name] = {"momentum_buffer": torch.zeros_like(p, requires_grad=False)}
    return found


def _state(training: RankTraining, kept: Kept, *, groups: bool = True) -> dict[str, Any]:
    """What is saved, and read into: DTensors over this rank's own memory, where their shards are one piece."""
    plain = training.plain
    model = {plain[n]: in_one_piece(_named(training, n, p.data)) for n, p in training.parameters.items()}
    found: dict[str, Any] = {"model": model}
    if kept:
        found["optimizer"] = {"state": {
            plain[n]: {k: v if k == "step" else in_one_piece(_named(training, n, v)) for k, v in state.items()}
            for n, state in kept.items()
        }}  # fmt: skip
    if groups:  # what is saved, and not read into
        model |= {alias: model[plain[n]] for alias, n in training.aliases.items() if plain[n] in model}
    if groups and training.optimizer is not None:
        # All names on every rank: which of them a stage holds is the plan's affair.
        numbers = {k: v for k, v in training.optimizer.param_groups[0].items() if k != "params"}
        every = [plain[n] for n in training.trained]
        found.setdefault("optimizer", {"state": {}})["param_groups"] = [{**numbers, "params": every}]
    return found


def _named(training: RankTraining, name: str, local: Tensor) -> Any:
    shape = torch.Size(training.graph.tensors[name].shape or ())
    stride = torch.empty(shape, device="meta").stride()
    return training.meshes.tensor(training.layouts[name], local, shape, stride)


def _take(training: RankTraining, read: Mapping[str, Any], kept: Kept) -> None:
    """Puts what was read to where the training has it."""

    def put(local: Tensor, name: str, value: Any) -> None:
        here = in_shards_of(value, _named(training, name, local)).to_local()
        if here.data_ptr() != local.data_ptr():
            local.copy_(here)

    with torch.no_grad():
        for name, p in training.parameters.items():
            put(p.data, name, read["model"][training.plain[name]])
        for name, state in kept.items():
            found = read["optimizer"]["state"][training.plain[name]]
            for key, value in state.items():
                if key == "step":
                    value.copy_(found[key])
                else:
                    put(value, name, found[key])
            assert training.optimizer is not None
            training.optimizer.state[training.parameters[name]] = state


def _reason(error: BaseException) -> str:
    """One line of what went wrong, of the first rank that says so."""
    if isinstance(error, CheckpointException) and error.failures:
        rank, (inner, _) = min(error.failures.items())
        return f"rank {rank}: {str(inner).strip().splitlines()[0] if str(inner).strip() else type(inner).__name__}"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
