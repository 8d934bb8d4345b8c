"""A universal checkpoint of DeepSpeed: which files it has, and which tensors lie in them.

    latest, latest_universal                        the name of the folder
    global_stepN_universal/
        zero/P/fp32.pt, exp_avg.pt, …, step.pt      of each parameter that is trained
        zero/optimizer_state.pt                     what the optimizer keeps once
        mp_rank_00_model_states.pt                  all else: for ZeRO 1 and 2
        zero_pp_rank_0_mp_rank_00_model_states.pt   the same without tensors of the model: for ZeRO 3

For ZeRO 3 of DeepSpeed up to 0.19.0 a file of `zero/P` is the tensor itself, where others look for it in a dictionary.
What was no checkpoint of DeepSpeed before does not say the groups of parameters nor their rates: then those of the
training that loads it stay, for which there are as many empty groups as any has.  Sources: load_checkpoint in
deepspeed/runtime/engine.py, load_hp_checkpoint_state in runtime/base_optimizer.py and runtime/zero/stage3.py.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import numpy as np

from planner.checkpoint.naming import Tensor, numbered
from planner.checkpoint.options import UNIVERSAL
from planner.checkpoint.source import Checkpoint
from planner.checkpoint.steps import count_of
from planner.errors import InputError
from planner.stored.formats.deepspeed.saving import VERSION, SavedFile, bytes_of_saved, loss_scaler
from planner.stored.formats.deepspeed.universal import OPTIMIZER, WEIGHT
from planner.stored.formats.layout import Entry
from planner.stored.formats.nested import is_plain
from planner.stored.formats.pickled import Call, Name
from planner.stored.moves import Held
from planner.stored.writing import FileToWrite
from planner.transfer.pieces import Pieces, whole

__all__ = ["UniversalFiles", "universal_files"]


_GROUPS: Final = 256  # of parameters: more than any training has
_LONGEST: Final = 255  # bytes of the name of a folder
_PREFIX: Final = "optimizer."
# Of the file of the model: what says how ranks hold it, and what load_checkpoint takes for itself.
_OURS: Final = ("module", "optimizer", "dp_world_size", "mp_world_size", "ds_version", "universal_checkpoint_info")
_RESERVED: Final = (*_OURS, "global_steps", "global_samples", "skipped_steps", "lr_scheduler")


@dataclass(frozen=True, slots=True)
class UniversalFiles:
    """`files`, `small` ones, and of each tensor (its pieces, the file of each holder); `carried`: values of the source
    that are written."""

    files: list[FileToWrite]
    small: dict[str, bytes]
    pieces: dict[str, tuple[Pieces, dict[int, str]]]
    carried: frozenset[str]


def universal_files(source: Checkpoint, names: Mapping[str, str], kind: str) -> UniversalFiles:
    """The files of these tensors of a source, under these names.  InputError where DeepSpeed could not load them."""
    bare = kind == UNIVERSAL[1]
    said = {n: source.said[n] for n in names}
    trained = _trained(source, said)
    _check(source, said, trained, names)
    counted = [n for n, t in said.items() if t.slot == "step"]
    step = _step(source, counted)
    folder = f"global_step{step}_universal"
    optimizer = f"{folder}/zero/{OPTIMIZER}"
    models = [f"{folder}/{prefix}mp_rank_00_model_states.pt" for prefix in ("", "zero_pp_rank_0_")[bare:]]
    state, told, carried = _values(source, step)
    made = UniversalFiles([], {}, {}, carried)
    # A tensor of the source's own Adam stays one: PyTorch's adds to it, where DeepSpeed's counts by a number.
    as_tensor = bool(counted) and source.tensors[counted[0]].dtype.kind == "f"
    entries = {n: Entry(names[n], _element(source.tensors[n], t, trained), source.tensors[n].shape)
               for n, t in said.items()}  # fmt: skip
    rest: dict[str, Entry] = {}
    for name, t in said.items():
        path = f"{folder}/zero/{t.parameter}/{t.slot or WEIGHT}.pt"
        holders = {0: path}
        if t.parameter not in trained:
            rest[name] = entries[name]
            holders = dict(enumerate(models[:1] if t.parameter else models))
        elif t.slot == "step" and not as_tensor:
            made.small[path] = bytes_of_saved(step)
            continue
        else:
            form = SavedFile(_bare if bare or t.slot == "step" else _wrapped)
            made.files.append(FileToWrite(path, form, (entries[name],), {}))
        if as_tensor and name == counted[0]:
            holders[1] = optimizer
        made.pieces[name] = whole(source.tensors[name].shape, sorted(holders)), holders
    once = (entries[counted[0]],) if as_tensor else ()
    made.files.append(FileToWrite(optimizer, SavedFile(partial(_state, state, step if counted else None)), once, {}))
    if bare:
        shapes = {
            t.parameter: source.tensors[n].shape for n, t in said.items() if t.parameter in trained and not t.slot
        }
        told |= {"param_shapes": [{p: Call(Name("torch", "Size"), (shape,)) for p, shape in shapes.items()}]}
    of_model = {e.name: said[n].parameter for n, e in rest.items()}
    for path in models:
        held = tuple(e for e in rest.values() if path == models[0] or not of_model[e.name])
        made.files.append(FileToWrite(path, SavedFile(partial(_model, told, of_model)), held, {}))
    made.small.update(dict.fromkeys(("latest", "latest_universal"), folder.encode()))
    return made


def _trained(source: Checkpoint, said: Mapping[str, Tensor]) -> set[str]:
    """Parameters of which the optimizer keeps something; all of them, where it keeps nothing of any."""
    kept = {t.parameter for t in said.values() if t.slot}
    floats = {
        t.parameter for n, t in said.items() if not t.slot and t.parameter and source.tensors[n].dtype.kind in "fV"
    }
    return kept or floats


def _check(source: Checkpoint, said: Mapping[str, Tensor], trained: set[str], names: Mapping[str, str]) -> None:
    count = numbered(list(names.values()))
    if count is not None:
        raise InputError(
            f"{source.place}: {count}: the optimizer's state has numbers for parameters: save it under their names, or "
            "leave it out with --skip"
        )
    shapes = {t.parameter: source.tensors[n].shape for n, t in said.items() if t.parameter and not t.slot}
    counted = {t.parameter for t in said.values() if t.slot == "step"}
    for name, t in said.items():
        shape = source.tensors[name].shape
        if not t.parameter:
            if names[name] in _RESERVED:
                raise InputError(
                    f"{source.place}: tensor {name} has a name that DeepSpeed uses; leave it out with --skip"
                )
            continue
        if not _is_name(t.parameter):
            raise InputError(
                f"{source.place}: parameter {t.parameter!r:.80}: expected a name that a folder can have, as DeepSpeed "
                "makes one of it; say another with --map"
            )
        if t.parameter not in shapes:
            raise InputError(
                f"{source.place}: has {name} without the parameter {t.parameter}; leave it out with --skip"
            )
        fits = math.prod(shape) == 1 if t.slot == "step" else shape == shapes[t.parameter]
        if not fits:
            expected = "one number" if t.slot == "step" else f"the shape {list(shapes[t.parameter])}"
            raise InputError(
                f"{source.place}: {name}: expected {expected}, as DeepSpeed demands, found {list(shape)}; leave it out "
                "with --skip"
            )
        if t.slot == "exp_avg" and t.parameter not in counted:
            raise InputError(
                f"{source.place}: has {name} and no count of steps ({t.parameter}.step, or global_step of MindSpore), "
                "without which Adam does not go on; leave the state out with --skip"
            )


def _is_name(parameter: str) -> bool:
    plain = not set(parameter) & {"/", "\0"} and not parameter.startswith(".") and parameter != OPTIMIZER
    try:
        return plain and len(parameter.encode()) <= _LONGEST
    except UnicodeEncodeError:
        return False


def _step(source: Checkpoint, counted: Sequence[str]) -> int:
    """How many updates were made."""
    counts = {count_of(source.tensors[n]): n for n in counted}
    if len(counts) > 1:
        first, second = list(counts.items())[:2]
        raise InputError(
            f"{source.place}: expected one count of steps, as DeepSpeed has it, found {first[0]} ({first[1]}) and "
            f"{second[0]} ({second[1]}); leave those of one optimizer with --skip"
        )
    found = next(iter(counts), source.values.get("global_steps", 0))
    return found if isinstance(found, int) and 0 <= found < 1 << 62 else 0


def _element(held: Held, tensor: Tensor, trained: set[str]) -> np.dtype[Any]:
    """Weights of an optimizer are in float32: what has less is the same number in it."""
    is_master = tensor.parameter in trained and not tensor.slot
    return np.dtype(np.float32) if is_master and held.dtype.itemsize < 4 else held.dtype


def _values(source: Checkpoint, step: int) -> tuple[dict[str, Any], dict[str, Any], frozenset[str]]:
    """(what the optimizer keeps once, what the file of the model says, names of the source's values among them)."""
    found = source.values if source.kind == "deepspeed" else {}
    told = {k: v for k, v in found.items() if not k.startswith(_PREFIX) and k not in _OURS and is_plain(v)}
    wanted = ["param_groups", "clip_grad"]
    state = {k: v for k in wanted if (v := found.get(_PREFIX + k)) is not None and is_plain(v)}
    scaler = loss_scaler(found.get(f"{_PREFIX}loss_scaler"))
    if scaler is not None:
        scaling = {k: found.get(_PREFIX + k) for k in ("dynamic_loss_scale", "overflow")}
        state |= {"loss_scaler": scaler} | {k: v for k, v in scaling.items() if isinstance(v, bool)}
    carried = frozenset({*told, *(_PREFIX + k for k in state)})
    groups = state.get("param_groups")
    groups = [g for g in groups if isinstance(g, dict)] if isinstance(groups, list) else []
    state["param_groups"] = groups + [{"params": []} for _ in range(_GROUPS - len(groups))]
    ours = {
        "optimizer": None, "dp_world_size": 0, "mp_world_size": 1, "ds_version": VERSION,
        "universal_checkpoint_info": {"universal_checkpoint_version": 0.4},
    }  # fmt: skip
    # No training has 0 ranks: one that asks for it as for a checkpoint of ZeRO is refused, and does not go on without
    # the optimizer's state.
    return state, {"global_steps": step, "skipped_steps": 0, "lr_scheduler": None} | told | ours, carried


def _state(kept: Mapping[str, Any], step: int | None, entries: Mapping[str, Entry]) -> dict[str, Any]:
    """`optimizer_state.pt`: ZeRO 1 and 2 look for groups in it; ZeRO 3 one level deeper, and takes the first for all,
    so that it gets one only where all are alike."""
    groups = [{k: v for k, v in g.items() if k != "params"} for g in kept["param_groups"]]
    groups = [g for g in groups if g]
    alike = groups[0] if groups and all(g == groups[0] for g in groups) else {}
    once = {} if step is None else {0: {"step": next(iter(entries.values()), step)}}
    numbers = (
        [[g] for g in range(len(groups))] if alike else [[]]
    )  # as many as there were, for versions that count them
    inner = {"state": once, "param_groups": [{**alike, "params": n} for n in numbers]}
    return {**kept, "optimizer_state_dict": inner, "ds_version": VERSION}


def _model(told: Mapping[str, Any], parameters: Mapping[str, str], entries: Mapping[str, Entry]) -> dict[str, Any]:
    """The file of the model: tensors of parameters that are not trained, and others under names of their own."""
    module = {p: e for n, e in entries.items() if (p := parameters[n])}
    return {**told, "module": module, **{n: e for n, e in entries.items() if not parameters[n]}}


def _wrapped(entries: Mapping[str, Entry]) -> dict[str, Any]:
    return {"param": next(iter(entries.values())), "cat_dim": 0}


def _bare(entries: Mapping[str, Entry]) -> Entry:
    return next(iter(entries.values()))
