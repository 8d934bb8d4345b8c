"""What a value takes on one device, and for how long."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from planner.ir import Layout
from planner.trace.placed import Placed

__all__ = ["Key", "Layouts", "Storage"]

Key = tuple[str, int]  # a tensor and the number of a layout


@dataclass(slots=True, eq=False)
class Storage:
    """Bytes from instruction `begin` to `end`, both included.

    `resident`: the same at every step.  `readers`: units whose backward pass reads it; `core`: the core of an attention
    alone does, and makes it again where it runs again.
    """

    cause: str
    size: int
    begin: int
    end: int
    resident: bool = False
    readers: set[int] = field(default_factory=set)
    core: bool = False


_WHOLE: dict[int, Layout] = {}  # by rank


class Layouts:
    """Numbers of layouts, and bytes of tensors in them on one device."""

    def __init__(self, at: Placed) -> None:
        self.at, self.mesh, self.tensors = at, at.mesh, at.graph.tensors
        self._by_id: dict[int, int] = {}
        self._by_value: dict[Layout, int] = {}
        self._numbers: dict[int, list[int | None]] = {}  # by the layouts of a strategy, which the program holds
        self.known: list[Layout] = []
        self._shards: list[int] = []
        self._sizes: dict[Key, int] = {}

    def number(self, layout: Layout) -> int:
        found = self._by_id.get(id(layout))
        if found is None:
            found = self._by_value.setdefault(layout, len(self.known))
            if found == len(self.known):
                self.known.append(layout)
                self._shards.append(layout.shards(self.mesh))
            self._by_id[id(layout)] = found
        return found

    def key(self, name: str, layout: Layout | None) -> Key:
        if layout is None:
            layout = self._whole(name)
        return name, self.number(layout)

    def keys(self, names: Sequence[str], layouts: Sequence[Layout | None]) -> list[Key | None]:
        """Of tensors and their layouts, which operators of one strategy share; None where there is no tensor."""
        numbers = self._numbers.get(id(layouts))
        if numbers is None:
            numbers = self._numbers[id(layouts)] = [None if x is None else self.number(x) for x in layouts]
        return [
            None if not n else (n, k) if k is not None else self.key(n, None)
            for n, k in zip(names, numbers, strict=True)
        ]

    def _whole(self, name: str) -> Layout:
        rank = self.tensors[name].rank
        if rank not in _WHOLE:
            _WHOLE[rank] = Layout.replicated(rank)
        return _WHOLE[rank]

    def size(self, key: Key) -> int:
        size = self._sizes.get(key)
        if size is None:
            size = self._sizes[key] = -(-self.at.settings.tensor_bytes(self.tensors[key[0]]) // self._shards[key[1]])
        return size
