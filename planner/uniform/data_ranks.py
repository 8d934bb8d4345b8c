"""Mesh axes of data parallelism, where a program of few such ranks stands for more, or for ZeRO over groups of them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from planner.clock import Configuration
from planner.ir import DeviceMesh, Layout
from planner.planning.schemes.rank_axes import rank_axes

__all__ = ["DataRanks"]


@dataclass(frozen=True)
class DataRanks:
    """`mesh`: of all ranks of one stage; `over`: axes over which ZeRO divides weights; `context`: the axis of ranks
    that divide positions, if any; `named`: axis of the mesh of the program → axes that it has become, of which `copies`
    is the one whose ranks hold the same parts of weights."""

    mesh: DeviceMesh
    over: tuple[str, ...]
    context: tuple[str, ...]
    named: tuple[tuple[str, tuple[str, ...]], ...]
    copies: str | None

    @classmethod
    def of(cls, c: Configuration) -> DataRanks:
        """Those of `c`, by a program of the same that divides weights over all ranks."""
        ranks = c.dp // c.ep
        parts = ranks if c.shard_ranks is None else c.shard_ranks // (c.ep * c.cp)
        axes = rank_axes(c, parts)
        mesh = DeviceMesh.of(*(size for _, size in axes)) if axes else DeviceMesh.of(1)
        name = dict(zip((kind for kind, _ in axes), mesh.names, strict=False))
        data = tuple(name[kind] for kind in ("copies", "data") if kind in name)
        others = [(name[kind],) for kind, _ in axes if kind not in ("copies", "data")]
        become = [*([data] if data else []), *others] or [mesh.names]
        over = tuple(name[kind] for kind in ("data", "expert", "context") if kind in name) if c.zero else ()
        known = DeviceMesh.of(*(1 for _ in become)).names
        context = (name["context"],) if "context" in name else ()
        return cls(mesh, over, context, tuple(zip(known, become, strict=True)), name.get("copies"))

    def layout(self, x: Layout) -> Layout:
        """The layout of the program, of weights or gradients of them, on this mesh."""
        dims = tuple(tuple(name for axis in d for name in self._split[axis]) for d in x.dims)
        pending = {name: how for axis, how in x.partial for name in self._named[axis]}
        partial = tuple((name, pending[name]) for name in self.mesh.names if name in pending)
        return Layout(dims, partial, x.parts)

    @cached_property
    def _named(self) -> dict[str, tuple[str, ...]]:
        return dict(self.named)

    @cached_property
    def _split(self) -> dict[str, tuple[str, ...]]:
        return {axis: tuple(n for n in names if n != self.copies) for axis, names in self.named}
