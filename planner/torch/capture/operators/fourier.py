"""Discrete Fourier transforms as products with their matrices: ONNX's DFT has no gradient, and no rank's share.

A product of n elements takes n² multiplications where a fast transform takes n·log n, which matters little on
accelerators for the lengths that are allowed here.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import torch
from torch import Tensor

from planner.errors import InputError
from planner.torch.capture.operators.complex_numbers import as_complex, parts_of
from planner.torch.capture.operators.elementwise import binary
from planner.torch.capture.registry import aten
from planner.torch.capture.writer import Value, Writer

__all__: list[str] = []

_LONGEST: Final = 4096  # elements of a dimension: two matrices of 64 MiB
_BY_ROOT, _BY_COUNT = 1, 2  # ATen's ways to scale


@aten("_fft_c2c.default", complex_numbers=True)
def _of_complex(w: Writer, x: Value, dims: Sequence[int], scaling: int, forward: bool) -> Value:
    scale = _scale(scaling, [x.shape[d] for d in dims])
    return _transformed(w, x, dims, scale, forward=forward)


@aten("_fft_r2c.default", complex_numbers=True)
def _of_real(w: Writer, x: Value, dims: Sequence[int], scaling: int, onesided: bool) -> Value:
    scale = _scale(scaling, [x.shape[d] for d in dims])
    *others, last = dims
    n = x.shape[last]
    cos, sin = _waves(n, n // 2 + 1 if onesided else n)
    found = as_complex(_along(w, x, last, scale * cos), _along(w, x, last, -scale * sin))
    return _transformed(w, found, others, 1.0, forward=True)


@aten("_fft_c2r.default", complex_numbers=True)
def _to_real(w: Writer, x: Value, dims: Sequence[int], scaling: int, length: int) -> Value:
    """The inverse of a transform of real numbers, of which the half that says all is there."""
    *others, last = dims
    scale = _scale(scaling, [*(x.shape[d] for d in others), length])
    real, imaginary = parts_of(w, _transformed(w, x, others, scale, forward=False))
    there = length // 2 + 1
    cos, sin = _waves(length, there)
    both = torch.full((there, 1), 2.0, dtype=torch.float64)  # each with the one that is left out
    both[0] = 1.0
    if length % 2 == 0:
        both[-1] = 1.0
    return binary(w, "Sub", _along(w, real, last, both * cos.T), _along(w, imaginary, last, both * sin.T))


def _scale(scaling: int, sizes: Sequence[int]) -> float:
    count = math.prod(sizes)
    return 1 / math.sqrt(count) if scaling == _BY_ROOT else 1 / count if scaling == _BY_COUNT else 1.0


def _waves(n: int, columns: int) -> tuple[Tensor, Tensor]:
    """cos and sin of 2π·j·k/n, [n, columns]."""
    if n > _LONGEST:
        raise InputError(f"a Fourier transform of {n} elements: expected {_LONGEST} at most")
    turns = torch.outer(torch.arange(n), torch.arange(columns)).remainder(n).double() / n
    return torch.cos(2 * math.pi * turns), torch.sin(2 * math.pi * turns)


def _transformed(w: Writer, x: Value, dims: Sequence[int], scale: float, *, forward: bool) -> Value:
    for n, d in enumerate(dims):
        real, imaginary = parts_of(w, x)
        cos, sin = (m * (1.0 if n else scale) for m in _waves(x.shape[d], x.shape[d]))
        sin = sin if forward else -sin
        x = as_complex(
            binary(w, "Add", _along(w, real, d, cos), _along(w, imaginary, d, sin)),
            binary(w, "Sub", _along(w, imaginary, d, cos), _along(w, real, d, sin)),
        )
    if not dims and scale != 1.0:
        x = as_complex(*(binary(w, "Mul", part, scale) for part in parts_of(w, x)))
    return x


def _along(w: Writer, x: Value, d: int, matrix: Tensor) -> Value:
    """Products with a matrix [n, m] along a dimension of n elements."""
    d, last = d % x.rank, x.rank - 1
    by = w.constant(matrix.to(x.dtype))
    shape = (*x.shape[:d], matrix.shape[1], *x.shape[d + 1 :])
    if d == last:
        return w.op("MatMul", x, by, shape=shape)
    turn = [k for k in range(x.rank) if k != d] + [d]
    turned = w.op("Transpose", x, shape=[x.shape[k] for k in turn], perm=turn)
    found = w.op("MatMul", turned, by, shape=[shape[k] for k in turn])
    return w.op("Transpose", found, shape=shape, perm=[turn.index(k) for k in range(x.rank)])
