"""Layouts in MindSpore's terms: a device matrix, a tensor map, and how the optimizer's shards go on from there.

A device matrix is row-major over the ranks.  `tensor_map[d]` is the axis of the matrix that splits dimension d, counted
from the right, -1 where none does; a tuple names several axes, outermost first.  Where the optimizer keeps a part of a
weight, dimension 0 is cut once more, among the innermost ranks that compute with equal parts: `optimizer_shards` of
them, `optimizer_step` ranks apart (mindspore/parallel/_tensor.py; DESIGN: strategy files).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from planner.errors import InputError
from planner.ir import DeviceMesh, Layout, MeshAxis
from planner.ir.mesh import AXIS_NAMES

__all__ = ["Arrangement", "Places", "arranged", "common_mesh", "layouts_of"]

Places = tuple[int | tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class Arrangement:
    """How a parameter lies on the ranks of a pipeline stage.  `optimizer_shards` 0: the optimizer has no shards."""

    device_matrix: tuple[int, ...]
    tensor_map: Places
    optimizer_step: int = 0
    optimizer_shards: int = 0

    @property
    def ranks(self) -> int:
        return math.prod(self.device_matrix)

    def shards(self, dim: int) -> int:
        """Parts that dimension `dim` is computed with."""
        return math.prod(self.device_matrix[-1 - a] for a in _axes(self.tensor_map[dim]))

    @property
    def replicas(self) -> int:
        """Ranks that compute with equal parts."""
        return self.ranks // math.prod(self.shards(d) for d in range(len(self.tensor_map)))

    def divided(self, shards: int) -> Arrangement:
        """With so many of the optimizer's shards, 1 for none.

        The step is what MindSpore writes: of ranks with equal parts the last less the first, by the steps between
        them, rounded down where they are no equal ones (`OperatorInfo::CreateGroupForOptShard`).
        """
        if shards <= 1:
            return Arrangement(self.device_matrix, self.tensor_map)
        last = sum((size - 1) * reach for size, reach in self._idle())
        return Arrangement(self.device_matrix, self.tensor_map, last // (self.replicas - 1), shards)

    def takes(self, shards: int, rows: int) -> bool:
        """Whether optimizer parallel divides dimension 0, of so many rows, once more into so many shards, of which
        each mesh axis has all or a part."""
        if not self.tensor_map or rows % (self.shards(0) * shards):
            return False
        left = shards
        for size, _ in self._idle():
            if left % size and size % left:
                return False
            left = max(1, left // size)
        return left == 1

    def _idle(self) -> list[tuple[int, int]]:
        """Sizes of the axes along which ranks compute with equal parts, innermost first, and the ranks between
        neighbours on each."""
        used = {a for place in self.tensor_map for a in _axes(place)}
        reach, found = 1, []
        for axis, size in enumerate(reversed(self.device_matrix)):
            if axis not in used:
                found.append((size, reach))
            reach *= size
        return found


def arranged(compute: Layout, mesh: DeviceMesh) -> Arrangement:
    """The layout in which a parameter is computed with.

    Raises:
        ValueError: saying what of the layout MindSpore cannot express.
    """
    if compute.partial:
        raise ValueError(f"{compute} is a pending sum, which no parameter can be")
    sizes = {a.name: a.size for a in mesh.axes if a.size > 1}
    dims = [tuple(a for a in d if a in sizes) for d in compute.dims]
    matrix, place = _merged(sizes, dims)
    tensor_map = tuple(_flat([place[a] for a in _runs(d, place)]) for d in dims)
    if len(tensor_map) == 1 and isinstance(tensor_map[0], tuple):
        raise ValueError(
            f"it is a vector split by axes {'.'.join(dims[0])}, which are no neighbours in that order; a tensor map of "
            "one dimension names one axis"
        )
    return Arrangement(tuple(matrix), tensor_map)


def _merged(sizes: dict[str, int], dims: Sequence[tuple[str, ...]]) -> tuple[list[int], dict[str, int]]:
    """A device matrix in which neighbouring axes that split one dimension together are one, and each axis's place in
    it, counted from the right."""
    names = list(sizes)
    together = {pair for d in dims for pair in pairwise(d)}
    runs: list[list[str]] = []
    for name in names:
        if runs and (runs[-1][-1], name) in together:
            runs[-1].append(name)
        else:
            runs.append([name])
    matrix = [math.prod(sizes[n] for n in run) for run in runs] or [1]
    place = {n: len(runs) - 1 - i for i, run in enumerate(runs) for n in run}
    return matrix, place


def _runs(dim: tuple[str, ...], place: dict[str, int]) -> list[str]:
    """One axis for each place that the dimension is split by."""
    return [a for i, a in enumerate(dim) if i == 0 or place[dim[i - 1]] != place[a]]


def _flat(places: list[int]) -> int | tuple[int, ...]:
    if not places:
        return -1
    return places[0] if len(places) == 1 else tuple(places)


def _axes(place: int | tuple[int, ...]) -> tuple[int, ...]:
    return tuple(a for a in (place if isinstance(place, tuple) else (place,)) if a >= 0)


def common_mesh(arrangements: Iterable[Arrangement]) -> DeviceMesh:
    """The coarsest mesh whose axes, joined, form every device matrix and every optimizer group.

    InputError where the matrices are of different numbers of ranks, or cut them at ranks that do not nest.
    """
    cuts: set[int] = set()  # distances in ranks between neighbours along an axis
    ranks: set[int] = set()
    for a in arrangements:
        ranks.add(a.ranks)
        reach = 1
        for size in reversed(a.device_matrix):
            reach *= size
            cuts.add(reach)
        if a.optimizer_shards > 0:
            cuts |= set(_optimizer_cuts(a))
    if len(ranks) != 1:
        found = ", ".join(map(str, sorted(ranks))) or "none"
        raise InputError(f"expected every device matrix to hold the same ranks, found {found}")
    steps = sorted(cuts | {1})
    axes: list[int] = []
    for inner, outer in pairwise(steps):
        if outer % inner:
            raise InputError(f"device matrices cut the ranks into groups of {inner} and of {outer}, which do not nest")
        axes.insert(0, outer // inner)
    if len(axes) > len(AXIS_NAMES):
        raise InputError(f"device matrices need {len(axes)} mesh axes, at most {len(AXIS_NAMES)} can be planned with")
    return DeviceMesh(tuple(MeshAxis(AXIS_NAMES[i], s) for i, s in enumerate(axes or [1])))


def _optimizer_cuts(a: Arrangement) -> list[int]:
    """Distances at which the innermost idle axes are cut so that `optimizer_shards` come out."""
    used = {axis for place in a.tensor_map for axis in _axes(place)}
    cuts, left, reach = [], a.optimizer_shards, 1
    for axis, size in enumerate(reversed(a.device_matrix)):
        if axis not in used and left > 1 and size > 1:
            taken = min(size, left)
            cuts.append(reach * taken)
            left //= taken
        reach *= size
    return cuts


def layouts_of(a: Arrangement, mesh: DeviceMesh) -> tuple[Layout, Layout]:
    """(as computed with, as stored) on a mesh that `common_mesh` made of it and others."""
    reach, spans = 1, []
    for size in reversed(a.device_matrix):
        spans.append((reach, reach * size))
        reach *= size
    strides = {axis.name: mesh.stride(axis.name) for axis in mesh.axes if axis.size > 1}

    def inside(place: int) -> tuple[str, ...]:
        low, high = spans[place]
        return tuple(n for n, s in strides.items() if low <= s < high)

    dims = [tuple(n for place in _axes(p) for n in inside(place)) for p in a.tensor_map]
    compute = Layout(tuple(dims))
    used = set(compute.split_axes)
    beyond: list[str] = []
    left = a.optimizer_shards
    for name in reversed([n for n in strides if n not in used]):
        if left <= 1:
            break
        beyond.insert(0, name)
        left = left // mesh.sizes[name] if left % mesh.sizes[name] == 0 else 0
    # What MindSpore writes, or, of files written by hand, the ranks between neighbours on the innermost axis.
    steps = (0, a.divided(a.optimizer_shards).optimizer_step, mesh.stride(beyond[-1]) if beyond else 0)
    if beyond and (left != 1 or a.optimizer_step not in steps):
        raise InputError(
            f"expected optimizer shards of the innermost ranks with equal parts, found {a.optimizer_shards}, "
            f"{a.optimizer_step} ranks apart, of device matrix {list(a.device_matrix)}"
        )
    stored = Layout(((*dims[0], *beyond), *dims[1:])) if dims else compute
    return compute, stored
