"""How the tensors of a checkpoint lie on the ranks that wrote it: as a plan says, or a strategy file of MindSpore."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from planner.checkpoint.naming import slots_among
from planner.emit.mindspore.arrangement import common_mesh, layouts_of
from planner.emit.mindspore.strategy_map import ParameterLayout, StrategyMap, read_strategy_map
from planner.errors import InputError
from planner.ir import DeviceMesh, Layout
from planner.transfer.pieces import Boxes, Pieces, laid_out

if TYPE_CHECKING:
    from planner.planning.document import LayoutDocument, PlanDocument

__all__ = ["Layouts", "Spread", "layouts_of_plan", "read_layouts"]


@dataclass(frozen=True, slots=True)
class Spread:
    """A layout over the ranks of a mesh, and where such meshes begin: one for each pipeline stage that holds it.

    `shape`: of the whole tensor, where the file says it.
    """

    layout: Layout
    mesh: DeviceMesh
    firsts: tuple[int, ...] = (0,)
    shape: tuple[int, ...] | None = None

    def pieces(self, shape: tuple[int, ...]) -> Pieces:
        """Of a tensor of this shape.  ValueError where it does not divide into the layout's parts."""
        return _pieces(self, shape)

    def whole_shape(self, local: tuple[int, ...]) -> tuple[int, ...]:
        """The shape of the tensor of which a rank's array has the shape `local`; exact where all shards are equal."""
        if self.shape is not None:
            return self.shape
        if len(local) != len(self.layout.dims):
            raise ValueError(f"expected {len(self.layout.dims)} dimensions, found {list(local)}")
        return tuple(n * c for n, c in zip(local, self.layout.counts(self.mesh), strict=True))

    @property
    def ranks(self) -> tuple[int, ...]:
        """Those that hold a part of it."""
        return tuple(r for first in self.firsts for r in range(first, first + self.mesh.devices))


@lru_cache(maxsize=4096)
def _pieces(spread: Spread, shape: tuple[int, ...]) -> Pieces:
    parts = [laid_out(shape, spread.layout, spread.mesh, first=first) for first in spread.firsts]
    if len(parts) == 1:
        return parts[0]
    boxes = Boxes(*(np.concatenate([getattr(p.boxes, side) for p in parts]) for side in ("starts", "stops")))
    return Pieces(shape, boxes, np.concatenate([p.holders for p in parts]), np.concatenate([p.inside for p in parts]))


@dataclass(frozen=True, slots=True)
class Layouts:
    """`parameters`: name → where it lies; `slots`: where its optimizer's state lies, if elsewhere; `said`: the file;
    `plan`: of which they are, if they are of one."""

    said: str
    ranks: int
    parameters: Mapping[str, Spread]
    slots: Mapping[str, Spread] = field(default_factory=dict)
    plan: PlanDocument | None = None

    def of_slot(self, parameter: str) -> Spread:
        return self.slots.get(parameter, self.parameters[parameter])

    def in_format(self, name: str) -> Layouts:
        """As a format's own framework lays the plan out: MindSpore's optimizer parallel divides as it can, which need
        not be as planned.  InputError where MindSpore cannot express the plan."""
        if name != "mindspore" or self.plan is None:
            return self
        from planner.emit.mindspore.stages import staged
        from planner.emit.mindspore.strategy import merged
        from planner.emit.names import Name

        plan = self.plan
        maps = staged(plan, {n: Name(n) for n in plan.parameters}).maps
        found = _of_map(maps[0] if len(maps) == 1 else merged(maps), self.said)
        shapes = {n: tuple(p.shape) for n, p in plan.parameters.items()}
        return replace(
            self,
            parameters={n: replace(s, shape=shapes[n]) for n, s in found.parameters.items()},
            slots={n: replace(s, shape=shapes[n]) for n, s in found.slots.items()},
            plan=None,
        )


def read_layouts(path: Path) -> Layouts:
    """Of a plan.json or its folder, a strategy file of MindSpore (.ckpt or JSON, of one stage or merged), or a folder
    with such files of all stages.

    InputError where the path is none of these, or stages do not fit each other.
    """
    if path.is_dir():
        if (path / "plan.json").is_file():
            return _of_plan_file(path / "plan.json")
        return _of_stages(path)
    if not path.exists():
        raise InputError(f"{path}: there is no such file; give a plan.json, or a strategy file of MindSpore")
    if path.suffix == ".json" and b'"operators"' in path.open("rb").read(1 << 20) and _is_plan(path):
        return _of_plan_file(path)
    return _of_map(read_strategy_map(path), str(path))


def _of_plan_file(path: Path) -> Layouts:
    from planner.planning import read_plan  # which takes half a second

    return layouts_of_plan(read_plan(path), str(path))


