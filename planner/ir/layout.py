"""How a tensor lies on a mesh.

Text form: one entry per dimension, `_` for whole, axis names joined by `.` (outermost first) for
split; pending reductions follow a plus sign: `[x,_,z.y]`, `[_,y]+x`, `[_]+x(max)`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from planner.ir.mesh import DeviceMesh

__all__ = ["Layout", "Reduction"]


class Reduction(StrEnum):
    """How pending values combine."""

    SUM = "sum"
    MAX = "max"
    MIN = "min"


@dataclass(frozen=True, slots=True)
class Layout:
    """`dims[d]` are the mesh axes that split dimension d, outermost first; `partial` the axes (with
    their operator) over which the value is still to be reduced, in mesh order.  An axis appears at
    most once; axes that do not appear hold replicas.
    """

    dims: tuple[tuple[str, ...], ...]
    partial: tuple[tuple[str, Reduction], ...] = ()

    @classmethod
    def replicated(cls, rank: int) -> Layout:
        return cls(((),) * rank)

    @property
    def split_axes(self) -> tuple[str, ...]:
        return tuple(a for d in self.dims for a in d)

    @property
    def partial_axes(self) -> tuple[str, ...]:
        return tuple(a for a, _ in self.partial)

    @property
    def is_replicated(self) -> bool:
        return not self.partial and not any(self.dims)

    def shards(self, mesh: DeviceMesh) -> int:
        """Number of distinct pieces the tensor is cut into."""
        return mesh.size(self.split_axes)

    def counts(self, mesh: DeviceMesh) -> tuple[int, ...]:
        """Into how many pieces each dimension is cut."""
        return tuple(mesh.size(d) for d in self.dims)

    def local_shape(self, shape: tuple[int, ...], mesh: DeviceMesh) -> tuple[int, ...]:
        """Shape of one shard.  ValueError, naming the dimension, where a split is uneven."""
        out = []
        for i, (s, axes) in enumerate(zip(shape, self.dims, strict=True)):
            n = mesh.size(axes)
            if s % n:
                raise ValueError(f"dimension {i} of size {s} does not divide over axes {'.'.join(axes)} ({n} shards)")
            out.append(s // n)
        return tuple(out)

    def region(self, shape: tuple[int, ...], mesh: DeviceMesh, rank: int) -> tuple[slice, ...]:
        """The part of the whole tensor that lies on `rank`."""
        c = mesh.coordinates(rank)
        out = []
        for s, axes in zip(self.local_shape(shape, mesh), self.dims, strict=True):
            index = 0
            for a in axes:
                index = index * mesh.sizes[a] + c[a]
            out.append(slice(index * s, (index + 1) * s))
        return tuple(out)

    def __str__(self) -> str:
        dims = ",".join(".".join(d) or "_" for d in self.dims)
        tail = "".join(f"+{a}" if op is Reduction.SUM else f"+{a}({op})" for a, op in self.partial)
        return f"[{dims}]{tail}"

    def to_json(self, mesh: str) -> dict[str, Any]:
        return {"mesh": mesh, "dims": [list(d) for d in self.dims], "partial": {a: str(op) for a, op in self.partial}}
