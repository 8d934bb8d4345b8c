"""The process groups and meshes of the world that this process is in, which all of its programs share.

A group is threads, sockets and, between GPUs, memory, and PyTorch keeps every one until its world ends.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

__all__ = ["TIMEOUT", "forget_groups", "group_of", "torch_mesh"]

TIMEOUT = timedelta(minutes=10)

_world: Any = None  # in which the rest was made
_groups: dict[tuple[tuple[int, ...], str], Any] = {}
_meshes: dict[tuple[Any, ...], DeviceMesh] = {}


def group_of(ranks: tuple[int, ...], use: str = "") -> Any:
    """The process group of these ranks, this one among them, for some `use`.

    It is made when first asked for, by its members alone, which run the same programs and so ask in the same order.
    """
    _enter()
    if (ranks, use) not in _groups:
        _groups[ranks, use] = dist.new_group(list(ranks), timeout=TIMEOUT, use_local_synchronization=True)
    return _groups[ranks, use]


def torch_mesh(device: str, ranks: Tensor, names: tuple[str, ...]) -> DeviceMesh:
    """PyTorch's mesh of `ranks`, all of the world, with names of its dimensions.  Every rank has to ask for it."""
    _enter()
    key = (device, tuple(ranks.shape), tuple(ranks.flatten().tolist()), names)
    if key not in _meshes:
        _meshes[key] = DeviceMesh(device, ranks, mesh_dim_names=names)
    return _meshes[key]


def forget_groups() -> None:
    """Of a world that has ended."""
    global _world
    _world = None
    _groups.clear()
    _meshes.clear()


def _enter() -> None:
    """Forgets what was made in another world than the process is in now."""
    global _world
    if _world is not dist.group.WORLD:
        forget_groups()
        _world = dist.group.WORLD
