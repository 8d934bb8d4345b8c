"""Bytes of tensors that live at a time; on CPUs, whose allocator does not say, they are counted."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

__all__ = ["LiveBytes", "peak_bytes"]


class LiveBytes(TorchDispatchMode):
    """Within it, the storages that operators make are counted until they are let go; `there`: tensors that are there
    before, and counted as well.  What runs inside of an operator, or of a compiled graph, is not seen.

    `now` and `peak` are in bytes.
    """

    def __init__(self, there: Iterable[Tensor] = ()) -> None:
        super().__init__()
        self.now = self.peak = 0
        self._seen: dict[int, weakref.finalize[..., Any]] = {}
        for tensor in there:
            self._count(tensor)

    def __torch_dispatch__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        found = func(*args, **(kwargs or {}))
        for x in tree_iter(found):
            if isinstance(x, Tensor):
                self._count(x)
        return found

    def _count(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self._seen:
            return
        size = storage.nbytes()
        self.now += size
        self.peak = max(self.peak, self.now)
        self._seen[key] = weakref.finalize(storage, self._gone, key, size)

    def _gone(self, key: int, size: int) -> None:
        self.now -= size
        self._seen.pop(key, None)

    def close(self) -> None:
        """Stops counting."""
        for gone in self._seen.values():
            gone.detach()
        self._seen.clear()


def peak_bytes(step: Callable[[], object], device: torch.device, there: Iterable[Tensor]) -> int:
    """Bytes that live at the fullest moment of a step; `there`: tensors that it finds, which a GPU's allocator has."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        step()
        return int(torch.cuda.max_memory_allocated(device))
    with LiveBytes(there) as live:
        step()
    live.close()
    return live.peak
