"""The shortest ways of tensors between two layouts, on the meshes of one machine; what was found is remembered."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

from planner.cost_models import HardwareProfile
from planner.ir import DeviceMesh, Layout, Reduction
from planner.pricing import Machine, Settings
from planner.redistribute import Parts, Redistributions, RedistributionStep, parts_of_both, reduction_of_both

__all__ = ["Ends", "Steps", "Ways"]

Steps = tuple[RedistributionStep, ...]
_Kind = tuple[tuple[int, ...], int, Reduction, Parts, float]


@dataclass(frozen=True, slots=True)
class Ends:
    """Of a way of a tensor of such a shape, and so many bytes; `share`: as of `Redistributions`."""

    shape: tuple[int, ...]
    bytes: int
    share: float
    source: Layout
    target: Layout


@dataclass(frozen=True, eq=False)
class Ways:
    profile: HardwareProfile
    _machines: dict[tuple[DeviceMesh, Settings], Machine] = field(default_factory=dict)
    _tables: dict[tuple[DeviceMesh, Settings], dict[_Kind, Redistributions]] = field(default_factory=dict)
    _uneven: dict[DeviceMesh, bool] = field(default_factory=dict)
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
        return self.between_pairs or self.uneven(mesh)

    def uneven(self, mesh: DeviceMesh) -> bool:
        """Whether some groups of ranks neither fill servers nor divide them."""
        if mesh not in self._uneven:
            per_server = self.profile.devices_per_server or 1
            inner = itertools.accumulate((a.size for a in reversed(mesh.axes)), operator.mul)
            self._uneven[mesh] = any(per_server % n and n % per_server for n in inner)
        return self._uneven[mesh]

    def _found(self, ends: Sequence[Ends], mesh: DeviceMesh, settings: Settings) -> list[Steps | None]:
        kinds = [_kind(e) for e in ends]
        known = self._tables.setdefault((mesh, settings), {})
        new = [kind for kind in dict.fromkeys(kinds) if kind not in known]
        if new:
            cases = [(shape, size, reduction, parts, None, share) for shape, size, reduction, parts, share in new]
            known.update(zip(new, Redistributions.of_all(cases, mesh, self._machine(mesh, settings)), strict=True))
        return [_way(known[kind], e) for kind, e in zip(kinds, ends, strict=True)]

    def _machine(self, mesh: DeviceMesh, settings: Settings) -> Machine:
        key = mesh, settings
        if key not in self._machines:
            self._machines[key] = Machine(self.profile, mesh, settings)
        return self._machines[key]


def _kind(e: Ends) -> _Kind:
    return e.shape, e.bytes, reduction_of_both(e.source, e.target), parts_of_both(e.source, e.target), e.share


def _way(table: Redistributions, e: Ends) -> Steps | None:
    return table.path(e.source, e.target) if e.source in table.index and e.target in table.index else None
