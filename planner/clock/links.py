"""What collectives over the axes of a mesh take, where stages of a pipeline lie beside each other."""

from __future__ import annotations

from typing import cast

from cost_models import Collective, CollectiveModel, GroupShape, HardwareProfile
from planner.ir import DeviceMesh

__all__ = ["PIPELINE", "Links"]

PIPELINE = "pipeline"


class Links:
    """Prices over groups of ranks: `mesh` is that of a stage, whose ranks lie one behind the other; of `stages` the
    ranks at the same place exchange over the axis `PIPELINE`."""

    def __init__(self, mesh: DeviceMesh, stages: int, profile: HardwareProfile) -> None:
        self.model = CollectiveModel(profile)
        self.shape = (stages, *mesh.shape)
        self.index = {PIPELINE: 0, **{name: n for n, name in enumerate(mesh.names, 1)}}
        self._groups: dict[tuple[str, ...], GroupShape] = {}
        self._known: dict[tuple[str, tuple[str, ...], float], float] = {}

    def group(self, axes: tuple[str, ...]) -> GroupShape:
        if axes not in self._groups:
            self._groups[axes] = self.model.group(self.shape, tuple(sorted(self.index[a] for a in axes)))
        return self._groups[axes]

    def seconds(self, kind: str, axes: tuple[str, ...], size: float) -> float:
        """Of one collective; bytes in the convention of `cost_models.link`.  A group of one exchanges nothing."""
        if size <= 0 or not axes or self.group(axes).ranks == 1:
            return 0.0
        key = (kind, axes, size)
        if key not in self._known:
            self._known[key] = float(self.model.seconds(cast(Collective, kind), size, self.group(axes)))
        return self._known[key]
