"""Which files of a folder are DeepSpeed's.

| | of ZeRO 0, 1, 2 | of ZeRO 3 |
|---|---|---|
| the model | `mp_rank_00_model_states.pt` | `zero_pp_rank_D_mp_rank_00_model_states.pt` of each rank D |
| the optimizer, of each rank D | `zero_pp_rank_D_mp_rank_00_optim_states.pt`, or `bf16_zero_pp_…` | the same |

A universal checkpoint has files of the model like these, and `zero/PARAMETER/fp32.pt`.  Such a folder has the name of
a step; one above it has a file `latest`, or `latest_universal`, with that name in it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from planner.errors import InputError

__all__ = ["Folder", "folder_of", "is_deepspeed"]

_MODEL: Final = re.compile(r"(?:zero_pp_rank_(\d{1,7})_)?mp_rank_(\d{1,5})_model_states\.pt")
_OPTIMIZER: Final = re.compile(r"(?:bf16_|fp16_)?zero_pp_rank_(\d{1,7})_mp_rank_(\d{1,5})_?optim_states\.pt")
_LATEST: Final = ("latest", "latest_universal")
_ZERO: Final = "zero"
_LONGEST: Final = 1 << 12  # bytes of a name


@dataclass(frozen=True, slots=True)
class Folder:
    """`models` and `optimizers`: files by data-parallel rank; `universal`: the folder of parameters, if it is that."""

    place: Path
    models: dict[int, Path]
    optimizers: dict[int, Path]
    universal: Path | None = None


def is_deepspeed(place: Path) -> bool:
    """Whether a folder is a checkpoint of DeepSpeed, or says which of those in it is the last.

    A training by Hugging Face's Trainer leaves its own files beside, which stay when a step is removed.
    """
    if _is_step(place):
        return True
    if not any((place / name).is_file() for name in _LATEST):
        return False
    try:
        return _latest(place) is not None
    except InputError:
        return not any(f.suffix == ".safetensors" for f in place.iterdir())


def _is_step(place: Path) -> bool:
    if not place.is_dir():
        return False
    if any(_MODEL.fullmatch(f.name) or _OPTIMIZER.fullmatch(f.name) for f in place.iterdir()):
        return True
    zero = place / _ZERO
    return zero.is_dir() and any((f / "fp32.pt").is_file() for f in zero.iterdir())


def folder_of(place: Path) -> Folder:
    """The files of a folder, or of the step in it that is the last.  InputError where they are not of one checkpoint,
    or in a form that is not read."""
    step = place if _is_step(place) else _latest(place)
    names = sorted(f.name for f in step.iterdir())
    experts = [n for n in names if n.endswith(".pt") and ("expert_" in n or n.startswith("expp_rank_"))]
    stages = [n for n in names if n.startswith("layer_") and n.endswith("model_states.pt") and n not in experts]
    if (step / _ZERO).is_dir():
        twice = {"mp_rank_00_model_states.pt", "zero_pp_rank_0_mp_rank_00_model_states.pt"} <= set(names)
        names = [n for n in names if not (twice and n.startswith("zero_pp_rank_"))]  # one file for each way to load it
        return Folder(step, _by_rank(step, names, _MODEL), {}, step / _ZERO)
    found = Folder(step, _by_rank(step, names, _MODEL), _by_rank(step, names, _OPTIMIZER))
    tensor = [n for n in names if (m := _MODEL.fullmatch(n) or _OPTIMIZER.fullmatch(n)) and int(m[2])]
    for which, what in ((experts, "experts"), (stages, "pipeline stages"), (tensor, "tensor-parallel ranks")):
        if which:
            raise InputError(
                f"{step}: has files of {what} ({which[0]}), which are not read as they are; convert it with "
                "python -m deepspeed.checkpoint.ds_to_universal, and give what that makes"
            )
    if not found.models:
        raise InputError(f"{step}: lacks the files of the model (…mp_rank_00_model_states.pt); bring them back")
    return found


def _latest(place: Path) -> Path:
    file = next(place / name for name in _LATEST if (place / name).is_file())
    try:
        with file.open("rb") as opened:
            tag = opened.read(_LONGEST).decode("utf-8").strip()
        step = place / tag
        inside = bool(tag) and "\0" not in tag and step.resolve().is_relative_to(place.resolve())
    except (OSError, ValueError, RuntimeError) as e:
        raise InputError(f"{file}: expected the name of a folder beside it, found {e}") from None
    if not inside or step.resolve() == place.resolve():
        raise InputError(f"{file}: expected the name of a folder beside it, found {tag!r:.80}")
    if not _is_step(step):
        raise InputError(
            f"{file}: names {tag!r:.80}, which is no checkpoint of DeepSpeed; bring it back, or give the folder of "
            "another step"
        )
    return step


def _by_rank(step: Path, names: list[str], pattern: re.Pattern[str]) -> dict[int, Path]:
    """Of the first tensor-parallel rank; others have the same of what is read here."""
    out: dict[int, Path] = {}
    for name in names:
        m = pattern.fullmatch(name)
        if m is None or int(m[2]):
            continue
        rank = int(m[1] or 0)
        if rank in out:
            raise InputError(f"{step}: rank {rank} has {out[rank].name} and {name}; leave that of one checkpoint")
        out[rank] = step / name
    return dict(sorted(out.items()))
