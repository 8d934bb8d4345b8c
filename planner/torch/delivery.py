"""How the gradients of a step that is over come to their parameters."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from planner.runtime.placements import local_tensor

__all__ = ["Deliver", "multiply"]


class Deliver(torch.autograd.Function):
    """Hands gradients that are there already to their parameters, times the gradient of the loss.

    They are put in their place as FSDP puts them, past autograd, which would detach and check each DTensor by itself;
    hooks of the parameters are called as autograd would call them.
    """

    @staticmethod
    def forward(ctx: Any, loss: Tensor, anchor: Tensor, delivery: list[tuple[nn.Parameter, Tensor]]) -> Tensor:
        ctx.delivery = delivery
        return loss.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[None, None, None]:
        found, ctx.delivery = ctx.delivery, None
        if found is None:
            raise RuntimeError("the gradients of a step are handed over once; call the module again")
        if found and (gradient.device.type != "cpu" or float(gradient) != 1.0):
            multiply([g._local_tensor if isinstance(g, DTensor) else g for _, g in found], gradient)
        for p, g in found:
            for hook in tuple((p._backward_hooks or {}).values()):
                changed = hook(g)
                g = g if changed is None else changed
            if p.grad is None:
                p.grad = g
            else:
                local_tensor(p.grad).add_(local_tensor(g))
            for done in tuple((p._post_accumulate_grad_hooks or {}).values()):
                done(p)
        return None, None, None


def multiply(tensors: Sequence[Tensor], by: Tensor) -> None:
    """In place, in few kernels: PyTorch starts one for each tensor where the factor is of another type.

    A factor that a narrow type cannot hold, as 65536 of a gradient scaler in fp16, stays in single precision.  Of bf16
    it is rounded to bf16 except on CPUs, as PyTorch rounds it: no other kernel multiplies many tensors of it at once.
    """
    of_type: dict[torch.dtype, list[Tensor]] = defaultdict(list)
    for tensor in tensors:
        of_type[tensor.dtype].append(tensor)
    for dtype, alike in of_type.items():
        holds = dtype.itemsize >= by.dtype.itemsize or (dtype is torch.bfloat16 and by.device.type != "cpu")
        if holds:
            torch._foreach_mul_(alike, by.to(dtype))
        else:  # the kernel of gradient scalers, which multiplies in single precision; on GPUs PyTorch has none for bf16
            unused = torch.zeros(1, device=by.device)
            torch._amp_foreach_non_finite_check_and_unscale_(alike, unused, by.reshape(1).float())
