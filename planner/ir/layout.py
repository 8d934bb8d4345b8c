"""How a tensor lies on a mesh.

Text form: one entry per dimension, `_` for whole, axis names joined by `.` (outermost first) for
split; pending reductions follow a plus sign: `[x,_,z.y]`, `[_,y]+x`, `[_]+x(max)`.  `x:3` splits each of three equal
parts of the dimension: of queries, keys and values that lie behind each other, every rank has its heads of all three
(DTensor's `_StridedShard`).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from itertools import chain
from typing import Any

import numpy as np

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
    most once; axes that do not appear hold replicas.  `parts[d]` is the number of equal parts of dimension d of
    which each is split by itself; empty where all dimensions are split as one.
    """

    dims: tuple[tuple[str, ...], ...]
    partial: tuple[tuple[str, Reduction], ...] = ()
    parts: tuple[int, ...] = ()

    @classmethod
    def replicated(cls, rank: int) -> Layout:
        return cls(((),) * rank)

    @property
    def split_axes(self) -> tuple[str, ...]:
        return tuple(chain.from_iterable(self.dims))

    @property
    def partial_axes(self) -> tuple[str, ...]:
        return tuple(a for a, _ in self.partial)

    @property
    def is_replicated(self) -> bool:
        return not self.partial and not any(self.dims)

    def shards(self, mesh: DeviceMesh) -> int:
        """Number of distinct pieces the tensor is cut into."""
        return mesh.size(chain.from_iterable(self.dims))

    def counts(self, mesh: DeviceMesh) -> tuple[int, ...]:
        """Into how many pieces each dimension is cut."""
        return tuple(mesh.size(d) for d in self.dims)

    def parts_of(self, dim: int) -> int:
        """The number of equal parts of a dimension that are split each by itself."""
        return self.parts[dim] if self.parts else 1

    def unfolded(self, shape: tuple[int, ...], parts: tuple[int, ...] = ()) -> tuple[tuple[int, ...], Layout]:
        """Shape and layout where dimensions that are split in parts (`parts`: of these numbers) are two: which part,
        and where in it."""
        sizes: list[int] = []
        dims: list[tuple[str, ...]] = []
        for size, axes, count in zip(shape, self.dims, parts or self.parts or (1,) * len(shape), strict=True):
            sizes += [size] if count == 1 else [count, size // count]
            dims += [axes] if count == 1 else [(), axes]
        return tuple(sizes), Layout(tuple(dims), self.partial)

    def local_shape(self, shape: tuple[int, ...], mesh: DeviceMesh) -> tuple[int, ...]:
        """Shape of one shard.  ValueError, naming the dimension, where a split is uneven."""
        out = []
        for i, (s, axes) in enumerate(zip(shape, self.dims, strict=True)):
            n = mesh.size(axes)
            if s % (n * self.parts_of(i)):
                raise ValueError(f"dimension {i} of size {s} does not divide over axes {'.'.join(axes)} ({n} shards)")
            out.append(s // n)
        return tuple(out)

    def region(self, shape: tuple[int, ...], mesh: DeviceMesh, rank: int) -> tuple[slice, ...]:
        """The part of the whole tensor that lies on `rank`.  ValueError where it is not one part: see `unfolded`."""
        if self.parts:
            raise ValueError(f"a shard under {self} is no single region of the tensor")
        c = mesh.coordinates(rank)
        out = []
        for s, axes in zip(self.local_shape(shape, mesh), self.dims, strict=True):
            index = 0
            for a in axes:
                index = index * mesh.sizes[a] + c[a]
            out.append(slice(index * s, (index + 1) * s))
        return tuple(out)

    def region_in_parts(self, shape: tuple[int, ...], mesh: DeviceMesh, rank: int) -> tuple[slice, ...]:
        """As `region`; of a dimension that is split in parts, where in each of them."""
        sizes = tuple(n // self.parts_of(d) for d, n in enumerate(shape))
        self.local_shape(shape, mesh)
        return Layout(self.dims, self.partial).region(sizes, mesh, rank)

    def shard(self, value: np.ndarray, mesh: DeviceMesh, rank: int) -> np.ndarray:
        """The part of a whole array that lies on `rank`, whatever is pending; a view of it where it can be one."""
        shape, plain = self.unfolded(value.shape)
        piece = value.reshape(shape)[plain.region(shape, mesh, rank)]
        return np.asarray(piece.reshape(self.local_shape(value.shape, mesh)))

    def __str__(self) -> str:
        dims = ",".join((".".join(d) or "_") + self._of_parts(i) for i, d in enumerate(self.dims))
        tail = "".join(f"+{a}" if op is Reduction.SUM else f"+{a}({op})" for a, op in self.partial)
        return f"[{dims}]{tail}"

    def _of_parts(self, dim: int) -> str:
        return f":{self.parts[dim]}" if self.parts_of(dim) > 1 else ""

    def to_json(self, mesh: str) -> dict[str, Any]:
        """`parts` stands there only where a dimension is split in parts."""
        parts = {"parts": list(self.parts)} if self.parts else {}
        dims, partial = [list(d) for d in self.dims], {a: str(op) for a, op in self.partial}
        return {"mesh": mesh, "dims": dims, "partial": partial} | parts
