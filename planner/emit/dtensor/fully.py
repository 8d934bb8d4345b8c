"""Whether a plan is what `fully_shard` of PyTorch does, and which modules it is called on."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from planner.emit.modules import owner
from planner.emit.names import Name
from planner.planning.document import PlanDocument

__all__ = ["Fully", "fully_sharded"]


@dataclass(frozen=True, slots=True)
class Fully:
    """`replicas` groups of `shards` neighbouring ranks; `blocks`: modules that are gathered together,
    and `freed` after each pass (ZeRO 3)."""

    replicas: int
    shards: int
    blocks: tuple[str, ...]
    freed: bool = False


def fully_sharded(plan: PlanDocument, names: Mapping[str, Name]) -> Fully | None:
    """Where every rank has samples of its own and every parameter, computed with whole, is stored in shards along its
    first dimension, all over the same neighbouring ranks.  None for any other plan."""
    mesh = plan.mesh
    axes = tuple(a for a in mesh.names if mesh.sizes[a] > 1)
    first = next((x for x in plan.inputs.values() if x.layout is not None), None)
    if plan.schedule.stages > 1 or first is None or first.layout is None or _real(first.layout.dims[:1], axes) != axes:
        return None
    layouts = set()
    for n, p in plan.parameters.items():
        dims = p.stored.dims[::-1] if names[n].transposed else p.stored.dims
        if any(_real(x.dims, axes) for x in p.compute) or _real(dims[1:], axes):
            return None
        over = _real(dims[:1], axes)
        if over or not plan.is_frozen(n):
            layouts.add(over)  # what is frozen and whole is divided with the others
    if len(layouts) != 1:
        return None
    (over,) = layouts
    if not over or over != axes[len(axes) - len(over) :]:
        return None
    shards = mesh.size(over)
    blocks = dict.fromkeys(b for emitted in names.values() if (b := _block(owner(emitted.name))))
    return Fully(mesh.devices // shards, shards, tuple(blocks), plan.schedule.run.get("zero") == 3)


def _real(dims: list[list[str]], axes: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(a for d in dims for a in d if a in axes)


def _block(module: str) -> str:
    """Up to the first number of a path: one layer."""
    found = re.match(r"(?:.*?\.)?\d+(?=\.|$)", module)
    return found[0] if found else ""
