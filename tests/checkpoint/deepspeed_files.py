"""DeepSpeed's files of a few numpy arrays, laid out as its own code lays them out: flattened, padded, cut and put
behind each other.  Padding is NaN, so that what is read of it shows."""

from __future__ import annotations

import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from planner.stored.formats.deepspeed.saving import SavedFile
from planner.stored.formats.layout import Entry
from planner.stored.formats.pickled import Call, Made, Name
from tests.checkpoint.layouts import Whole, write_arranged

SLOTS = ("exp_avg", "exp_avg_sq")
Groups = list[list[str]]


def save(path: Path, value: Any) -> None:
    """As torch.save writes a value with arrays in it."""
    arrays: list[np.ndarray[Any, Any]] = []
    entries: list[Entry] = []

    def placed(v: Any) -> Any:
        if isinstance(v, np.ndarray):
            arrays.append(v)
            entries.append(Entry(str(len(entries)), v.dtype, v.shape))
            return entries[-1]
        if isinstance(v, dict):
            return {k: placed(x) for k, x in v.items()}
        return [placed(x) for x in v] if isinstance(v, list) else v

    form = placed(value)
    file = SavedFile(lambda _: form)
    write_arranged(path, file.arrange(entries, {}), entries, arrays)


def size(shape: tuple[int, ...]) -> Call:
    return Call(Name("torch", "Size"), (shape,))


def state_of(rng: random.Random, shapes: Mapping[str, tuple[int, ...]]) -> Whole:
    """Weights under P, slots under P.exp_avg and P.exp_avg_sq."""
    numbers = np.random.default_rng(rng.getrandbits(32))
    names = [n + s for n in shapes for s in ("", *(f".{slot}" for slot in SLOTS))]
    return {n: numbers.standard_normal(shapes[n.removesuffix(".exp_avg_sq").removesuffix(".exp_avg")])
            .astype(np.float32) for n in names}  # fmt: skip


def write_zero(
    folder: Path, state: Whole, groups: Groups, ranks: int, stage: int, *, step: float = 5.0, mapped: bool = True,
    aligned: int = 0, module: Mapping[str, Any] | None = None, more: Mapping[str, Any] | None = None,
) -> Path:  # fmt: skip
    """A step of ZeRO `stage`, of parameters in groups.  `mapped`: whether ranks say where parameters lie in them;
    `aligned`: elements behind each parameter; `module`: buffers."""
    place = folder / "global_step5"
    write = _write_divided if stage == 3 else _write_ranges
    shapes = [{n: size(state[n].shape) for n in g} for g in groups]
    told = {"param_shapes": shapes, "buffer_names": list(module or {}), "shared_params": {}, "global_steps": 5,
            "dp_world_size": ranks, **(more or {})}  # fmt: skip
    write(place, state, groups, ranks, stage, step, mapped, aligned)
    for r in range(ranks if stage == 3 else 1):
        prefix = f"zero_pp_rank_{r}_" if stage == 3 else ""
        here = {n: np.zeros(0, np.float16) if stage == 3 else state[n].astype(np.float16) for g in groups for n in g}
        save(place / f"{prefix}mp_rank_00_model_states.pt", {"module": here | dict(module or {}), **told})
    (folder / "latest").write_text("global_step5", encoding="utf-8")
    return place


def _optimizer(arrays: list[dict[str, Any]], step: float) -> dict[str, Any]:
    states = {g: {"step": np.array(step, np.float32), **a} for g, a in enumerate(arrays)}
    return {"state": states, "param_groups": [{"lr": 0.1, "betas": (0.9, 0.99), "params": [g]} for g in states]}


def _write_ranges(
    place: Path, state: Whole, groups: Groups, ranks: int, stage: int, step: float, mapped: bool, aligned: int
) -> None:
    pad = np.full(aligned, np.nan, np.float32)
    for r in range(ranks):
        flat, arrays, mappings, paddings = [], [], [], []
        for g in groups:
            count = sum(state[n].size + aligned for n in g)
            each = -(-count // (2 * ranks)) * 2
            low, high = r * each, (r + 1) * each
            padding = max(0, min(each, high - count))

            def whole(slot: str, g: list[str] = g, total: int = ranks * each) -> np.ndarray[Any, Any]:
                parts = [x for n in g for x in (state[n + slot].reshape(-1), pad)]
                out = np.concatenate([np.zeros(0, np.float32), *parts])
                return np.concatenate([out, np.full(total - out.size, np.nan, np.float32)])

            flat.append(whole("")[low : high - padding])
            arrays.append({s: whole(f".{s}")[low:high] for s in SLOTS})
            at, here = 0, {}
            for n in g:
                first, last = max(low, at), min(high, at + state[n].size)
                if first < last:
                    address = {"numel": last - first, "start": first - low}
                    here[n] = Made(Name("deepspeed.utils.tensor_fragment", "fragment_address"), address)
                at += state[n].size + aligned
            mappings.append(here)
            paddings.append(padding)
        found = {
            "base_optimizer_state": _optimizer(arrays, step), "single_partition_of_fp32_groups": flat,
            "zero_stage": Call(Name("deepspeed.runtime.zero.config", "ZeroStageEnum"), (stage,)),
            "group_paddings": paddings, "param_alignment_paddings": [[aligned] * len(g) for g in groups],
            "partition_count": [ranks] * len(groups), "clip_grad": 1.0,
        } | ({"param_slice_mappings": mappings} if mapped else {})  # fmt: skip
        save(place / f"zero_pp_rank_{r}_mp_rank_00_optim_states.pt", {"optimizer_state_dict": found})


def _write_divided(
    place: Path, state: Whole, groups: Groups, ranks: int, stage: int, step: float, mapped: bool, aligned: int
) -> None:
    for r in range(ranks):

        def part(name: str, r: int = r) -> np.ndarray[Any, Any]:
            value = state[name].reshape(-1)
            each = -(-value.size // ranks)
            filled = np.concatenate([value, np.full(each * ranks - value.size, np.nan, np.float32)])
            return filled[r * each : (r + 1) * each]

        def behind(slot: str, g: list[str]) -> np.ndarray[Any, Any]:
            return np.concatenate([np.zeros(0, np.float32), *(part(n + slot) for n in g)])

        found = {
            "optimizer_state_dict": _optimizer([{s: behind(f".{s}", g) for s in SLOTS} for g in groups], step),
            "fp32_flat_groups": [behind("", g) for g in groups], "zero_stage": stage, "partition_count": ranks,
        }  # fmt: skip
        save(place / f"zero_pp_rank_{r}_mp_rank_00_optim_states.pt", {"optimizer_state_dict": found})
