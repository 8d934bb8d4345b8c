"""`Emission`: the files of a target, and what of the plan they do not carry."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["Emission"]


@dataclass(frozen=True, slots=True)
class Emission:
    """`files`: path below the output directory → content.  `lost`: what of the plan the target cannot carry, in words;
    what would make a file mean something else is an error instead."""

    files: Mapping[str, bytes]
    lost: tuple[str, ...] = ()
