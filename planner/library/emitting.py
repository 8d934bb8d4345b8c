"""`plan.emit`: the files of a target."""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from planner.errors import UsageError
from planner.library.model import Model

if TYPE_CHECKING:
    from planner.planning import PlanDocument

__all__ = ["Emission", "emission"]


@dataclass(frozen=True, repr=False)
class Emission:
    """What a target loads.

    target  the runtime
    files   path below the folder → content
    lost    what of the plan it cannot express
    out     the folder that they were written to, if they were
    others  files that were in that folder before, and are not of this plan
    """

    target: str
    files: Mapping[str, bytes] = field(repr=False)
    lost: tuple[str, ...] = ()
    out: Path | None = None
    others: tuple[str, ...] = ()

    @property
    def paths(self) -> list[Path]:
        """Where the files are; empty where they were not written."""
        return [] if self.out is None else [self.out / name for name in self.files]

    def __str__(self) -> str:
        lines = [str(p) for p in self.paths] or list(self.files)
        if self.lost:
            lines += [f"not in these files ({self.target} cannot express it):", *(f"  {line}" for line in self.lost)]
        return "\n".join(lines)

    def __repr__(self) -> str:
        where = "" if self.out is None else f" in {self.out}"
        return f"<Emission {self.target}: {len(self.files)} files{where}, {len(self.lost)} things not in them>"

    def _repr_html_(self) -> str:
        return f"<pre>{escape(str(self))}</pre>"


def emission(
    plan: PlanDocument,
    model: Model | None,
    target: str,
    out: str | os.PathLike[str] | None,
    names: str | os.PathLike[str] | None,
    hosts: str | os.PathLike[str] | None,
) -> Emission:
    """What `planner.emit` gives, of a plan and its model, where that is known."""
    from planner.emit import TARGETS, Given, emit
    from planner.requests.emission import other_files, write_emission

    if target not in TARGETS:
        near = difflib.get_close_matches(target, TARGETS, 1)
        hint = f"did you mean {near[0]}?" if near else f"expected one of {', '.join(TARGETS)}"
        raise UsageError(f"target={target}: {hint}")
    needed = model if "model" in TARGETS[target].needs else None
    with nullcontext() if needed is None else needed.source.file() as file:
        found = emit(target, Given(plan, _path(names), _path(hosts), file))
    if out is None:
        return Emission(target, found.files, found.lost)
    written = write_emission(found, Path(out))
    return Emission(target, found.files, found.lost, Path(out), tuple(other_files(Path(out), written)))


def _path(value: str | os.PathLike[str] | None) -> Path | None:
    return None if value is None else Path(value)
