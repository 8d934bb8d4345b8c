"""Tensors that are written into, none in the memory of another."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from torch import Tensor

__all__ = ["Apart"]


class Apart:
    """Called with tensors one by one, returns each, or a copy where it lies in memory of one before or of those that
    `stay` as they are.  Pieces of one buffer stay where they are."""

    def __init__(self, stay: Iterable[Tensor]) -> None:
        self._taken: dict[int, list[tuple[int, int]]] = defaultdict(list)  # storage → first bytes, and bytes behind
        for tensor in stay:
            storage = tensor.untyped_storage()
            self._taken[storage.data_ptr()].append((0, storage.nbytes()))

    def __call__(self, tensor: Tensor) -> Tensor:
        """The tensor, contiguous."""
        found = tensor.contiguous()
        begin, end = _extent(found)
        others = self._taken[found.untyped_storage().data_ptr()]
        if any(first < end and begin < last for first, last in others):
            return found.clone()  # in memory of its own, which none of the others can share while it lives
        others.append((begin, end))
        return found


def _extent(tensor: Tensor) -> tuple[int, int]:
    """The bytes of its storage that a contiguous tensor lies in."""
    begin = tensor.storage_offset() * tensor.element_size()
    return begin, begin + tensor.nbytes
