"""Cross-entropy over whole classes."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from planner.runtime.registry import Call, operator

__all__: list[str] = []

CLASSES = "c"


@operator("SoftmaxCrossEntropyLoss", "com.microsoft::SoftmaxCrossEntropyLossInternal", aware=True)
def _cross_entropy(c: Call) -> Sequence[Tensor | None] | None:
    """PyTorch's own, which makes fewer passes over the scores than the kernel that is written once; the mean needs the
    weight of the labels that count."""
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
        rows = functional.cross_entropy(c.x, labels, weights, reduction="none")
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
