"""A checkpoint of DeepSpeed: parameters with what an optimizer keeps of them, other tensors, and values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from planner.errors import InputError
from planner.stored.arrays import StoredArray
from planner.stored.formats.deepspeed.folder import Folder, folder_of
from planner.stored.formats.deepspeed.model import Model, frozen, read_model
from planner.stored.formats.deepspeed.parts import of_one
from planner.stored.formats.deepspeed.universal import read_universal
from planner.stored.formats.deepspeed.zero import read_zero
from planner.stored.formats.nested import named_leaves
from planner.stored.moves import Held

__all__ = ["DeepSpeed", "read_deepspeed"]


@dataclass(frozen=True, slots=True)
class DeepSpeed:
    """`parameters`: (name, slot of the optimizer, or "" of the parameter itself) → where it lies; `others`: tensors of
    no parameter; `values`: what is no tensor; `files`: those that were looked at."""

    parameters: dict[tuple[str, str], Held]
    others: dict[str, Held] = field(default_factory=dict)
    values: dict[str, Any] = field(default_factory=dict)
    files: tuple[Path, ...] = ()


def read_deepspeed(place: Path) -> DeepSpeed:
    """The checkpoint in a folder, or the last of those in it.

    InputError where a file is missing, is of another checkpoint, or is not what DeepSpeed writes.
    """
    folder = folder_of(place)
    first = next((read_model(file) for file in folder.models.values()), Model(folder.place))
    # Ranks differ in what they hold of parameters that are not trained alone.
    models = {rank: read_model(file) for rank, file in folder.models.items()} if first.frozen else {0: first}
    try:
        return _found(folder, first, models)
    except OSError as e:
        raise InputError(f"{folder.place}: cannot be read: {e.strerror} ({e.filename})") from None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError) as e:
        raise InputError(f"{folder.place}: expected a checkpoint of DeepSpeed, found {e}; save it anew") from None


def _found(folder: Folder, first: Model, models: Mapping[int, Model]) -> DeepSpeed:
    files = (*folder.models.values(), *folder.optimizers.values())
    parameters: dict[tuple[str, str], Held] = {}
    values: dict[str, Any] = {}
    others: dict[str, Held] = {}
    if folder.universal is not None:
        found = read_universal(folder.universal, first)
        parameters, values, files = found.parameters, found.values, (*files, *found.files)
    elif folder.optimizers:
        parameters, values = read_zero(folder.optimizers, first)
    elif any(first.shapes):
        raise InputError(
            f"{folder.place}: lacks the files of the optimizer (…mp_rank_00_optim_states.pt), which ZeRO divided, as "
            f"{first.file.name} says: bring them back, or give that file itself for what it has"
        )
    else:
        _without_zero(first, parameters, others, values)
    # Of ZeRO 3 the model has empty tensors in place of what ranks divide.
    divided = first.file.name.startswith("zero_pp_rank_")
    held = frozen(models) if divided else {}
    for name, array in first.module.items():
        known = (name, "") in parameters or name in first.shared or name in held
        if not known and (array.nbytes or not divided):
            parameters[name, ""] = of_one(array)
    for name, each in held.items():
        parameters.setdefault((name, ""), each)
    for alias, name in first.shared.items():
        if (name, "") in parameters:
            parameters.setdefault((alias, ""), parameters[name, ""])
    for key, value in first.rest.items():
        named = [(f"{key}.{n}" if n else key, v) for n, v in named_leaves(value)]
        if not any(isinstance(v, StoredArray) for _, v in named):
            named = [(key, value)]
        for name, leaf in named:
            if isinstance(leaf, StoredArray):
                others[name] = of_one(leaf)
            elif leaf is not None:
                values[name] = leaf
    return DeepSpeed(parameters, others, values, files)


def _without_zero(
    model: Model, parameters: dict[tuple[str, str], Held], others: dict[str, Held], values: dict[str, Any]
) -> None:
    """An optimizer as PyTorch saves it, which has numbers for parameters, and their names if it was made with them; and
    beside it weights in float32, where the training has another type."""
    if model.optimizer is None:
        return
    found = model.optimizer if isinstance(model.optimizer, dict) else {}
    inside = "optimizer_state_dict" if isinstance(found.get("optimizer_state_dict"), dict) else ""
    state = found[inside] if inside else found
    names: dict[str, str] = {}
    for g, group in enumerate(state.get("param_groups", ())):
        for i, (n, name) in enumerate(zip(group["params"], group.get("param_names", ()), strict=False)):
            names[f"{inside}{'.' if inside else ''}state.{n}"] = str(name)
            names[f"fp32_groups.{g}.{i}"] = str(name)
    if state.get("param_groups"):
        values["optimizer.param_groups"] = state["param_groups"]
    for path, leaf in named_leaves(found):
        if path.startswith(f"{inside}.param_groups." if inside else "param_groups."):
            continue
        front, _, slot = path.rpartition(".")
        name, slot = (names[path], "") if names.get(path) else (names.get(front, ""), slot)
        if not isinstance(leaf, StoredArray):
            values[f"optimizer.{path}"] = leaf
        elif name in model.module:
            parameters[name, slot] = of_one(leaf)
        else:
            others[f"optimizer.{path}"] = of_one(leaf)
