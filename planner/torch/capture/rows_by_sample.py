"""Chosen rows sorted by samples, `h[ids == end].view(len(h), -1, h.shape[-1])`, of which the last or first is taken.

So classifiers read what stands at the end of each sequence.  As in the module, as many rows of each sample must count.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

__all__ = ["RowsBySample"]


class RowsBySample:
    """Those of a step."""

    def __init__(self) -> None:
        self._masks: dict[int, tuple[Tensor, Tensor]] = {}  # rows by sample, and which of them count

    def among(self, leaves: Sequence[Any]) -> bool:
        return any(id(x) in self._masks for x in leaves)

    def sorted(self, rows: Tensor, mask: Tensor, args: Sequence[Any]) -> Tensor | None:
        """`rows.view(samples, -1, …)`, where a mask of samples and places chose them; None where it is another view."""
        sizes = args[0] if len(args) == 1 and isinstance(args[0], tuple | list) else args
        if mask.ndim != 2 or not all(isinstance(n, int) for n in sizes):
            return None
        if tuple(sizes) != (mask.shape[0], -1, *rows.shape[1:]):
            return None
        found = rows.view(*mask.shape, *rows.shape[1:])
        self._masks[id(found)] = found, mask
        return found

    def taken(self, name: str, rows: Tensor, *others: Any) -> Tensor | None:
        """`rows[:, -1]` or `rows[:, 0]`; None where it is another call."""
        index = others[0] if name == "__getitem__" and isinstance(others[0], tuple) else ()
        which = index[1] if len(index) > 1 else None
        if which not in (0, -1) or isinstance(which, bool) or any(i != slice(None) for i in (index[0], *index[2:])):
            return None
        _, mask = self._masks[id(rows)]
        samples, length = mask.shape
        places = torch.arange(length, device=rows.device)
        found = torch.where(mask, places, -1).amax(1) if which else torch.where(mask, places, length).amin(1)
        place = found.clamp(0, length - 1).view(samples, 1, *(1,) * (rows.ndim - 2))
        return rows.gather(1, place.expand(samples, 1, *rows.shape[2:])).squeeze(1)
