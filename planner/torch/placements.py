"""Layouts of stored parameters as DTensor has them: state alone, what is computed follows the plan's program."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import permutations

import numpy as np
import torch
from torch.distributed.device_mesh import DeviceMesh as TorchMesh
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard
from torch.distributed.tensor.placement_types import _StridedShard

from planner.ir import DeviceMesh, Layout

__all__ = ["State", "axis_order"]


def axis_order(mesh: DeviceMesh, layouts: Iterable[Layout]) -> tuple[str, ...]:
    """The order of the mesh's axes in which most layouts split dimensions by axes from left to right, which is how
    DTensor counts shards."""
    dims = [d for x in layouts for d in x.dims if len(d) > 1]
    if not dims:
        return mesh.names

    def fits(order: tuple[str, ...]) -> int:
        return sum(list(d) == sorted(d, key=order.index) for d in dims)

    return max(permutations(mesh.names), key=fits)


class State:
    """Parameters of one pipeline stage as DTensors.

    mesh    of the stage
    order   the axes in DTensor's order
    base    the stage's first rank
    """

    def __init__(self, mesh: DeviceMesh, layouts: Mapping[str, Layout], base: int, device: str) -> None:
        self.mesh, self.layouts = mesh, layouts
        self.order = axis_order(mesh, layouts.values())
        ranks = np.arange(base, base + mesh.devices).reshape(mesh.shape)
        ranks = ranks.transpose([mesh.names.index(a) for a in self.order])
        self.torch_mesh = TorchMesh(device, torch.tensor(ranks.copy()), mesh_dim_names=self.order)

    def placements(self, layout: Layout) -> tuple[Placement, ...]:
        """One for each axis of the mesh in DTensor's order."""
        found: list[Placement] = []
        for axis in self.order:
            dim = next((d for d, axes in enumerate(layout.dims) if axis in axes), None)
            found.append(Replicate() if dim is None else self._shard(layout, dim, axis))
        return tuple(found)

    def _shard(self, layout: Layout, dim: int, axis: str) -> Placement:
        """A dimension is cut by axes outermost first; those that DTensor cuts by later and the layout before, and equal
        parts of which each is cut by itself, make shards that lie apart."""
        axes = layout.dims[dim]
        before = [a for a in axes[: axes.index(axis)] if self.order.index(a) > self.order.index(axis)]
        apart = self.mesh.size(before) * layout.parts_of(dim)
        return Shard(dim) if apart == 1 else _StridedShard(dim, split_factor=apart)

    def tensor(self, name: str, local: torch.Tensor, whole: torch.Size, stride: tuple[int, ...]) -> DTensor:
        """The DTensor of a parameter (or its gradient) whose shard lies here."""
        return DTensor.from_local(
            local, self.torch_mesh, self.placements(self.layouts[name]), run_check=False, shape=whole, stride=stride
        )
