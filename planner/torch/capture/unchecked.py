"""What torch checks of the values of tensors before it computes, left out while torch.export follows a step.

The flow of such a check depends on values, which torch.export cannot follow, and none of what is computed depends on
it: `torch.distributions` compares parameters and samples with what they may be, `gaussian_nll_loss` looks for
variances below zero, and Hugging Face counts the tokens that images stand for.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Final

import torch
from torch import Tensor
from torch.nn import functional

__all__ = ["without_checks"]


def without_checks(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of torch, or what computes the same without checking values."""
    return _INSTEAD.get(function, function)


def _gaussian_nll(
    input: Tensor, target: Tensor, var: Tensor | float, full: bool = False, eps: float = 1e-6, reduction: str = "mean"
) -> Tensor:
    """Minus the logarithm of a normal density.  Variances below `eps` count as that, and get gradients all the same,
    as torch has it."""
    known = var if isinstance(var, Tensor) else torch.full_like(input, var)
    if known.shape != input.shape and known.shape == input.shape[:-1]:
        known = known.unsqueeze(-1)
    held = known + (known.clamp(min=eps) - known).detach()
    loss = 0.5 * (torch.log(held) + (input - target) ** 2 / held)
    loss = loss + 0.5 * math.log(2 * math.pi) if full else loss
    return loss.mean() if reduction == "mean" else loss.sum() if reduction == "sum" else loss


class _Holds:
    """What a check finds where nothing is wrong, as a truth or a tensor of one."""

    def __bool__(self) -> bool:
        return True

    def item(self) -> bool:
        return True


_INSTEAD: Final[Mapping[Callable[..., Any], Callable[..., Any]]] = {
    functional.gaussian_nll_loss: _gaussian_nll,
    # By which torch.distributions and torch._check_tensor_all say whether values are as they should be.
    torch._is_all_true: lambda _: _Holds(),
    Tensor._is_all_true: lambda _: _Holds(),
}
