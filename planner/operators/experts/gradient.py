"""Products whose weight every token chooses, tokens grouped by expert."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from planner.kernels.attributes import Array
from planner.kernels.gradients import Call, register, unbroadcast

__all__ = ["ExpertGradients", "expert_gradients", "expert_product", "token_rows"]


@dataclass(frozen=True, slots=True)
class ExpertGradients:
    """Gradients of token rows, weights and bias."""

    rows: Array
    weights: Array
    bias: Array


def token_rows(x: Array, tokens: tuple[int, ...]) -> Array:
    """One row of x for every token; dimensions of one are repeated."""
    return np.broadcast_to(x, (*tokens, x.shape[-1])).reshape(-1, x.shape[-1])


def expert_product(rows: Array, experts: Array, weights: Array, bias: Array | None, *, trans_b: bool) -> Array:
    """Row t times the weight of expert `experts[t]`: [rows, out]."""
    out = np.zeros((len(rows), weights.shape[1 if trans_b else 2]), dtype=rows.dtype)
    for expert, chosen in _groups(experts):
        w = weights[expert]
        y = _wide(rows[chosen]) @ _wide(w.T if trans_b else w)
        out[chosen] = y if bias is None else y + bias[expert]
    return out


def expert_gradients(rows: Array, experts: Array, weights: Array, dy: Array, *, trans_b: bool) -> ExpertGradients:
    """Gradients of `expert_product`."""
    dx = np.zeros_like(rows)
    dw = np.zeros_like(weights)
    db = np.zeros((len(weights), dy.shape[1]), dtype=weights.dtype)
    for expert, chosen in _groups(experts):
        w, x, g = _wide(weights[expert]), _wide(rows[chosen]), _wide(dy[chosen])
        dx[chosen] = g @ (w if trans_b else w.T)
        dw[expert] = g.T @ x if trans_b else x.T @ g
        db[expert] = g.sum(axis=0)
    return ExpertGradients(dx, dw, db)


def _groups(experts: Array) -> Iterator[tuple[int, Array]]:
    """Each expert that is chosen, and the rows that chose it."""
    order = np.argsort(experts, kind="stable")
    found, starts = np.unique(experts[order], return_index=True)
    for expert, chosen in zip(found, np.split(order, starts[1:]), strict=False):
        yield int(expert), chosen


def _wide(x: Array) -> Array:
    """Products of half precision add up in single precision."""
    return x.astype(np.float32) if x.dtype.itemsize < 4 else x


@register("planner::ExpertMatMul")
def _expert_matmul(c: Call) -> list[Array | None]:
    x, weights, indices = c.x, c.operand(1), c.operand(2)
    tokens = c.dy.shape[:-1]
    flat = indices.reshape(-1)
    experts = np.where(flat < 0, flat + len(weights), flat)
    dy = c.dy.reshape(-1, c.dy.shape[-1])
    found = expert_gradients(token_rows(x, tokens), experts, weights, dy, trans_b=bool(c.attr("transB", 0)))
    dx = unbroadcast(found.rows.reshape(*tokens, x.shape[-1]), x.shape)
    return [dx, found.weights, None, found.bias]
