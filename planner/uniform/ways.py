"""The shortest ways of tensors between two layouts, on the meshes of one machine; what was found is remembered.

Axes that split a dimension alike before and after have no part in a way, unless ranks forward for others: what moves is
the part of the tensor that their ranks hold, on a mesh of the other axes.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from planner.cost_models import HardwareProfile
from planner.ir import DeviceMesh, Layout, Reduction
from planner.pricing import Machine, Settings
from planner.redistribute import Parts, Redistributions, RedistributionStep, parts_of_both, reduction_of_both

__all__ = ["Ends", "Steps", "Ways"]

Steps = tuple[RedistributionStep, ...]


@dataclass(frozen=True, slots=True)
class Ends:
    """Of a way of a tensor of such a shape, and so many bytes; `share`: as of `Redistributions`."""

    shape: tuple[int, ...]
    bytes: int
    share: float
    source: Layout
    target: Layout


@dataclass(frozen=True, slots=True)
class _Table:
    """What redistributions of a tensor, or of a part of it, are found for, on axes of a mesh."""

    mesh: DeviceMesh
    settings: Settings
    axes: DeviceMesh
    shape: tuple[int, ...]
    bytes: int
    reduction: Reduction
    parts: Parts
    share: float


@dataclass(frozen=True, eq=False)
class Ways:
    profile: HardwareProfile
    _machines: dict[tuple[DeviceMesh, Settings], Machine] = field(default_factory=dict)
    _tables: dict[_Table, Redistributions] = field(default_factory=dict)
    _forwarding: dict[DeviceMesh, bool] = field(default_factory=dict)
    _known: dict[tuple[DeviceMesh, Settings, Ends], Steps | None] = field(default_factory=dict)

    def shortest(self, ends: Sequence[Ends], mesh: DeviceMesh, settings: Settings) -> list[Steps | None]:
        """One for each; None where a layout does not divide its tensor evenly."""
        keys = [(mesh, settings, e) for e in ends]
        missing = [key for key in dict.fromkeys(keys) if key not in self._known]
        if missing:
            for key, steps in zip(missing, self._found([e for _, _, e in missing], mesh, settings), strict=True):
                self._known[key] = steps
        return [self._known[key] for key in keys]

    @cached_property
    def between_pairs(self) -> bool:
        """Whether each device has links of its own to every other one in its server, or in its island of the server."""
        inside = self.profile.server, self.profile.island
        return any(links is not None and links.topology in ("table", "full_mesh") for links in inside)

    def forwarding(self, mesh: DeviceMesh) -> bool:
        """Whether all ranks may be faster together than some of them, for which others forward then: where links are
        between pairs, and where groups of ranks do not fill servers evenly."""
        if mesh not in self._forwarding:
            per_server = self.profile.devices_per_server
            inner = itertools.accumulate((a.size for a in reversed(mesh.axes)), operator.mul)
            self._forwarding[mesh] = self.between_pairs or any(
                per_server is not None and per_server % n and n % per_server for n in inner
            )
        return self._forwarding[mesh]

    def _found(self, ends: Sequence[Ends], mesh: DeviceMesh, settings: Settings) -> list[Steps | None]:
        same = [() if self.forwarding(mesh) else _split_alike(e.source, e.target) for e in ends]
        tables = [_table(e, s, mesh, settings) for e, s in zip(ends, same, strict=True)]
        new = [t for t in dict.fromkeys(tables) if t not in self._tables]
        if new:
            if (mesh, settings) not in self._machines:
                self._machines[mesh, settings] = Machine(self.profile, mesh, settings)
            cases = [(t.shape, t.bytes, t.reduction, t.parts, None, t.share) for t in new]
            priced = Redistributions.of_all(cases, [t.axes for t in new], self._machines[mesh, settings])
            self._tables.update(zip(new, priced, strict=True))
        return [_way(self._tables[t], e, s) for t, e, s in zip(tables, ends, same, strict=True)]


def _split_alike(source: Layout, target: Layout) -> tuple[int, ...]:
    """Dimensions that the same axes split before and after."""
    return tuple(
        d
        for d, (a, b) in enumerate(zip(source.dims, target.dims, strict=True))
        if a and a == b and source.parts_of(d) == target.parts_of(d) == 1
    )


def _table(e: Ends, same: Sequence[int], mesh: DeviceMesh, settings: Settings) -> _Table:
    left, shape, size = mesh, e.shape, e.bytes
    if same:
        out = {a for d in same for a in e.source.dims[d]}
        left = DeviceMesh(tuple(a for a in mesh.axes if a.name not in out))
        shape = tuple(n // mesh.size(e.source.dims[d]) if d in same else n for d, n in enumerate(e.shape))
        size //= mesh.size(out)
    parts, reduction = parts_of_both(e.source, e.target), reduction_of_both(e.source, e.target)
    return _Table(mesh, settings, left, shape, size, reduction, parts, e.share)


def _way(table: Redistributions, e: Ends, same: Sequence[int]) -> Steps | None:
    here, there = _without(e.source, same), _without(e.target, same)
    if here not in table.index or there not in table.index:
        return None
    steps = table.path(here, there)
    return tuple(_beside(s, e.source, same) for s in steps) if same else steps


def _without(layout: Layout, same: Sequence[int]) -> Layout:
    dims = tuple(() if d in same else axes for d, axes in enumerate(layout.dims))
    return replace(layout, dims=dims) if same else layout


def _beside(step: RedistributionStep, source: Layout, same: Sequence[int]) -> RedistributionStep:
    """The step of a whole tensor by that of the part that is moved."""

    def whole(x: Layout) -> Layout:
        dims = tuple((*source.dims[d], *axes) if d in same else axes for d, axes in enumerate(x.dims))
        return replace(x, dims=dims)

    return replace(step, source=whole(step.source), target=whole(step.target))