def _is_plan(path: Path) -> bool:
    import json

    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(found, dict) and "parameters" in found and "meshes" in found


def layouts_of_plan(plan: PlanDocument, said: str) -> Layouts:
    """Parameters as the plan stores them, and state as its optimizer holds it; stages count their ranks behind each
    other."""
    meshes = [plan.meshes[s.mesh].mesh() for s in plan.stages] or [plan.mesh]
    firsts = np.cumsum([0, *(m.devices for m in meshes)])
    parameters, slots = {}, {}
    for name, p in plan.parameters.items():
        stages = p.stages or [0]
        shape = tuple(p.shape)

        def spread(document: LayoutDocument, stages: list[int] = stages, shape: tuple[int, ...] = shape) -> Spread:
            return Spread(document.layout(), meshes[stages[0]], tuple(int(firsts[s]) for s in stages), shape)

        parameters[name] = spread(p.stored)
        if p.optimizer is not None and p.optimizer != p.stored:
            slots[name] = spread(p.optimizer)
    return Layouts(said, int(firsts[-1]), parameters, slots, plan)


# MindSpore


def _of_stages(folder: Path) -> Layouts:
    merged = [folder / f"strategy_merged.{e}" for e in ("ckpt", "json")]
    single = [folder / f"strategy.{e}" for e in ("ckpt", "json")]
    found = next((f for f in (*merged, *single) if f.is_file()), None)
    if found is not None:
        return _of_map(read_strategy_map(found), str(found))
    files = sorted(f for f in folder.glob("*.ckpt") if f.is_file()) or sorted(folder.glob("*.json"))
    if not files:
        raise InputError(f"{folder}: expected a plan.json, or strategy files of MindSpore (*.ckpt, *.json), found none")
    return _of_map(_merged(files), str(folder))


def _merged(files: Sequence[Path]) -> StrategyMap:
    """The files that ranks of all stages have written, as one; a file says its stage with its operators."""
    from planner.emit.mindspore.strategy import merged

    stages: dict[int, tuple[Path, StrategyMap]] = {}
    for file in files:
        found = read_strategy_map(file)
        stage = next((s.stage for s in found.operators.values()), 0)
        other, known = stages.setdefault(stage, (file, found))
        if known.parameters != found.parameters:
            raise InputError(
                f"{file}: has other layouts than {other.name}, which is of stage {stage}, too; leave the files of one "
                "training"
            )
    if sorted(stages) != list(range(len(stages))):
        lacking = next(s for s in range(max(stages)) if s not in stages)
        raise InputError(f"{files[0].parent}: lacks the strategy file of stage {lacking}; bring it back")
    return stages[0][1] if len(stages) == 1 else merged(stages[s][1] for s in sorted(stages))


def _of_map(found: StrategyMap, said: str) -> Layouts:
    if not found.parameters:
        raise InputError(f"{said}: has no layout of a parameter; save the strategies by parameters")
    staged: dict[int, dict[str, ParameterLayout]] = {}
    numbered = [n.partition("-") for n in found.parameters]
    is_merged = all(dash and head.isdecimal() and len(head) < 9 for head, dash, _ in numbered)
    for (head, _, rest), (name, p) in zip(numbered, found.parameters.items(), strict=True):
        staged.setdefault(int(head) if is_merged else 0, {})[rest if is_merged else name] = p
    if sorted(staged) != list(range(len(staged))):
        raise InputError(f"{said}: expected stages 0 to {len(staged) - 1}, found {sorted(staged)}; merge all of them")
    first = 0
    spreads: dict[str, Spread] = {}
    for stage in sorted(staged):
        sizes = {p.arrangement.ranks for p in staged[stage].values()}
        if len(sizes) > 1:
            raise InputError(
                f"{said}: stage {stage}: expected device matrices of the same ranks, found {sorted(sizes)}"
            )
        for name, p in staged[stage].items():
            mesh = common_mesh([p.arrangement])
            _, stored = layouts_of(p.arrangement, mesh)
            spread = Spread(stored, mesh, (first,))
            before = spreads.get(name)
            if before is not None and (before.layout, before.mesh) != (spread.layout, spread.mesh):
                raise InputError(f"{said}: parameter {name!r} lies otherwise in stage {stage} than in an earlier one")
            spreads[name] = spread if before is None else replace(before, firsts=(*before.firsts, first))
        first += sizes.pop()
    named = slots_among(spreads)
    slots = {parameter: spreads[n] for n, parameter in named.items() if spreads[n] != spreads[parameter]}
    return Layouts(said, first, {n: s for n, s in spreads.items() if n not in named}, slots)
