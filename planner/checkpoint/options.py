"""What is wanted of a transformation, and what came of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from planner.checkpoint.rules import Rule
from planner.stored.formats.registry import FORMATS

__all__ = ["FORMAT_NAMES", "UNIVERSAL", "Options", "Transformed"]

UNIVERSAL: Final = ("deepspeed", "deepspeed-zero3")  # the latter for versions up to 0.19.0
FORMAT_NAMES: Final = (*FORMATS, "huggingface", "dcp", "megatron", *UNIVERSAL)


@dataclass(frozen=True, slots=True)
class Options:
    """`format`: of the target's files, that of the source if empty; `ranks`: which to write, all if empty; `memory`:
    bytes that are held at once; `dtype`: of weights; `rules`: other names, as `renaming` has them; `skip`: patterns of
    names that are left out; `partial`: whether parameters of one side only are left out; `beside`: files that
    lie beside those of Hugging Face, by name."""

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
    beside: tuple[tuple[str, bytes], ...] = ()


@dataclass(frozen=True, slots=True)
class Transformed:
    """What was, or would be, done.  Bytes of tensors; `read_ranks`: ranks of the source whose files are read;
    `skipped`: names that are left out; `values`: what the source holds beside tensors and the target cannot; `carried`:
    what of it goes along; `everywhere`: tensors of no parameter, which every rank gets whole; `found_bytes`: those of
    an earlier run."""

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
    carried: tuple[str, ...] = ()

    @classmethod
    def together(cls, place: str, each: Sequence[Transformed]) -> Transformed:
        """Of ranks that were written one by one into a folder."""
        if len(each) == 1:
            return each[0]

        def all_of(values: Callable[[Transformed], tuple[Any, ...]]) -> tuple[Any, ...]:
            return tuple(dict.fromkeys(v for t in each for v in values(t)))

        read, written, found = (sum(getattr(t, f"{what}_bytes") for t in each) for what in ("read", "written", "found"))
        return cls(
            place=place, format=each[0].format, tensors=max(t.tensors for t in each),
            target_bytes=sum(t.target_bytes for t in each), read_bytes=read, written_bytes=written, found_bytes=found,
            read_ranks=tuple(sorted(all_of(lambda t: t.read_ranks))),
            files=tuple(f"{Path(t.place).name}/{f}" for t in each for f in t.files),
            skipped=all_of(lambda t: t.skipped), values=all_of(lambda t: t.values),
            everywhere=all_of(lambda t: t.everywhere), carried=all_of(lambda t: t.carried),
        )  # fmt: skip

    def document(self) -> dict[str, Any]:
        return {name: list(v) if isinstance(v := getattr(self, name), tuple) else v for name in self.__slots__}
