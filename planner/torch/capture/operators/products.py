"""Matrix products, with and without biases."""

from __future__ import annotations

import torch

from planner.torch.capture.operators.elementwise import binary
from planner.torch.capture.operators.normalisations import vector_norm
from planner.torch.capture.registry import aten
from planner.torch.capture.writer import Value, Writer

__all__: list[str] = []


def product(w: Writer, a: Value, b: Value) -> Value:
    """As torch.matmul."""
    if a.rank == 1 or b.rank == 1:
        front = torch.broadcast_shapes(a.shape[:-2], b.shape[:-2])
        shape = (*front, *(a.shape[-2:-1] if a.rank > 1 else ()), *(b.shape[-1:] if b.rank > 1 else ()))
    else:
        shape = (*torch.broadcast_shapes(a.shape[:-2], b.shape[:-2]), a.shape[-2], b.shape[-1])
    return w.op("MatMul", a, b, shape=shape)


def turned(w: Writer, x: Value) -> Value:
    """A matrix transposed."""
    return w.op("Transpose", x, shape=x.shape[::-1], perm=[1, 0])


@aten("linear.default")
def _linear(w: Writer, x: Value, weight: Value, bias: Value | None = None) -> Value:
    y = product(w, x, turned(w, weight))
    return y if bias is None else binary(w, "Add", y, bias)


@aten("matmul.default", "mm.default", "bmm.default", "mv.default", "dot.default")
def _matmul(w: Writer, a: Value, b: Value) -> Value:
    return product(w, a, b)


@aten("addmm.default", "baddbmm.default")
def _addmm(w: Writer, bias: Value, a: Value, b: Value, beta: float = 1, alpha: float = 1) -> Value:
    y = product(w, a, b)
    y = y if alpha == 1 else binary(w, "Mul", y, alpha)
    return binary(w, "Add", y, bias if beta == 1 else binary(w, "Mul", bias, beta))


@aten("einsum.default")
def _einsum(w: Writer, equation: str, operands: list[Value], path: object = None) -> Value:
    shape = torch.einsum(equation, *(torch.empty(x.shape, device="meta") for x in operands)).shape
    return w.op("Einsum", *operands, shape=tuple(shape), equation=equation.replace(" ", ""))


@aten("bilinear.default")
def _bilinear(w: Writer, a: Value, b: Value, weight: Value, bias: Value | None = None) -> Value:
    front = "abcdefgh"[: a.rank - 1]
    y = w.op("Einsum", a, weight, b, shape=w.result_shape(), equation=f"{front}i,oij,{front}j->{front}o")
    return y if bias is None else binary(w, "Add", y, bias)


@aten("_cdist_forward.default")
def _distances(w: Writer, a: Value, b: Value, p: float, mode: object) -> Value:
    """Of all pairs of rows, from their differences."""
    front = torch.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    left = w.op("Unsqueeze", a, w.integers([-2]), shape=(*a.shape[:-1], 1, a.shape[-1]))
    right = w.op("Unsqueeze", b, w.integers([-3]), shape=(*b.shape[:-2], 1, *b.shape[-2:]))
    apart = w.op("Sub", left, right, shape=(*front, a.shape[-2], b.shape[-2], a.shape[-1]))
    return vector_norm(w, apart, p, [-1])
