"""Cross-entropy over whole classes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import get_proxy_mode
from torch.nn import functional

from planner.runtime.registry import Call, operator

__all__ = ["RowLosses"]

CLASSES = "c"


@operator("SoftmaxCrossEntropyLoss", "com.microsoft::SoftmaxCrossEntropyLossInternal", aware=True)
def _cross_entropy(c: Call) -> Sequence[Tensor | None] | None:
    """With fewer passes over the scores than the kernel that is written once; the mean needs the weight of the labels
    that count."""
    if c.place.splits(CLASSES):
        return None
    labels, weights, reduction = c.operand(1), c.maybe(2), c.attr("reduction", "mean")
    ignored = c.attr("ignore_index") if c.maybe(3) is None else c.number(3)
    used = torch.ones_like(labels, dtype=torch.bool) if ignored is None else labels != ignored
    labels = torch.where(used, labels, 0).long()
    log_p: Tensor | None = None
    if any(c.op.outputs[1:]):
        log_p = functional.log_softmax(c.x, 1)
        rows = functional.nll_loss(log_p, labels, weights, reduction="none")
    else:
        rows = RowLosses.apply(c.x, labels, weights)
    rows = rows * used
    if reduction == "none":
        return [rows, log_p][: len(c.op.outputs)]
    if reduction == "sum":
        return [rows.sum(), log_p][: len(c.op.outputs)]
    each = used.to(rows.dtype) if weights is None else used * weights[labels]
    sums = torch.stack([rows.sum(), each.sum().to(rows.dtype)])
    for factor in c.reduced:
        sums = c.inside.total(sums, factor)
    return [sums[0] / sums[1], log_p][: len(c.op.outputs)]


class RowLosses(torch.autograd.Function):
    """Cross-entropy of each row of scores, whose backward pass makes one tensor of their size: PyTorch's own makes two,
    where scores of a language model are often the largest tensors of a step."""

    @staticmethod
    def forward(ctx: Any, scores: Tensor, labels: Tensor, weights: Tensor | None) -> Tensor:
        log_p = functional.log_softmax(scores, 1)
        ctx.save_for_backward(log_p, labels, weights)
        return functional.nll_loss(log_p, labels, weights, reduction="none")

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        log_p, labels, weights = ctx.saved_tensors
        scale = (gradient if weights is None else gradient * weights[labels]).unsqueeze(1)
        at = labels.unsqueeze(1)
        # Of the label p - 1, which loses all digits in narrow types where p is nearly one.
        own = (torch.expm1(log_p.gather(1, at).to(torch.promote_types(log_p.dtype, torch.float32))) * scale).to(
            log_p.dtype
        )
        if get_proxy_mode() is None:
            return log_p.exp().mul_(scale).scatter_(1, at, own), None, None
        return (log_p.exp() * scale).scatter(1, at, own), None, None  # graphs are to write nothing in place
