"""Cross-entropy while batch, space or classes are split."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from planner.runtime.registry import Call, operator

__all__: list[str] = []

CLASSES = "c"


@operator("SoftmaxCrossEntropyLoss", aware=True)
def _cross_entropy(c: Call) -> Tensor | None:
    """The mean needs the number of labels that count; split classes need each row's maximum, its sum of exponentials
    and its label's score from the ranks that hold them."""
    if c.maybe(2) is not None or c.attr("reduction", "mean") != "mean" or sum(bool(n) for n in c.op.outputs) > 1:
        return None
    labels, ignored = c.operand(1), c.attr("ignore_index")
    used = torch.ones_like(labels, dtype=torch.bool) if ignored is None else labels != ignored
    rows = _rows_of_split_classes(c, labels, used) if c.place.splits(CLASSES) else _rows(c, labels, used)
    sums = torch.stack([(rows * used).sum(), used.sum().to(rows.dtype)])
    for factor in c.reduced:
        if factor != CLASSES:
            sums = c.inside.total(sums, factor)
    return sums[0] / sums[1]


def _rows(c: Call, labels: Tensor, used: Tensor) -> Tensor:
    return functional.cross_entropy(c.x, torch.where(used, labels, 0), reduction="none")


def _rows_of_split_classes(c: Call, labels: Tensor, used: Tensor) -> Tensor:
    local = labels - c.place.offset[CLASSES]
    held = used & (local >= 0) & (local < c.x.shape[1])
    largest = c.inside.reduced(c.x.detach().amax(1), CLASSES, "max")
    shifted = c.x - largest.unsqueeze(1)
    picked = shifted.gather(1, torch.where(held, local, 0).unsqueeze(1)).squeeze(1) * held
    parts = c.inside.total(torch.stack([torch.exp(shifted).sum(1), picked]), CLASSES)
    return torch.log(parts[0]) - parts[1]
