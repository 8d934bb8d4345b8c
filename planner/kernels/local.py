"""Forward of one operator on arrays of any local shape.

In this order: kernels that users registered for operators of their own, kernels in double precision, numpy where it
says exactly what the operator means, kernels of the gradient operators of exported training graphs (no public runtime
has them), kernels in place of a runtime that lacks the operator, ONNX Runtime or the ONNX reference for the rest.
Families register theirs (`planner.plugins`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeVar

import numpy as np

from planner.ir import Op
from planner.kernels.session import failure, run_node
from planner.kernels.shards import Array
from planner.kernels.subgraph import BODIES, FLEX_ATTENTION, run_bodies
from planner.plugins import load_operators

__all__ = [
    "LocalKernel",
    "in_double",
    "in_numpy",
    "in_place_of_runtime",
    "local_kernel",
    "numpy_kernels",
    "run_local",
    "with_result_shapes",
]

Shape = tuple[int, ...]
Operands = Sequence["Array | None"]
# (operator, operands) → results; attributes that count a split factor are those of the rank (`Rule.counts`)
LocalKernel = Callable[[Op, Operands], "Sequence[Array | None]"]
PartialKernel = Callable[[Op, Operands], "Sequence[Array | None] | None"]  # None: outside of what it covers
NumpyKernel = Callable[[Op, Operands], "Array | None"]
ShapedKernel = Callable[[Op, Operands, "Sequence[Shape | None] | None"], "Sequence[Array | None]"]

_Kernel = TypeVar("_Kernel")

_DOUBLE = np.dtype(np.float64)
_USERS: dict[str, LocalKernel] = {}
_WIDE: dict[str, PartialKernel] = {}
_ALWAYS_WIDE: set[str] = set()
_NUMPY: dict[str, NumpyKernel] = {}
_SHAPED: dict[str, ShapedKernel] = {}
_OTHERWISE: dict[str, PartialKernel] = {}


def local_kernel(type_: str) -> Callable[[LocalKernel], LocalKernel]:
    """Register how an operator that no runtime knows is executed on arrays of any local shape, by its type with
    its domain (`example::Op`).  ValueError where it is registered already."""

    def register(function: LocalKernel) -> LocalKernel:
        _register(_USERS, {type_: function})
        return function

    return register


def in_double(kernels: Mapping[str, PartialKernel], *, always: Iterable[str] = ()) -> None:
    """Register kernels in double precision, where ONNX Runtime has none, is slow, or rounds to single precision inside.

    They run where an operand is float64; in lower precision ONNX Runtime stays the truth, with which they are compared.
    `always`: those that may have no float64 among their operands, but one as their result."""
    _register(_WIDE, kernels)
    _ALWAYS_WIDE.update(always)


def in_numpy(kernels: Mapping[str, NumpyKernel]) -> None:
    """Register operators whose ONNX meaning is exactly one numpy expression: faster than a session per call."""
    _register(_NUMPY, kernels)


def with_result_shapes(kernels: Mapping[str, ShapedKernel]) -> None:
    """Register kernels of gradient operators, which get the shapes of their results as well."""
    _register(_SHAPED, kernels)


def in_place_of_runtime(kernels: Mapping[str, PartialKernel]) -> None:
    """Register operators that the public runtime lacks, or lacks for some element types, attributes or lengths."""
    _register(_OTHERWISE, kernels)


def numpy_kernels() -> Mapping[str, NumpyKernel]:
    """What was registered by `in_numpy`."""
    load_operators("local")
    return _NUMPY


def _register(registry: dict[str, _Kernel], kernels: Mapping[str, _Kernel]) -> None:
    for type_, kernel in kernels.items():
        if type_ in registry:
            raise ValueError(f"operator {type_} has two kernels; keep one")
        registry[type_] = kernel


def run_local(
    op: Op, inputs: Sequence[Array | None], *, output_shapes: Sequence[Shape | None] | None = None
) -> list[Array | None]:
    """Results of the operator, one per entry of `op.outputs` (None where the name is empty).

    `inputs` follow `op.inputs`, None where absent.  `output_shapes` are the local shapes of the results;
    only operators that cannot tell their result's shape from their operands (`MaxPoolGrad`) read them.
    Results may be views of the operands: treat all arrays as immutable.

    NoKernelError where nothing can run the operator, or where it rejects these operands.
    """
    load_operators("local")
    if (users := _USERS.get(op.type)) is not None:
        return _named(op, users(op, inputs))
    if (wide := _WIDE.get(op.type)) is not None and (op.type in _ALWAYS_WIDE or _any_double(inputs)):
        try:
            results = wide(op, inputs)
        except (ArithmeticError, AssertionError, LookupError, TypeError, ValueError) as error:
            raise failure(op, inputs, error) from error
        if results is not None:
            return _named(op, results)
    if (plain := _NUMPY.get(op.type)) is not None:
        result = plain(op, inputs)
        if result is not None:
            return [np.asarray(result)]  # arithmetic on arrays without dimensions gives numpy scalars
    if (shaped := _SHAPED.get(op.type)) is not None:
        return _named(op, shaped(op, inputs, output_shapes))
    if op.type in BODIES or (op.type == FLEX_ATTENTION and _any_double(inputs)):
        return _named(op, run_bodies(op, inputs, run_local))
    if (otherwise := _OTHERWISE.get(op.type)) is not None:
        results = otherwise(op, inputs)
        if results is not None:
            return _named(op, results)
    return run_node(op, inputs)


def _any_double(inputs: Sequence[Array | None]) -> bool:
    return any(x is not None and x.dtype == _DOUBLE for x in inputs)


def _named(op: Op, results: Sequence[Array | None]) -> list[Array | None]:
    """Results that the operator is asked for."""
    return [np.asarray(r) if name and r is not None else None for name, r in zip(op.outputs, results, strict=False)]
