"""What is wanted of a transformation, and what came of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from planner.checkpoint.renaming import Rule
from planner.stored.formats.registry import FORMATS

__all__ = ["FORMAT_NAMES", "Options", "Transformed"]

FORMAT_NAMES: Final = (*FORMATS, "huggingface", "dcp", "deepspeed", "deepspeed-zero3")


@dataclass(frozen=True, slots=True)
class Options:
    """`format`: of the target's files, that of the source if empty; `ranks`: which to write, all if empty; `memory`:
    bytes that are held at once; `dtype`: of weights; `rules`: other names, as `renaming` has them; `skip`: patterns of
    names that are left out; `partial`: whether parameters of one side only are left out."""

    format: str = ""
    ranks: tuple[int, ...] = ()
    memory: int = 256 << 20
    workers: int = 1
    dtype: np.dtype[Any] | None = None
    rules: tuple[Rule, ...] = ()
    skip: tuple[str, ...] = ()
    partial: bool = False
    force: bool = False
    resume: bool = False
    sync: bool = True


@dataclass(frozen=True, slots=True)
class Transformed:
    """What was, or would be, done.  Bytes of tensors; `read_ranks`: ranks of the source whose files are read;
    `skipped`: names that are left out; `values`: what the source holds beside tensors, which is left out, too;
    `everywhere`: tensors of no parameter, which every rank gets whole; `found_bytes`: those of an earlier run."""

    place: str
    format: str
    tensors: int
    target_bytes: int
    read_bytes: int
    written_bytes: int
    found_bytes: int
    read_ranks: tuple[int, ...]
    files: tuple[str, ...]
    skipped: tuple[str, ...]
    values: tuple[str, ...]
    everywhere: tuple[str, ...]

    def document(self) -> dict[str, Any]:
        return {name: list(v) if isinstance(v := getattr(self, name), tuple) else v for name in self.__slots__}
