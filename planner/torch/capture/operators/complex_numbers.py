"""Complex numbers as two tensors: ONNX's operators know none, and rotary embeddings are often written with them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from planner.torch.capture.operators.elementwise import binary
from planner.torch.capture.registry import aten, translator
from planner.torch.capture.writer import Value, Writer

__all__: list[str] = []

_REAL = {torch.complex32: torch.float16, torch.complex64: torch.float32, torch.complex128: torch.float64}
_BY_PART = (  # what moves elements moves both parts alike; sums are sums of parts
    "view.default", "_unsafe_view.default", "reshape.default", "flatten.using_ints", "unflatten.int", "transpose.int",
    "permute.default", "unsqueeze.default", "squeeze.dim", "squeeze.dims", "squeeze.default", "expand.default",
    "slice.Tensor", "select.int", "clone.default", "contiguous.default", "alias.default", "neg.default",
    "sum.dim_IntList", "mean.dim",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Complex(Value):
    """`shape` is that of either part; the graph has no tensor of this name."""

    parts: tuple[Value, Value] | None = None


def _complex(real: Value, imaginary: Value) -> _Complex:
    dtype = next(c for c, r in _REAL.items() if r == real.dtype)
    return _Complex("", real.shape, dtype, None, (real, imaginary))


def _parts(w: Writer, x: Value | complex) -> tuple[Any, Any]:
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
    def write(w: Writer, x: Value, *arguments: Any, **keywords: Any) -> Value:
        real = translator(name)
        assert real is not None
        return _complex(*(real(w, part, *arguments, **keywords) for part in _parts(w, x)))

    return write


for _name in _BY_PART:
    aten(_name, complex_numbers=True)(_by_part(_name))


@aten("view_as_complex.default", complex_numbers=True)
def _view_as_complex(w: Writer, x: Value) -> Value:
    shape = x.shape[:-1]
    found = [
        w.op("Gather", x, w.constant(torch.tensor(k)), shape=shape, dtype=x.dtype, axis=x.rank - 1) for k in range(2)
    ]
    return _complex(*found)


@aten("complex.default", complex_numbers=True)
def _of_parts(w: Writer, real: Value, imaginary: Value) -> Value:
    return _complex(real, imaginary)


@aten("polar.default", complex_numbers=True)
def _polar(w: Writer, size: Value, angle: Value) -> Value:
    return _complex(*(binary(w, "Mul", size, w.op(f, angle, shape=angle.shape)) for f in ("Cos", "Sin")))


@aten("view_as_real.default", complex_numbers=True)
def _view_as_real(w: Writer, x: Value) -> Value:
    at = w.integers([x.rank])
    columns = [w.op("Unsqueeze", part, at, shape=(*x.shape, 1)) for part in _parts(w, x)]
    return w.op("Concat", *columns, shape=(*x.shape, 2), axis=x.rank)


@aten("real.default", complex_numbers=True)
def _real(w: Writer, x: Value) -> Value:
    return _parts(w, x)[0]


@aten("imag.default", complex_numbers=True)
def _imaginary(w: Writer, x: Value) -> Value:
    return _parts(w, x)[1]


@aten("_conj.default", "conj.default", "_conj_physical.default", "conj_physical.default", complex_numbers=True)
def _conjugate(w: Writer, x: Value) -> Value:
    real, imaginary = _parts(w, x)
    return _complex(real, w.op("Neg", imaginary, shape=imaginary.shape))


@aten("mul.Tensor", "mul.Scalar", complex_numbers=True)
def _mul(w: Writer, a: Value | complex, b: Value | complex) -> Value:
    (ar, ai), (br, bi) = _parts(w, a), _parts(w, b)

    def times(x: Any, y: Any) -> Any:
        return None if _is_zero(x) or _is_zero(y) else binary(w, "Mul", x, y)

    real, crossed = times(ar, br), times(ai, bi)
    if crossed is not None:
        real = binary(w, "Sub", 0.0 if real is None else real, crossed)
    sums = [p for p in (times(ar, bi), times(ai, br)) if p is not None]
    imaginary = sums[0] if len(sums) == 1 else binary(w, "Add", *sums)
    return _complex(real, imaginary)


def _is_zero(x: Any) -> bool:
    return not isinstance(x, Value) and x == 0


@aten("add.Tensor", "add.Scalar", complex_numbers=True)
def _add(w: Writer, a: Value | complex, b: Value | complex) -> Value:
    return _complex(*(binary(w, "Add", x, y) for x, y in zip(_parts(w, a), _parts(w, b), strict=True)))


@aten("sub.Tensor", "sub.Scalar", complex_numbers=True)
def _sub(w: Writer, a: Value | complex, b: Value | complex) -> Value:
    return _complex(*(binary(w, "Sub", x, y) for x, y in zip(_parts(w, a), _parts(w, b), strict=True)))


@aten("abs.default", complex_numbers=True)
def _absolute(w: Writer, x: Value) -> Value:
    squares = [binary(w, "Mul", part, part) for part in _parts(w, x)]
    return w.op("Sqrt", binary(w, "Add", *squares), shape=x.shape)
