"""What ZeRO divides among ranks: flattened parameters in float32, and the state of their optimizer.

ZeRO 1 and 2 put the parameters of a group behind each other and cut that into one range for each rank; ZeRO 3 cuts
every parameter, and a rank puts its shards behind each other.  Padding is at ends alone, and is not read.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from planner.errors import InputError
from planner.stored.arrays import Files, StoredArray
from planner.stored.formats.deepspeed.model import Model, number, shards
from planner.stored.formats.deepspeed.parts import Flattened, given, of_one
from planner.stored.formats.pickled import Call
from planner.stored.formats.torch_file import read_saved
from planner.stored.moves import Held

__all__ = ["read_zero"]

_FLAT: Final = "fp32_flat_groups"  # of ZeRO 3
_PARTITIONS: Final = "single_partition_of_fp32_groups"  # of ZeRO 1 and 2
# What says how the partitions lie, and is not needed once they are read.
_LAYOUT: Final = (
    _FLAT, _PARTITIONS, "base_optimizer_state", "base_optimizer_state_step", "optimizer_state_dict", "zero_stage",
    "group_paddings", "param_alignment_paddings", "partition_count", "param_slice_mappings", "ds_version",
    "universal_checkpoint_info",
)  # fmt: skip
Part = tuple[int, int, int, int]  # rank, group, first element in it, elements
Parameters = dict[tuple[str, str], Held]


@dataclass(frozen=True, slots=True)
class _Rank:
    """Of each group the rank's flat array, and the state of the optimizer: arrays like it, and numbers."""

    file: Path
    groups: list[StoredArray]
    states: list[dict[str, Any]]
    found: Mapping[str, Any]


def read_zero(files: Mapping[int, Path], model: Model) -> tuple[Parameters, dict[str, Any]]:
    """((parameter, slot or "") → where it lies, other values).  InputError where a file does not fit the others."""
    if model.experts:
        raise InputError(
            f"{model.file}: has experts that ranks divide, which is not read as it is; convert it with "
            "python -m deepspeed.checkpoint.ds_to_universal, and give what that makes"
        )
    ranks = {rank: _read(file) for rank, file in files.items()}
    first = next(iter(ranks.values()))
    count = first.found.get("partition_count", len(ranks))
    counts = {number(n) for n in count} if isinstance(count, (list, tuple)) else {number(count)}
    if counts != {len(ranks)} or sorted(ranks) != list(range(len(ranks))):
        gone = [r for r in range(min(max(counts), 1 << 20)) if r not in ranks]
        raise InputError(
            f"{first.file.parent}: expected the optimizer of {' or '.join(map(str, sorted(counts)))} ranks, found "
            f"files of {len(ranks)}"
            + (f" (none of rank {gone[0]}); bring them back" if gone else "; leave those of one step")
        )
    for r in ranks.values():
        if (_FLAT in r.found) != (_FLAT in first.found) or len(r.groups) != len(first.groups):
            raise InputError(f"{r.file}: is of another checkpoint than {first.file.name}; leave files of one")
    lies = _shards(ranks, model) if _FLAT in first.found else _partitions(ranks, model)
    out: Parameters = {}
    with Files() as opened:
        counted = [_numbers(ranks, g, opened) for g in range(len(first.groups))]
    for name, (shape, parts) in lies.items():
        try:
            flattened = Flattened.of(shape, [p[3] for p in parts])
            arrays = [(ranks[r].groups[g], at) for r, g, at, _ in parts]
            out[name, ""] = flattened.held(arrays)
            groups = {g for _, g, _, _ in parts}
            for slot in _slots(ranks, parts):
                out[name, slot] = flattened.held([(_slot(ranks[r], g, slot), at) for r, g, at, _ in parts])
            for g in groups:
                out |= {(name, slot): held for slot, held in counted[g].items()}
        except ValueError as e:
            raise InputError(
                f"{first.file.parent}: parameter {name}: expected {list(shape)} as the model has it, found {e}; bring "
                "back the files of this step"
            ) from None
    values = {f"optimizer.{k}": v for k, v in first.found.items() if k not in _LAYOUT and v is not None}
    groups_of = _base(first.found)
    if isinstance(groups_of, dict) and groups_of.get("param_groups"):
        values["optimizer.param_groups"] = groups_of["param_groups"]
    return out, values


