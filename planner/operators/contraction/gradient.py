"""Contractions: matrix products and Einstein sums."""

from __future__ import annotations

import math
from collections import Counter
from string import ascii_letters

import numpy as np

from planner.kernels.attributes import Array, string
from planner.kernels.gradients import Call, register, unbroadcast

__all__ = ["einsum_labels", "matmul_gradients"]

Gradients = list["Array | None"]


def matmul_gradients(a: Array, b: Array, dy: Array, *, want_a: bool, want_b: bool) -> Gradients:
    """Gradients of `a @ b` with numpy's rules for vectors and batch dimensions."""
    a2 = a[None, :] if a.ndim == 1 else a
    b2 = b[:, None] if b.ndim == 1 else b
    if a.ndim == 1:
        dy = np.expand_dims(dy, -1 if b.ndim == 1 else -2)
    if b.ndim == 1:
        dy = np.expand_dims(dy, -1)
    da: Array | None = None
    db: Array | None = None
    if want_a:
        da = unbroadcast(dy @ np.swapaxes(b2, -1, -2), a2.shape).reshape(a.shape)
    if want_b:
        if b2.ndim == 2:  # one product over all batches, without a weight gradient per batch
            rows = math.prod(a2.shape[:-1])  # said, since nothing tells it of arrays without elements
            db = a2.reshape(rows, a2.shape[-1]).T @ dy.reshape(rows, dy.shape[-1])
        else:
            db = unbroadcast(np.swapaxes(a2, -1, -2) @ dy, b2.shape)
        db = db.reshape(b.shape)
    return [da, db]


@register("MatMul")
def _matmul(c: Call) -> Gradients:
    return matmul_gradients(c.operand(0), c.operand(1), c.dy, want_a=c.wants(0), want_b=c.wants(1))


@register("com.microsoft::FusedMatMul", "com.microsoft::TransposeMatMul")
def _fused_matmul(c: Call) -> Gradients:
    """`transBatch` moves the first dimension before the last one, `trans` then swaps the last two."""
    sides = [(c.attr(f"transBatch{s}", 0), c.attr(f"trans{s}", 0)) for s in "AB"]

    def turned(x: Array, side: tuple[int, int]) -> Array:
        if x.ndim < 2:
            return x
        x = np.moveaxis(x, 0, -2) if side[0] else x
        return np.swapaxes(x, -1, -2) if side[1] else x

    def back(g: Array | None, side: tuple[int, int]) -> Array | None:
        if g is None or g.ndim < 2:
            return g
        g = np.swapaxes(g, -1, -2) if side[1] else g
        return np.moveaxis(g, -2, 0) if side[0] else g

    a, b = (turned(c.operand(i), side) for i, side in enumerate(sides))
    found = matmul_gradients(a, b, c.dy * c.attr("alpha", 1.0), want_a=c.wants(0), want_b=c.wants(1))
    return [back(g, side) for g, side in zip(found, sides, strict=True)]


@register("Det")
def _det(c: Call) -> Gradients:
    """Jacobi's formula; of singular matrices the adjugate is not computed."""
    return [(c.dy * c.y)[..., None, None] * np.swapaxes(np.linalg.inv(c.x), -1, -2)]


@register("com.microsoft::Inverse")
def _inverse(c: Call) -> Gradients:
    turned = np.swapaxes(c.y, -1, -2)
    return [-turned @ c.dy @ turned]


@register("Gemm")
def _gemm(c: Call) -> Gradients:
    a, b, bias = c.operand(0), c.operand(1), c.maybe(2)
    flip_a, flip_b = c.attr("transA", 0), c.attr("transB", 0)
    dy = c.dy * c.attr("alpha", 1.0)
    da = db = dc = None
    if c.wants(0):
        da = dy @ (b if flip_b else b.T)
        da = da.T if flip_a else da
    if c.wants(1):
        db = (a if flip_a else a.T) @ dy
        db = db.T if flip_b else db
    if bias is not None and c.wants(2):
        dc = unbroadcast(c.dy * c.attr("beta", 1.0), bias.shape)
    return [da, db, dc]


def einsum_labels(equation: str, ranks: list[int]) -> tuple[list[str], str]:
    """Labels of every operand and of the result, ellipses spelt out with unused letters.

    >>> einsum_labels("...ij,jk->...ik", [3, 2])
    (['Zij', 'jk'], 'Zik')
    """
    left, arrow, right = equation.replace(" ", "").partition("->")
    terms = left.split(",")
    spare = [s for s in reversed(ascii_letters) if s not in equation]
    hidden = max((r - len(t.replace("...", "")) for t, r in zip(terms, ranks, strict=True) if "..." in t), default=0)
    letters = "".join(reversed(spare[:hidden]))
    spelt = []
    for t, r in zip(terms, ranks, strict=True):
        n = r - len(t.replace("...", ""))
        spelt.append(t.replace("...", letters[len(letters) - n :] if n else ""))
    if not arrow:
        counts = Counter(left.replace(",", "").replace("...", ""))
        right = "..." * ("..." in left) + "".join(sorted(k for k, n in counts.items() if n == 1))
    return spelt, right.replace("...", letters)


@register("Einsum")
def _einsum(c: Call) -> Gradients:
    operands = [c.operand(i) for i in range(len(c.inputs))]
    terms, result = einsum_labels(string(c.attr("equation")), [x.ndim for x in operands])
    out: Gradients = []
    for i, x in enumerate(operands):
        if not c.wants(i):
            out.append(None)
            continue
        mine = terms[i]
        others = [t for j, t in enumerate(terms) if j != i]
        reach = set(result).union(*others) if others else set(result)
        there = "".join(s for s in dict.fromkeys(mine) if s in reach)
        values = [c.dy, *(x for j, x in enumerate(operands) if j != i)]
        g = np.einsum(",".join([result, *others]) + "->" + there, *values, optimize=True)
        # A label that only this operand has was summed over: its gradient is repeated.
        single = "".join(dict.fromkeys(mine))
        g = np.expand_dims(g, tuple(k for k, s in enumerate(single) if s not in reach))
        if single != mine:
            out.append(_on_diagonal(g, single, mine, x))
            continue
        grown = np.broadcast_shapes(g.shape, x.shape)
        out.append(unbroadcast(np.broadcast_to(g, grown), x.shape) if math.prod(grown) else np.zeros_like(x))
    return out


def _on_diagonal(g: Array, single: str, term: str, x: Array) -> Array:
    """Gradient of an operand of which labels that repeat read the diagonal."""
    dx = np.zeros_like(x)
    view = np.einsum(f"{term}->{single}", dx)  # a view that can be written to
    view[...] = g
    return dx
