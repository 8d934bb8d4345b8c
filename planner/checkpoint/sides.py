"""Which tensors of a source go to the target under which names, and whether either side has what the other lacks."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from planner.checkpoint.layouts import Layouts
from planner.checkpoint.naming import numbered, parse, spelled
from planner.checkpoint.options import Options
from planner.checkpoint.source import Checkpoint
from planner.checkpoint.wording import listed
from planner.errors import InputError

__all__ = ["Chosen", "check_source", "chosen"]


@dataclass(frozen=True, slots=True)
class Chosen:
    """`names`: of the source → of the target; `everywhere`: of those, which every rank gets whole."""

    names: dict[str, str]
    skipped: tuple[str, ...]
    everywhere: tuple[str, ...]


def chosen(source: Checkpoint, target: Layouts | None, options: Options, style: str) -> Chosen:
    """InputError where a side lacks a parameter of the other, or two tensors get one name."""
    own = source.style
    names: dict[str, str] = {}
    skipped, everywhere, taken = list(source.skipped), [], set()
    for name in source.tensors:
        if any(fnmatch.fnmatchcase(name, p) for p in options.skip):
            skipped.append(name)
            continue
        new = spelled(source.said[name], style) if style != own else name
        if target is not None and not parse(new, target.parameters).parameter:
            if source.said[name].parameter and options.partial:
                skipped.append(name)
                continue
            everywhere.append(name)
        if new in taken:
            raise InputError(f"{name} and another tensor both become {new}; give --map so that names differ")
        names[name] = new
        taken.add(new)
    if not names:
        raise InputError(f"{source.place}: holds no tensor{' that is not left out' if skipped else ''}")
    others = [*source.values, *(f.name for f in source.beside)]
    unused = [p for p in options.skip if not any(fnmatch.fnmatchcase(n, p) for n in (*skipped, *others))]
    if unused:
        raise InputError(f"--skip {unused[0]!r}: {source.place} has no such tensor; it has {listed(source.tensors)}")
    if target is not None and not options.partial:
        _check_target(source, target, names, skipped)
    return Chosen(names, tuple(skipped), tuple(everywhere))


def check_source(source: Checkpoint, options: Options) -> None:
    """InputError where no rank has a parameter that the layouts name: a stage would be lost in silence."""
    if source.layouts is None or source.kind != "ranks" or options.partial:
        return
    there = {t.parameter for t in source.said.values() if not t.slot}
    lacking = [p for p in source.layouts.parameters
               if p not in there and not any(fnmatch.fnmatchcase(p, s) for s in options.skip)]  # fmt: skip
    if lacking:
        spread = source.layouts.parameters[lacking[0]]
        gone = [r for r in spread.ranks if r not in source.ranks]
        ranks = f" (rank {' or '.join(map(str, gone[:4]))}, whose file is not there)" if gone else ""
        raise InputError(
            f"{source.place}: no rank has {listed(lacking)}, which {source.layouts.said} lays out{ranks}; bring back "
            "the files, or leave it out with --partial"
        )


def _check_target(source: Checkpoint, target: Layouts, names: Mapping[str, str], skipped: Iterable[str]) -> None:
    said = [parse(n, target.parameters) for n in names.values()]
    there = {t.parameter for t in said if not t.slot}
    left_out = {parse(n, target.parameters).parameter for n in skipped}
    lacking = [p for p in target.parameters if p not in there | left_out]
    if lacking:
        raise InputError(
            f"{source.place}: has no {listed(lacking)}, which {target.said} lays out; it has "
            f"{listed(names.values())}: say with --map how names differ, or leave them out with --partial"
        )
    count = numbered(list(names.values()))
    if count is not None:
        raise InputError(
            f"{source.place}: {count}: the optimizer's state has numbers for parameters: save "
            "it by torch.distributed.checkpoint.state_dict.get_optimizer_state_dict, or leave it out with --skip"
        )
    if source.layouts is None:
        return
    for name, new in names.items():
        if source.said[name].parameter and not parse(new, target.parameters).parameter:
            raise InputError(
                f"{source.place}: {name} is no parameter of {target.said}, which lays out "
                f"{listed(target.parameters)}: say with --map how names differ, or leave it out with --partial"
            )
