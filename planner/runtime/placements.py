"""Layouts of stored parameters as DTensor has them: state alone, what is computed follows the plan's program."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import permutations
from typing import Any

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh as TorchMesh
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.placement_types import _StridedShard

from planner.ir import DeviceMesh, Layout
from planner.runtime.groups import torch_mesh

__all__ = ["State", "axis_order", "in_one_piece", "in_shards_of", "is_parted", "is_shard", "local_tensor"]

Joined = tuple[tuple[str, ...], ...]  # axes of the plan's mesh that are one dimension of DTensor's


def axis_order(mesh: DeviceMesh, layouts: Iterable[Layout]) -> tuple[str, ...]:
    """The order of the mesh's axes in which most layouts split dimensions by axes from left to right, which is how
    DTensor counts shards."""
    dims = [d for x in layouts for d in x.dims if len(d) > 1]
    if not dims:
        return mesh.names

    def fits(order: tuple[str, ...]) -> int:
        return sum(list(d) == sorted(d, key=order.index) for d in dims)

    return max(permutations(mesh.names), key=fits)


def is_parted(tensor: Any) -> bool:
    """Whether a DTensor's shards hold pieces that lie apart: no file format of shards can express these."""
    return isinstance(tensor, DTensor) and any(isinstance(p, _StridedShard) for p in tensor.placements)


def is_shard(placement: Any) -> bool:
    """Whether a placement splits a dimension, in whatever pieces."""
    return hasattr(placement, "dim") and not placement.is_partial()


def in_one_piece(value: Any) -> Any:
    """A DTensor whose shards are one piece each."""
    if not is_parted(value):
        return value
    plain = [Shard(p.dim) if is_shard(p) else p for p in value.placements]
    return distribute_tensor(value.full_tensor(), value.device_mesh, plain, src_data_rank=None)


def in_shards_of(value: Any, like: Any) -> Any:
    """A value in the shards of another."""
    if not is_parted(like) or not isinstance(value, DTensor) or value.placements == like.placements:
        return value
    return distribute_tensor(value.full_tensor(), like.device_mesh, like.placements, src_data_rank=None)


def local_tensor(value: Tensor) -> Tensor:
    """What of a DTensor lies on this rank, past autograd; all of a plain tensor."""
    found: Tensor = value._local_tensor if isinstance(value, DTensor) else value.detach()
    return found


class State:
    """Parameters of a pipeline stage as DTensors.

    All have one mesh, the stage's with its axes in DTensor's order, but for those of which a dimension is split by
    several axes in another order, or in equal parts: the axes are joined to one then.  Every rank makes all meshes.
    """

    def __init__(self, mesh: DeviceMesh, stages: int, layouts: Mapping[str, Layout], device: str) -> None:
        self.mesh, self.layouts = mesh, layouts
        self.order = axis_order(mesh, layouts.values())
        self.common: Joined = tuple((a,) for a in self.order)
        kinds = dict.fromkeys([self.common, *(self.joined(x) for x in layouts.values())])
        ranks = torch.arange(stages * mesh.devices).reshape(stages, *mesh.shape)
        self.meshes = {joined: self._torch_mesh(ranks, joined, device) for joined in kinds}

    def _torch_mesh(self, ranks: Tensor, joined: Joined, device: str) -> TorchMesh:
        axes = [1 + self.mesh.names.index(a) for group in joined for a in group]
        sizes = [self.mesh.size(group) for group in joined]
        names = tuple("_".join(group) for group in joined)
        ordered = ranks.permute(0, *axes).reshape(-1, *sizes).contiguous()
        return torch_mesh(device, ordered, ("stage", *names))[names]

    def joined(self, layout: Layout) -> Joined:
        """How the axes of the mesh are joined for a layout."""
        apart = [
            d for k, d in enumerate(layout.dims)
            if len(d) > 1 and (layout.parts_of(k) > 1 or list(d) != sorted(d, key=self.order.index))
        ]  # fmt: skip
        taken = {a for d in apart for a in d}
        return (*((a,) for a in self.order if a not in taken), *apart) if apart else self.common

    def placements(self, layout: Layout) -> tuple[Placement, ...]:
        """One for each dimension of the layout's mesh."""
        found: list[Placement] = []
        for group in self.joined(layout):
            dim = next((d for d, axes in enumerate(layout.dims) if group[0] in axes), None)
            if dim is None:
                found.append(Replicate())
            else:
                parts = layout.parts_of(dim)
                found.append(Shard(dim) if parts == 1 else _StridedShard(dim, split_factor=parts))
        return tuple(found)

    def tensor(self, layout: Layout, local: Tensor, whole: torch.Size, stride: tuple[int, ...]) -> DTensor:
        """The DTensor of a parameter (or its gradient) whose shard lies here."""
        mesh = self.meshes[self.joined(layout)]
        return DTensor.from_local(local, mesh, self.placements(layout), run_check=False, shape=whole, stride=stride)
