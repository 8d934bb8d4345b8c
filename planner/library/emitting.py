"""A plan as the files that a runtime loads."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from html import escape
from pathlib import Path

from planner.errors import InputError, UsageError
from planner.library.model import Model, Proto
from planner.library.options import refuse_unknown
from planner.library.plan import Plan, plan_of
from planner.library.wording import in_keywords, worded

__all__ = ["Emission", "emit"]


@dataclass(frozen=True, repr=False)
class Emission:
    """What a target loads.

    target  the runtime
    files   path below the folder → content
    lost    what of the plan it has no words for
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
            lines += [f"not in these files ({self.target} has no words for it):", *(f"  {line}" for line in self.lost)]
        return "\n".join(lines)

    def __repr__(self) -> str:
        where = "" if self.out is None else f" in {self.out}"
        return f"<Emission {self.target}: {len(self.files)} files{where}, {len(self.lost)} things not in them>"

    def _repr_html_(self) -> str:
        return f"<pre>{escape(str(self))}</pre>"


@worded
def emit(
    plan: Plan | str | os.PathLike[str],
    target: str,
    out: str | os.PathLike[str] | None = None,
    *,
    names: str | os.PathLike[str] | None = None,
    hosts: str | os.PathLike[str] | None = None,
    model: Model | str | os.PathLike[str] | bytes | Proto | None = None,
) -> Emission:
    """Writes a plan for a runtime, as `planner emit` does.

    Args:
        plan: of `planner.search`, or a plan.json, or its folder.
        target: mindspore, mindformers, hyper-parallel, torch, huggingface, torchtitan, deepspeed, megatron, onnx or
            onnx-ranks.
        out: folder to write to; None: the files are in the answer alone.
        names: JSON file with the names of the network's parameters.
        hosts: file with lines of SERVER DEVICE_IP… or SERVER slots=N.
        model: for the ONNX targets; the plan's own unless given.

    Raises:
        InputError: the target has no words for the plan, or the files cannot be written.
        UsageError: there is no such target, or it lacks the model.
    """
    from planner.emit import TARGETS, Given
    from planner.emit import emit as emitted
    from planner.requests.emission import other_files, write_emission

    if target not in TARGETS:
        try:
            refuse_unknown("emit", [target], list(TARGETS))
        except UsageError as e:
            raise UsageError(f"target={target}: {str(e).partition('; ')[2]}") from None
    found = plan_of(plan, model)
    known = found.model
    needs = "model" in TARGETS[target].needs and known is not None
    with known.source.file() if needs and known is not None else nullcontext() as file:
        given = Given(found.document, _path(names), _path(hosts), file)
        try:
            emission = emitted(target, given)
        except InputError as e:
            e.args = (in_keywords(str(e)),)
            raise
    if out is None:
        return Emission(target, emission.files, emission.lost)
    written = write_emission(emission, Path(out))
    return Emission(target, emission.files, emission.lost, Path(out), tuple(other_files(Path(out), written)))


def _path(value: str | os.PathLike[str] | None) -> Path | None:
    return None if value is None else Path(value)
