"""Forward of one operator on arrays of any local shape.

In this order: kernels that users registered for operators of their own, ours in double precision, numpy where it says
exactly what the operator means, our own kernels for the gradient operators of exported training graphs (no public
runtime has them), ONNX Runtime or the ONNX reference for the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from planner.ir import Op
from planner.rules.plugins import load_plugins
from planner.verify.kernels.extra import EXTRA_KERNELS
from planner.verify.kernels.gradients import GRADIENT_KERNELS
from planner.verify.kernels.plain import PLAIN_KERNELS
from planner.verify.kernels.session import failure, run_node
from planner.verify.kernels.subgraph import BODIES, FLEX_ATTENTION, run_bodies
from planner.verify.kernels.wide import ALWAYS_WIDE, WIDE_KERNELS
from planner.verify.shards import Array

__all__ = ["LocalKernel", "local_kernel", "run_local"]

Shape = tuple[int, ...]
# (operator, operands) → results; attributes that count a split factor are those of the rank (`Rule.counts`)
LocalKernel = Callable[[Op, "Sequence[Array | None]"], "Sequence[Array | None]"]

_DOUBLE = np.dtype(np.float64)
_USERS: dict[str, LocalKernel] = {}


def local_kernel(type_: str) -> Callable[[LocalKernel], LocalKernel]:
    """Register how an operator that no runtime knows is executed on arrays of any local shape, by its type with
    its domain (`example::Op`).  ValueError where it is registered already."""

    def register(function: LocalKernel) -> LocalKernel:
        if type_ in _USERS:
            raise ValueError(f"operator {type_} has two kernels; keep one")
        _USERS[type_] = function
        return function

    return register


def run_local(
    op: Op, inputs: Sequence[Array | None], *, output_shapes: Sequence[Shape | None] | None = None
) -> list[Array | None]:
    """Results of the operator, one per entry of `op.outputs` (None where the name is empty).

    `inputs` follow `op.inputs`, None where absent.  `output_shapes` are the local shapes of the results;
    only operators that cannot tell their result's shape from their operands (`MaxPoolGrad`) read them.
    Results may be views of the operands: treat all arrays as immutable.

    NoKernelError where nothing can run the operator, or where it rejects these operands.
    """
    load_plugins("planner.kernels")
    if (users := _USERS.get(op.type)) is not None:
        return _named(op, users(op, inputs))
    if (wide := WIDE_KERNELS.get(op.type)) is not None and (op.type in ALWAYS_WIDE or _any_double(inputs)):
        try:
            results = wide(op, inputs)
        except (ArithmeticError, AssertionError, LookupError, TypeError, ValueError) as error:
            raise failure(op, inputs, error) from error
        if results is not None:
            return _named(op, results)
    if (plain := PLAIN_KERNELS.get(op.type)) is not None:
        result = plain(op, inputs)
        if result is not None:
            return [np.asarray(result)]  # arithmetic on arrays without dimensions gives numpy scalars
    if (gradient := GRADIENT_KERNELS.get(op.type)) is not None:
        return _named(op, gradient(op, inputs, output_shapes))
    if op.type in BODIES or (op.type == FLEX_ATTENTION and _any_double(inputs)):
        return _named(op, run_bodies(op, inputs, run_local))
    if (extra := EXTRA_KERNELS.get(op.type)) is not None:
        results = extra(op, inputs)
        if results is not None:
            return _named(op, results)
    return run_node(op, inputs)


def _any_double(inputs: Sequence[Array | None]) -> bool:
    return any(x is not None and x.dtype == _DOUBLE for x in inputs)


def _named(op: Op, results: Sequence[Array | None]) -> list[Array | None]:
    """Results that the operator is asked for."""
    return [np.asarray(r) if name and r is not None else None for name, r in zip(op.outputs, results, strict=False)]
