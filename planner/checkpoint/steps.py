"""How many updates an optimizer has made: MindSpore and Megatron count them once (`global_step`), PyTorch beside each
parameter."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from planner.checkpoint.naming import Tensor
from planner.errors import InputError
from planner.stored.arrays import Files, StoredArray
from planner.stored.moves import Held
from planner.transfer.pieces import whole

__all__ = ["COUNT", "count_of", "with_steps"]

COUNT = "global_step"


def with_steps(
    tensors: Mapping[str, Held], said: Mapping[str, Tensor], style: str
) -> tuple[dict[str, Held], dict[str, Tensor]]:
    """With the count as a style of names has it, where the tensors have it in the other way.

    Counts that differ between parameters stay as they are: one number could not say them.
    """
    held, what = dict(tensors), dict(said)
    if style in ("mindspore", "megatron"):
        _once(held, what)
    elif style == "torch":
        _everywhere(held, what)
    return held, what


def _once(held: dict[str, Held], what: dict[str, Tensor]) -> None:
    names = [n for n, t in what.items() if t.slot == "step" and t.parameter]
    counts = {count_of(held[n]) for n in names}
    if len(counts) != 1 or COUNT in held:
        return
    for n in names:
        del held[n], what[n]
    held[COUNT] = _given(np.array([counts.pop()], np.int32))
    what[COUNT] = Tensor(COUNT)


def _everywhere(held: dict[str, Held], what: dict[str, Tensor]) -> None:
    counted = {t.parameter for t in what.values() if t.slot == "step"}
    updated = [t.parameter for t in what.values() if t.slot in ("exp_avg", "momentum_buffer")]
    if COUNT not in held or held[COUNT].shape not in ((), (1,)) or counted & set(updated) or not updated:
        return
    count = count_of(held[COUNT])
    del held[COUNT], what[COUNT]
    adam = {t.parameter for t in what.values() if t.slot == "exp_avg"}  # SGD counts nothing
    for parameter in (p for p in updated if p in adam):
        name = f"{parameter}.step"
        held[name] = _given(np.array(count, np.float32))
        what[name] = Tensor(name, parameter, "step")


def count_of(held: Held) -> int:
    """The count that a tensor of one element says.  InputError where it is no number."""
    array = held.arrays[int(held.pieces.holders[0])]
    with Files() as files:
        found = files.read(array, [(0, n) for n in array.shape]).reshape(-1)[0]
    if not 0 <= found < 1 << 31:  # MindSpore has 32 bits for it
        raise InputError(f"{array.file}: expected a count of an optimizer's steps, found {found}; save it anew")
    return int(found)


def _given(value: np.ndarray) -> Held:
    """A tensor that no file has."""
    array = StoredArray(Path("."), 0, value.dtype, value.shape, data=value.tobytes())
    return Held(whole(value.shape), (array,), value.dtype)
