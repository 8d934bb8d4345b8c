"""Products with the weights of chosen experts, tokens sorted by expert.

How many tokens chose an expert is known on the device alone: the product is an operator of its own to PyTorch, with
shapes that do not depend on it, which a trace may hold.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from planner.runtime.registry import Call, operator

__all__: list[str] = []

_ALIGNED = 16  # bytes at which a grouped product wants its rows to begin


def _grouped_product(rows: Tensor, weights: Tensor, ends: Tensor) -> Tensor:
    """Rows up to `ends[0]` times the first weight, from there up to `ends[1]` times the second one, and so on; zeros
    for the rest."""
    if _fits(rows, weights):
        found = functional.grouped_mm(rows, weights, offs=ends)
        left = torch.arange(len(rows), device=rows.device)[:, None] < ends[-1]
        return torch.where(left, found, 0)
    out = rows.new_zeros((rows.shape[0], weights.shape[2]))
    begin = 0
    for weight, end in zip(weights, ends.tolist(), strict=True):
        if end > begin:
            torch.mm(rows[begin:end], weight, out=out[begin:end])
        begin = end
    return out


def _product_of_no_values(rows: Tensor, weights: Tensor, ends: Tensor) -> Tensor:
    return rows.new_empty((rows.shape[0], weights.shape[2]))


def _grouped_outer(rows: Tensor, gradient: Tensor, ends: Tensor) -> Tensor:
    """Of the rows of each expert, the product of the transposed with their gradient."""
    out = rows.new_zeros((ends.shape[0], rows.shape[1], gradient.shape[1]))
    begin = 0
    for k, end in enumerate(ends.tolist()):
        if end > begin:
            torch.mm(rows[begin:end].t(), gradient[begin:end], out=out[k])
        begin = end
    return out


def _outer_of_no_values(rows: Tensor, gradient: Tensor, ends: Tensor) -> Tensor:
    return rows.new_empty((ends.shape[0], rows.shape[1], gradient.shape[1]))


def _fits(rows: Tensor, weights: Tensor) -> bool:
    """Whether PyTorch's own grouped product runs them: of a GPU, in bfloat16, with rows that lie aligned."""
    wide = all(n * rows.element_size() % _ALIGNED == 0 for n in weights.shape[1:])
    return rows.is_cuda and rows.dtype == torch.bfloat16 and wide and rows.is_contiguous()


def _saved(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _product_gradient(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
    rows, weights, ends = ctx.saved_tensors
    gradient = gradient.contiguous()
    dx = _PRODUCT(gradient, weights.transpose(1, 2), ends) if ctx.needs_input_grad[0] else None
    dw = _OUTER(rows, gradient, ends) if ctx.needs_input_grad[1] else None
    return dx, dw, None


_PRODUCT: Any = torch.library.custom_op("planner::grouped_product", _grouped_product, mutates_args=())
_OUTER: Any = torch.library.custom_op("planner::grouped_outer", _grouped_outer, mutates_args=())
_PRODUCT.register_fake(_product_of_no_values)
_OUTER.register_fake(_outer_of_no_values)
_PRODUCT.register_autograd(_product_gradient, setup_context=_saved)


def _product(rows: Tensor, experts: Tensor, weights: Tensor, bias: Tensor | None, *, trans_b: bool) -> Tensor:
    """Row t times the weight of expert `experts[t]`; zeros where that is none of these."""
    count = weights.shape[0]
    held = (experts >= 0) & (experts < count)
    key = torch.where(held, experts, count)
    order = torch.argsort(key, stable=True)
    ends = torch.searchsorted(key[order], torch.arange(count, device=key.device), right=True).to(torch.int32)
    sorted_rows = rows.index_select(0, order).contiguous()
    y = _PRODUCT(sorted_rows, weights.transpose(1, 2) if trans_b else weights, ends)
    back = torch.argsort(order)
    y = y.index_select(0, back)
    if bias is None:
        return y
    added = bias.index_select(0, torch.where(held, experts, 0))
    return y + torch.where(held[:, None], added, 0)


@operator("planner::ExpertMatMul", aware=True)
def _expert_matmul(c: Call) -> Sequence[Tensor] | None:
    """Whole experts, or those that a rank holds of them: the rest are zeros, and the result is a pending sum.

    With tokens and experts split over the same ranks, rows travel to the ranks that hold their experts, and back.
    """
    x, weights, indices, bias = c.x, c.operand(1), c.operand(2), c.maybe(3)
    tokens = torch.broadcast_shapes(indices.shape[: x.ndim - 1], x.shape[:-1])
    rows = x.expand(*tokens, x.shape[-1]).reshape(-1, x.shape[-1])
    whole = weights.shape[0] * c.place.shards.get("e", 1)
    chosen = indices.reshape(*indices.shape[: x.ndim - 1]).expand(tokens).reshape(-1).long()
    experts = torch.where(chosen < 0, chosen + whole, chosen)
    trans_b = bool(c.attr("transB", 0))
    mode = next((m for m in c.place.shards if m.endswith("&e")), "")
    if mode:
        y = _dispatched(c, mode, rows, experts, weights, bias, trans_b=trans_b)
    else:
        y = _product(rows, experts - c.place.offset.get("e", 0), weights, bias, trans_b=trans_b)
    return [y.reshape(*tokens, y.shape[-1])]


def _dispatched(
    c: Call, mode: str, rows: Tensor, experts: Tensor, weights: Tensor, bias: Tensor | None, *, trans_b: bool
) -> Tensor:
    """Rows sorted by the rank that holds their expert go there, and what they become comes back.

    How many go where is exchanged first, and read on the host.
    """
    ranks, each = c.place.shards[mode], weights.shape[0]
    owner = experts // each
    order = torch.argsort(owner, stable=True)
    counts = (owner[:, None] == torch.arange(ranks, device=owner.device)).sum(0)
    ones = [1] * ranks
    arriving = c.inside.exchanged(counts, mode, 0, ones, ones)
    send, receive = counts.tolist(), arriving.tolist()
    there = c.inside.exchanged(rows.index_select(0, order), mode, 0, send, receive)
    chosen = c.inside.exchanged(experts.index_select(0, order), mode, 0, send, receive)
    y = _product(there, chosen - c.place.offset["e"], weights, bias, trans_b=trans_b)
    back = c.inside.exchanged(y, mode, 0, receive, send)
    return back.index_select(0, torch.argsort(order))
