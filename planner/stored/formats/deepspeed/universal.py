"""Universal checkpoints: of every parameter a folder with a file of its weight and one of each slot of the optimizer.

| file in `zero/` | what `torch.load` gives |
|---|---|
| `P/fp32.pt`, `P/exp_avg.pt`, … | `{"param": the tensor, "cat_dim": 0}`; of ZeRO 3 the flattened tensor itself |
| `P/step.pt` | the count of steps; of ZeRO 3 it is in `optimizer_state.pt` alone |
| `optimizer_state.pt` | what the optimizer keeps once |
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from planner.errors import InputError
from planner.stored.arrays import StoredArray
from planner.stored.formats.deepspeed.model import Model
from planner.stored.formats.deepspeed.parts import given, of_one
from planner.stored.formats.torch_file import read_saved
from planner.stored.moves import Held

__all__ = ["OPTIMIZER", "WEIGHT", "Universal", "read_universal"]

OPTIMIZER: Final = "optimizer_state.pt"
WEIGHT: Final = "fp32"
_LAYOUT: Final = (
    "base_optimizer_state_step", "optimizer_state_dict", "zero_stage", "group_paddings", "param_alignment_paddings",
    "partition_count", "ds_version", "fp32_flat_groups", "universal_checkpoint_info", "param_groups",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Universal:
    """`parameters`: (name, slot or "") → where it lies."""

    parameters: dict[tuple[str, str], Held]
    values: dict[str, Any]
    files: tuple[Path, ...]


def read_universal(zero: Path, model: Model) -> Universal:
    """InputError where a file is not as DeepSpeed writes it."""
    shapes = {name: shape for group in model.shapes for name, shape in group.items()}
    out: dict[tuple[str, str], Held] = {}
    files: list[Path] = []
    for folder in sorted(f for f in zero.iterdir() if f.is_dir() and not f.name.startswith(".")):
        name = folder.name
        if name in model.buffers and name in model.module:
            continue  # the model has it in its own type
        found = {f.stem: f for f in sorted(folder.iterdir()) if f.suffix == ".pt"}
        if WEIGHT not in found:
            raise InputError(f"{folder}: has no {WEIGHT}.pt; bring it back")
        for slot, file in sorted(found.items(), key=lambda f: f[0] != WEIGHT):
            held = _read(file, shapes.get(name), slot)
            out[name, "" if slot == WEIGHT else slot] = held
            files.append(file)
            if slot not in (WEIGHT, "step") and held.shape != out[name, ""].shape:
                raise InputError(
                    f"{file}: expected the shape {list(out[name, ''].shape)} of its parameter, found "
                    f"{list(held.shape)}; save it anew"
                )
    state = zero / OPTIMIZER
    values: dict[str, Any] = {}
    if state.is_file():
        files.append(state)
        values = _once(state, out)
    lacking = [n for n in shapes if (n, "") not in out]
    if lacking:
        raise InputError(f"{zero}: lacks {lacking[0]!r:.80}, which {model.file.name} names; bring it back")
    return Universal(out, values, tuple(files))


def _read(file: Path, shape: tuple[int, ...] | None, slot: str) -> Held:
    try:
        found = read_saved(file)
        if slot == "step":
            if isinstance(found, (int, float)) and not isinstance(found, bool):
                return given(found)
            if not isinstance(found, StoredArray) or math.prod(found.shape) != 1:
                raise ValueError(f"{type(found).__name__} in place of a number")
            return of_one(found)
        bare = isinstance(found, StoredArray)
        tensor = found if bare else found["param"] if isinstance(found, dict) else None
        if not isinstance(tensor, StoredArray):
            raise ValueError("no tensor in it")
        if bare and shape is None:
            raise ValueError("a flattened tensor, of which no file of the model says the shape")
        if bare and shape is not None:
            if tensor.strides is not None or math.prod(tensor.shape) != math.prod(shape):
                raise ValueError(f"{list(tensor.shape)} in place of {list(shape)}")
            tensor = replace(tensor, shape=shape)
        return of_one(tensor)
    except OSError as e:
        raise InputError(f"{file}: cannot be read: {e.strerror}") from None
    except (ValueError, KeyError, TypeError, RecursionError, OverflowError) as e:
        raise InputError(f"{file}: expected a tensor of a universal checkpoint, found {e}; save it anew") from None


def _once(file: Path, out: dict[tuple[str, str], Held]) -> dict[str, Any]:
    """Values of the optimizer; its count of steps goes to all parameters that it updates."""
    try:
        found = read_saved(file)
        if not isinstance(found, dict):
            raise ValueError(f"{type(found).__name__} in place of a dictionary")
        inner = found.get("optimizer_state_dict")
        states = inner.get("state") if isinstance(inner, dict) else None
        step = next((s["step"] for s in states.values() if isinstance(s, dict) and "step" in s), None) if (
            isinstance(states, dict)
        ) else None  # fmt: skip
        held = None
        if isinstance(step, StoredArray) and math.prod(step.shape) == 1:
            held = of_one(step)
        elif isinstance(step, (int, float)) and not isinstance(step, bool):
            held = given(step)
        if held is not None:
            for name in [n for n, slot in out if slot == "exp_avg"]:
                out.setdefault((name, "step"), held)
        values = {f"optimizer.{k}": v for k, v in found.items() if k not in _LAYOUT and v is not None}
        if found.get("param_groups"):
            values["optimizer.param_groups"] = found["param_groups"]
        return values
    except OSError as e:
        raise InputError(f"{file}: cannot be read: {e.strerror}") from None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError) as e:
        raise InputError(f"{file}: expected what an optimizer keeps once, found {e}; save it anew") from None