def _read(file: Path) -> _Rank:
    try:
        outer = read_saved(file)
        found = outer.get("optimizer_state_dict") if isinstance(outer, dict) else None
        if not isinstance(found, dict) or not (_FLAT in found or _PARTITIONS in found):
            raise ValueError(f"neither {_PARTITIONS} (of ZeRO 1 and 2) nor {_FLAT} (of ZeRO 3)")
        groups = list(found[_FLAT] if _FLAT in found else found[_PARTITIONS])
        for array in groups:
            if not isinstance(array, StoredArray) or len(array.shape) != 1:
                raise ValueError("a group of parameters that is no flat tensor")
        return _Rank(file, groups, _states(found, len(groups)), found)
    except OSError as e:
        raise InputError(f"{file}: cannot be read: {e.strerror}") from None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError) as e:
        raise InputError(f"{file}: expected an optimizer that ZeRO saved, found {e}; save it anew") from None


def _base(found: Mapping[str, Any]) -> Any:
    """The state of the optimizer that ZeRO wraps, as that saves it itself, or (elastic) a list of what groups have."""
    return found.get("optimizer_state_dict" if _FLAT in found else "base_optimizer_state")


def _states(found: Mapping[str, Any], groups: int) -> list[dict[str, Any]]:
    base = _base(found)
    held = base.get("state") if isinstance(base, dict) else dict(enumerate(base)) if isinstance(base, list) else {}
    if not isinstance(held, dict):
        raise ValueError(f"{type(held).__name__} in place of the optimizer's state")
    states: list[dict[str, Any]] = []
    said = base.get("param_groups") if isinstance(base, dict) else None
    for g in range(groups):
        state = held.get(g, {})
        if not isinstance(state, dict):
            raise ValueError(f"{type(state).__name__} in place of the state of group {g}")
        state = dict(state)
        if state and "step" not in state:  # DeepSpeed's own Adam counted for all parameters of a group
            inside = next((p for p in said or () if isinstance(p, dict) and g in p.get("params", ())), {})
            step = inside.get("step", found.get("base_optimizer_state_step"))
            state |= {} if step is None else {"step": step}
        states.append(state)
    return states


def _partitions(ranks: Mapping[int, _Rank], model: Model) -> dict[str, tuple[tuple[int, ...], list[Part]]]:
    """Of ZeRO 1 and 2: name → (shape, where its parts lie)."""
    first = next(iter(ranks.values()))
    if len(model.shapes) != len(first.groups):
        raise InputError(
            f"{model.file}: expected the shapes of {len(first.groups)} groups of parameters, as {first.file.name} has "
            f"them, found {len(model.shapes)}; leave files of one checkpoint"
        )
    out: dict[str, tuple[tuple[int, ...], list[Part]]] = {}
    paddings = first.found.get("param_alignment_paddings")
    for g, shapes in enumerate(model.shapes):
        told = {r: m for r, rank in ranks.items() if (m := _mapping(rank, g)) is not None}
        strange = [n for m in told.values() for n in m if n not in shapes]
        if strange:
            raise InputError(
                f"{first.file.parent}: {strange[0]!r:.80} is no parameter of {model.file.name}; leave files of one "
                "checkpoint"
            )
        if len(told) == len(ranks):
            for name, shape in shapes.items():
                here = [(r, *m[name]) for r, m in told.items() if name in m]
                out[name] = shape, [(r, g, at, n) for r, at, n in here if n]
            continue
        begin = 0
        for i, (name, shape) in enumerate(shapes.items()):
            count = sum(shards(shape, 1))
            out[name] = shape, _cut(ranks, g, begin, count)
            begin += count + (number(paddings[g][i]) if paddings else 0)
    return out


def _mapping(rank: _Rank, group: int) -> dict[str, tuple[int, int]] | None:
    """Parameter → (first element, elements) in the rank's array, where DeepSpeed says it: since 0.8."""
    told = rank.found.get("param_slice_mappings")
    if told is None:
        return None
    out = {}
    for name, where in told[group].items():
        state = where.state if isinstance(where, Call) else None
        if not isinstance(state, dict):
            raise ValueError(f"{rank.file.name}: {type(where).__name__} in place of the address of {name!r:.80}")
        at, count = number(state["start"]), number(state["numel"])
        if at < 0 or count < 0:
            raise ValueError(f"{rank.file.name}: {name!r:.80} at element {at}, {count} elements")
        out[str(name)] = at, count
    return out


