"""What collectives over the axes of a mesh take, where stages of a pipeline lie beside each other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from planner.cost_models import Collective, CollectiveModel, GroupShape, HardwareProfile
from planner.cost_models.link import Ways, cheapest
from planner.ir import DeviceMesh

__all__ = ["PIPELINE", "Links"]

PIPELINE = "pipeline"


class Links:
    """Prices over groups of ranks: `mesh` is that of a stage, whose ranks lie one behind the other; of `stages` the
    ranks at the same place exchange over the axis `PIPELINE`."""

    def __init__(self, mesh: DeviceMesh, stages: int, profile: HardwareProfile) -> None:
        self.model = CollectiveModel(profile)
        self.mesh, self.stages, self.profile = mesh, stages, profile
        self._groups: dict[tuple[str, ...], GroupShape] = {}
        self._known: dict[tuple[str, tuple[str, ...], float], float] = {}
        self._terms: dict[tuple[str, tuple[str, ...]], Ways] = {}
        self._between: dict[tuple[tuple[int, ...], float], float] = {}
        self.exchanged: dict[tuple[object, ...], float] = {}  # what units exchange, as `planner.clock.exchange` says

    def group(self, axes: tuple[str, ...]) -> GroupShape:
        if axes not in self._groups:
            self._groups[axes] = self._group(axes)
        return self._groups[axes]

    def _group(self, axes: tuple[str, ...]) -> GroupShape:
        names, shape = (PIPELINE, *self.mesh.names), (self.stages, *self.mesh.shape)
        if PIPELINE not in axes and (self.stages == 1 or self.profile.axes is not None):
            # A mesh by itself keeps the numbers of its axes, by which tables of measured links go.
            names, shape = self.mesh.names, self.mesh.shape
        return self.model.group(shape, tuple(sorted(names.index(a) for a in axes)))

    def seconds(self, kind: str, axes: tuple[str, ...], size: float, share: float = 1.0) -> float:
        """Of one collective; bytes in the convention of `planner.cost_models.link`.  A group of one exchanges nothing.

        `share`: they are this fraction of what one call exchanges, and take this fraction of its time.
        """
        if size <= 0 or not axes or self.group(axes).ranks == 1:
            return 0.0
        part = share if self.profile.axes is None else 1.0
        key = (kind, axes, size / part)
        if key not in self._known:
            self._known[key] = cheapest(self._ways(kind, axes), size / part)
        return self._known[key] * part

    def _ways(self, kind: str, axes: tuple[str, ...]) -> Ways:
        """The ways to carry out the collective."""
        if (kind, axes) not in self._terms:
            self._terms[kind, axes] = self.model.terms(cast(Collective, kind), self.group(axes))
        return self._terms[kind, axes]

    def across(self, stages: Sequence[int], size: float) -> float:
        """Of a sum over these stages of what ranks at the same place hold, all ranks of a stage at once."""
        if len(stages) < 2 or size <= 0:
            return 0.0
        key = tuple(stages), size
        if key not in self._between:
            self._between[key] = self._across(key[0], size)
        return self._between[key]

    def apart(self, kind: str, size: float, ranks: int = 2) -> float:
        """Of a collective over one rank in each of several servers, all ranks of a stage at once: what ranks on
        different kinds of servers exchange, by this kind's links."""
        if size <= 0:
            return 0.0
        p, each = self.profile, self.profile.devices_per_server or self.mesh.devices
        group = GroupShape(
            ranks_per_server=1,
            servers=ranks,
            stride=self.mesh.devices,
            ranks_per_island=None if p.devices_per_island is None else 1,
            total=ranks,
            supernodes=1 if p.devices_per_supernode is None else ranks,
            concurrent=min(self.mesh.devices, each),
        )
        return float(self.model.seconds(cast(Collective, kind), size, group))

    def _across(self, stages: tuple[int, ...], size: float) -> float:
        devices = self.mesh.devices
        group = self.model.group_of_stages(stages, devices, max(self.stages, stages[-1] + 1))
        each = self.profile.devices_per_server or devices * len(stages)
        together = max(1, min(devices, each // group.ranks_per_server))
        return float(self.model.seconds("all_reduce", size, group, concurrent=together))
