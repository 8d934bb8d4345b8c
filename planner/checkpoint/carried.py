"""What goes along with the tensors: numbers and settings of PyTorch's files, and files that lie beside.

Settings of an optimizer (`param_groups`), of a scheduler or a loss scaler are plain values in PyTorch's files and in
folders of torch.distributed.checkpoint; both of these hold them again.  Files beside the tensors of a folder (a
config.json, a tokenizer, the training.json of `planner run`) go into a folder of the same kind.  Everything else is
named as left out.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from planner.checkpoint.naming import Tensor
from planner.checkpoint.options import Options
from planner.checkpoint.source import Checkpoint
from planner.errors import InputError
from planner.stored.formats.nested import is_plain
from planner.stored.moves import Held

__all__ = ["Carried", "carried", "with_names"]

_HOLD_VALUES: Final = ("torch", "dcp")
_HOLD_FILES: Final = ("huggingface", "dcp")
_LONGEST: Final = 1 << 28  # bytes of all files beside


@dataclass(frozen=True, slots=True)
class Carried:
    """`values` by name; `paths`: where names lie among nested dictionaries; `files` by name; `left` out: what; `more`:
    names of values that a format takes in its own way."""

    values: dict[str, Any]
    paths: dict[str, tuple[Any, ...]]
    files: dict[str, bytes]
    left: tuple[str, ...]
    more: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """Of all that goes along."""
        return (*self.values, *self.files, *self.more)

    def with_more(self, names: Collection[str]) -> Carried:
        """Where the target's format takes these values, too."""
        more = tuple(n for n in self.left if n in names)
        return replace(self, left=tuple(n for n in self.left if n not in names), more=more)


def carried(source: Checkpoint, kind: str, names: Mapping[str, str], options: Options) -> Carried:
    """`kind`: the format of the target; `names`: tensors of the source → of the target.

    InputError where a file beside cannot be read.
    """
    values: dict[str, Any] = {}
    left: list[str] = []
    taken = set(names.values())
    for name, value in source.values.items():
        if any(fnmatch.fnmatchcase(name, p) for p in options.skip):
            continue
        if kind in _HOLD_VALUES and name not in taken and name not in source.differing and is_plain(value):
            values[name] = value
        else:
            left.append(name)
    paths = {names.get(n, n): p for n, p in source.paths.items() if names.get(n, n) == n}
    files, size = {}, 0
    for file in source.beside:
        if any(fnmatch.fnmatchcase(file.name, p) for p in options.skip):
            continue
        size += file.stat().st_size
        if kind != source.kind or kind not in _HOLD_FILES or size > _LONGEST:
            left.append(f"file {file.name}")
            continue
        files[file.name] = _content(file)
    return Carried(values, paths, files, tuple(left))


def _content(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as e:
        raise InputError(f"{file}: cannot be read: {e.strerror}; leave it out with --skip {file.name}") from None


def with_names(
    values: Mapping[str, Any], before: Mapping[str, Held], said: Mapping[str, Tensor], after: Mapping[str, Held],
    now: Mapping[str, Tensor],
) -> dict[str, Any]:  # fmt: skip
    """The values with new names of parameters that were renamed, each to one other: groups of an optimizer list
    them."""
    places = {h.arrays: said[n].parameter or n for n, h in before.items() if not said[n].slot}
    became: dict[str, set[str]] = {}
    for name, held in after.items():
        if not now[name].slot and held.arrays in places:
            became.setdefault(places[held.arrays], set()).add(now[name].parameter or name)
    names = {old: new.pop() for old, new in became.items() if len(new) == 1}
    names = {old: new for old, new in names.items() if old != new}
    return {n: _renamed(v, names) for n, v in values.items()} if names else dict(values)


def _renamed(value: Any, names: Mapping[str, str]) -> Any:
    if isinstance(value, str):
        return names.get(value, value)
    if isinstance(value, dict):
        return {_renamed(k, names) if isinstance(k, str) else k: _renamed(v, names) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(_renamed(v, names) for v in value)
    return value
