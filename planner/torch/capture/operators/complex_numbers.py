"""Complex numbers as two tensors: ONNX's operators know none, and rotary embeddings are often written with them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from planner.errors import InputError
from planner.torch.capture.operators.elementwise import binary
from planner.torch.capture.registry import aten, translator
from planner.torch.capture.writer import Value, Writer

__all__ = ["as_complex", "parts_of"]

_REAL = {torch.complex32: torch.float16, torch.complex64: torch.float32, torch.complex128: torch.float64}
_BY_PART = (  # what moves elements moves both parts alike; sums are sums of parts
    "view.default", "_unsafe_view.default", "reshape.default", "flatten.using_ints", "unflatten.int", "transpose.int",
    "permute.default", "unsqueeze.default", "squeeze.dim", "squeeze.dims", "squeeze.default", "expand.default",
    "slice.Tensor", "select.int", "clone.default", "contiguous.default", "alias.default", "neg.default",
    "sum.dim_IntList", "mean.dim", "cat.default", "stack.default", "slice_scatter.default", "select_scatter.default",
    "constant_pad_nd.default", "roll.default", "flip.default", "index_select.default", "index.Tensor", "copy.default",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Complex(Value):
    """`shape` is that of either part; the graph has no tensor of this name."""

    parts: tuple[Value, Value] | None = None


def as_complex(real: Value, imaginary: Value) -> _Complex:
    """A complex tensor of its parts."""
    dtype = next(c for c, r in _REAL.items() if r == real.dtype)
    return _Complex("", real.shape, dtype, None, (real, imaginary))


def parts_of(w: Writer, x: Value | complex) -> tuple[Any, Any]:
    """The real and the imaginary part; numbers are their own."""
    if not isinstance(x, Value):
        return complex(x).real, complex(x).imag
    if isinstance(x, _Complex) and x.parts is not None:
        return x.parts
    if x.held is None:  # a real tensor
        return x, 0.0
    if not x.dtype.is_complex:
        return x, 0.0
    found = (x.held.real, x.held.imag)
    real, imaginary = (Value("", x.shape, _REAL[x.dtype], part.contiguous()) for part in found)
    return real, imaginary


def _by_part(name: str) -> Any:
    def write(w: Writer, *arguments: Any, **keywords: Any) -> Value:
        real = translator(name)
        assert real is not None

        def part(x: Any, k: int) -> Any:
            if isinstance(x, list | tuple):
                return type(x)(part(y, k) for y in x)
            if not isinstance(x, Value) or not (x.dtype.is_complex or x.dtype.is_floating_point):
                return x  # numbers, and indices
            found = parts_of(w, x)[k]
            none = torch.zeros((), dtype=x.dtype).expand(x.shape)  # the imaginary part of a real tensor
            return found if isinstance(found, Value) else Value("", x.shape, x.dtype, none)

        return as_complex(*(real(w, *part(arguments, k), **keywords) for k in range(2)))

    return write


for _name in _BY_PART:
    aten(_name, complex_numbers=True)(_by_part(_name))


@aten("view_as_complex.default", complex_numbers=True)
def _view_as_complex(w: Writer, x: Value) -> Value:
    shape = x.shape[:-1]
    found = [
        w.op("Gather", x, w.constant(torch.tensor(k)), shape=shape, dtype=x.dtype, axis=x.rank - 1) for k in range(2)
    ]
    return as_complex(*found)


@aten("complex.default", complex_numbers=True)
def _of_parts(w: Writer, real: Value, imaginary: Value) -> Value:
    return as_complex(real, imaginary)


@aten("zeros_like.default", complex_numbers=True)
def _zeros(w: Writer, x: Value, **keywords: Any) -> Value:
    dtype = w.results[0].dtype
    return Value("", x.shape, dtype, torch.zeros((), dtype=dtype).expand(x.shape))


@aten("polar.default", complex_numbers=True)
def _polar(w: Writer, size: Value, angle: Value) -> Value:
    return as_complex(*(binary(w, "Mul", size, w.op(f, angle, shape=angle.shape)) for f in ("Cos", "Sin")))


@aten("view_as_real.default", complex_numbers=True)
def _view_as_real(w: Writer, x: Value) -> Value:
    at = w.integers([x.rank])
    columns = [w.op("Unsqueeze", part, at, shape=(*x.shape, 1)) for part in parts_of(w, x)]
    return w.op("Concat", *columns, shape=(*x.shape, 2), axis=x.rank)


@aten("real.default", complex_numbers=True)
def _real(w: Writer, x: Value) -> Value:
    return parts_of(w, x)[0]


@aten("imag.default", complex_numbers=True)
def _imaginary(w: Writer, x: Value) -> Value:
    return parts_of(w, x)[1]


@aten("_conj.default", "conj.default", "_conj_physical.default", "conj_physical.default", complex_numbers=True)
def _conjugate(w: Writer, x: Value) -> Value:
    real, imaginary = parts_of(w, x)
    return as_complex(real, w.op("Neg", imaginary, shape=imaginary.shape))


@aten("mul.Tensor", "mul.Scalar", complex_numbers=True)
def _mul(w: Writer, a: Value | complex, b: Value | complex) -> Value:
    (ar, ai), (br, bi) = parts_of(w, a), parts_of(w, b)

    def times(x: Any, y: Any) -> Any:
        return None if _is_zero(x) or _is_zero(y) else binary(w, "Mul", x, y)

    real, crossed = times(ar, br), times(ai, bi)
    if crossed is not None:
        real = binary(w, "Sub", 0.0 if real is None else real, crossed)
    sums = [p for p in (times(ar, bi), times(ai, br)) if p is not None]
    imaginary = sums[0] if len(sums) == 1 else binary(w, "Add", *sums)
    return as_complex(real, imaginary)


def _is_zero(x: Any) -> bool:
    return not isinstance(x, Value) and x == 0


@aten("add.Tensor", "add.Scalar", complex_numbers=True)
def _add(w: Writer, a: Value | complex, b: Value | complex) -> Value:
    return as_complex(*(binary(w, "Add", x, y) for x, y in zip(parts_of(w, a), parts_of(w, b), strict=True)))


@aten("sub.Tensor", "sub.Scalar", complex_numbers=True)
def _sub(w: Writer, a: Value | complex, b: Value | complex) -> Value:
    return as_complex(*(binary(w, "Sub", x, y) for x, y in zip(parts_of(w, a), parts_of(w, b), strict=True)))


@aten("abs.default", complex_numbers=True)
def _absolute(w: Writer, x: Value) -> Value:
    squares = [binary(w, "Mul", part, part) for part in parts_of(w, x)]
    return w.op("Sqrt", binary(w, "Add", *squares), shape=x.shape)


def _bilinear(name: str) -> Any:
    def write(w: Writer, *arguments: Any) -> Value:
        times = translator(name)
        assert times is not None
        *before, last = arguments  # einsum's equation
        pair = last if isinstance(last, list | tuple) else arguments
        if len(pair) != 2:
            raise InputError(f"{name}: expected two operands where one is complex, found {len(pair)}")
        known = before if pair is last else []

        def product(x: Any, y: Any) -> Any:
            if _is_zero(x) or _is_zero(y):
                return None
            return times(w, *known, [x, y]) if pair is last else times(w, x, y)

        (ar, ai), (br, bi) = (parts_of(w, x) for x in pair)
        real, crossed = product(ar, br), product(ai, bi)
        if crossed is not None:
            real = binary(w, "Sub", real, crossed)
        sums = [p for p in (product(ar, bi), product(ai, br)) if p is not None]
        return as_complex(real, sums[0] if len(sums) == 1 else binary(w, "Add", *sums))

    return write


for _name in ("mm.default", "bmm.default", "matmul.default", "einsum.default"):
    aten(_name, complex_numbers=True)(_bilinear(_name))