def _cut(ranks: Mapping[int, _Rank], group: int, begin: int, count: int) -> list[Part]:
    """Where elements of a flat group lie, of which the ranks have ranges behind each other."""
    out: list[Part] = []
    low = 0
    for r, rank in ranks.items():
        high = low + rank.groups[group].shape[0]
        first, last = max(low, begin), min(high, begin + count)
        if first < last:
            out.append((r, group, first - low, last - first))
        low = high
    return out


def _shards(ranks: Mapping[int, _Rank], model: Model) -> dict[str, tuple[tuple[int, ...], list[Part]]]:
    """Of ZeRO 3: name → (shape, where its parts lie)."""
    out: dict[str, tuple[tuple[int, ...], list[Part]]] = {}
    edges = {r: _edges(rank.groups) for r, rank in ranks.items()}
    begin = 0
    for shapes in model.shapes:
        for name, shape in shapes.items():
            lengths = shards(shape, len(ranks))
            parts: list[Part] = []
            for r, length in zip(ranks, lengths, strict=True):
                parts += _within(r, edges[r], begin, length)
            out[name] = shape, parts
            begin += lengths[0]
    for r, rank in ranks.items():
        if edges[r][-1] != begin:
            raise InputError(
                f"{rank.file}: expected {begin:,} elements of the parameters that {model.file.name} names, found "
                f"{edges[r][-1]:,}; leave files of one checkpoint"
            )
    return out


def _edges(groups: Sequence[StoredArray]) -> list[int]:
    out = [0]
    for array in groups:
        out.append(out[-1] + array.shape[0])
    return out


def _within(rank: int, edges: Sequence[int], begin: int, length: int) -> list[Part]:
    """Elements of a rank's groups behind each other, cut where a group ends."""
    out: list[Part] = []
    for g, (low, high) in enumerate(itertools.pairwise(edges)):
        first, last = max(low, begin), min(high, begin + length)
        if first < last:
            out.append((rank, g, first - low, last - first))
    return out


def _is_divided(rank: _Rank, group: int, slot: str, value: Any) -> bool:
    """Whether what an optimizer keeps has an element for each of the group's, and is no number."""
    if not isinstance(value, StoredArray) or len(value.shape) != 1 or slot == "step":
        return False
    return value.shape != (1,) or rank.groups[group].shape[0] <= 1


def _slots(ranks: Mapping[int, _Rank], parts: Sequence[Part]) -> list[str]:
    if not parts:
        return []
    r, g, _, _ = parts[0]
    return [slot for slot, value in ranks[r].states[g].items() if _is_divided(ranks[r], g, slot, value)]


def _slot(rank: _Rank, group: int, slot: str) -> StoredArray:
    found = rank.states[group].get(slot)
    if not isinstance(found, StoredArray):
        raise ValueError(f"no {slot} in {rank.file.name}")
    return found


def _numbers(ranks: Mapping[int, _Rank], group: int, files: Files) -> dict[str, Held]:
    """What an optimizer keeps once for a group, such as the count of its steps; it has to be the same on all ranks."""
    out = {}
    first = next(iter(ranks.values()))
    for slot, value in first.states[group].items():
        if _is_divided(first, group, slot, value):
            continue
        if isinstance(value, StoredArray):
            expected = _value(value, files)
            same = all(isinstance(v := r.states[group].get(slot), StoredArray) and v.shape == value.shape
                       and _value(v, files) == expected for r in ranks.values())  # fmt: skip
            out[slot] = of_one(value)
        elif isinstance(value, (int, float)) and not isinstance(value, bool):
            same = all(r.states[group].get(slot) == value for r in ranks.values())
            out[slot] = given(value)
        else:
            continue
        if not same:
            raise InputError(
                f"{first.file.parent}: {slot} of the optimizer differs between ranks; leave files of one step"
            )
    return out


def _value(array: StoredArray, files: Files) -> bytes:
    if array.nbytes > 1 << 10:
        raise ValueError(f"{array.file.name}: an array {list(array.shape)} in place of a number")
    return files.read(array, [(0, n) for n in array.shape]).tobytes()
