"""One operator to measure: what it is called, what it must do at least, and how a call of it is made."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

__all__ = ["Place", "Work", "gradient_calls"]

Call = Callable[[], Any]


@dataclass(frozen=True, slots=True)
class Place:
    """The device, and whether sizes are those of a trial without one."""

    device: torch.device
    tiny: bool = False

    def size(self, wanted: int, least: int = 8) -> int:
        """A dimension as wanted, or a small one for a trial."""
        return max(least, wanted // 64) if self.tiny else wanted

    def normal(self, *shape: int, dtype: torch.dtype = torch.bfloat16, scale: float = 1.0) -> Tensor:
        if dtype.itemsize == 1:
            return (torch.randn(*shape, device=self.device) * scale).to(dtype)
        return torch.randn(*shape, device=self.device, dtype=dtype) * scale

    def indices(self, below: int, *shape: int) -> Tensor:
        return torch.randint(below, shape, device=self.device)


@dataclass(frozen=True, slots=True)
class Work:
    """Attributes:
    name, facts: what a line of the results says of it.
    flops, bytes: of one call, at least; 0 where it does not matter.
    make: a call on operands of its own; its argument is the number of the operand set.
    held: bytes of one operand set, by which the number of sets is chosen; `copies` where that is given.
    repeats: how often the call does the work.
    """

    name: str
    make: Callable[[int], Call]
    facts: dict[str, Any] = field(default_factory=dict)
    flops: float = 0.0
    bytes: float = 0.0
    held: int = 0
    copies: int = 0
    repeats: int = 1
    most: int = 40


def gradient_calls(run: Callable[..., Tensor], *operands: Tensor) -> Call:
    """A call of the backward pass alone of `run` over `operands` that are differentiated."""
    leaves = [x.detach().requires_grad_() if x.is_floating_point() else x for x in operands]
    with torch.enable_grad():
        result = run(*leaves)
    incoming = torch.randn_like(result) if result.ndim else None
    wanted = [x for x in leaves if x.requires_grad]
    return lambda: torch.autograd.grad(result, wanted, incoming, retain_graph=True)
