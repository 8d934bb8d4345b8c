"""Look-ups, concatenations and splits as ONNX Runtime's training graphs spell them; public runtimes lack them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from planner.ir import Op
from planner.kernels.attributes import Array, integers
from planner.kernels.local import with_result_shapes
from planner.kernels.session import NoKernelError
from planner.operators.indexing.gradient import Coordinates, coordinates_along, coordinates_nd

__all__: list[str] = []

Shapes = Sequence["tuple[int, ...] | None"]
Results = list["Array | None"]


def _need(op: Op, inputs: Sequence[Array | None], index: int) -> Array:
    value = inputs[index] if index < len(inputs) else None
    if value is None:
        raise NoKernelError(f"operator {op.name} ({op.type}): operand {index} is needed and absent")
    return value


def _stated(op: Op, inputs: Sequence[Array | None], index: int, shapes: Shapes | None) -> tuple[int, ...]:
    """Shape of the result: what the caller knows of it, else what the operand says."""
    known = shapes[0] if shapes else None
    return integers(op, inputs, index, "shape") or () if known is None else known


def _added(dy: Array, where: Coordinates, shape: tuple[int, ...]) -> Results:
    dx = np.zeros(shape, dtype=dy.dtype)
    np.add.at(dx, where, dy)
    return [dx]


def _gather_elements_grad(op: Op, inputs: Sequence[Array | None], shapes: Shapes | None) -> Results:
    """(dY, shape of X, indices) → dX."""
    shape = _stated(op, inputs, 1, shapes)
    return _added(
        _need(op, inputs, 0), coordinates_along(_need(op, inputs, 2), op.attributes.get("axis", 0), shape), shape
    )


def _gather_nd_grad(op: Op, inputs: Sequence[Array | None], shapes: Shapes | None) -> Results:
    """(shape of X, indices, dY) → dX."""
    shape = _stated(op, inputs, 0, shapes)
    where = coordinates_nd(_need(op, inputs, 1), op.attributes.get("batch_dims", 0), shape)
    return _added(_need(op, inputs, 2), where, shape)


def _concat_training(op: Op, inputs: Sequence[Array | None], shapes: Shapes | None) -> Results:
    """The operands one after the other, and their lengths."""
    parts = [_need(op, inputs, i) for i in range(len(inputs))]
    axis = op.attributes.get("axis", 0)
    return [np.concatenate(parts, axis=axis), np.array([p.shape[axis] for p in parts], dtype=np.int64)]


def _split_training(op: Op, inputs: Sequence[Array | None], shapes: Shapes | None) -> Results:
    lengths = integers(op, inputs, 1, "split") or ()
    return list(np.split(_need(op, inputs, 0), np.cumsum(lengths)[:-1], axis=op.attributes.get("axis", 0)))


with_result_shapes(
    {
        "com.microsoft::ConcatTraining": _concat_training,
        "com.microsoft::GatherElementsGrad": _gather_elements_grad,
        "com.microsoft::GatherNDGrad": _gather_nd_grad,
        "com.microsoft::SplitTraining": _split_training,
    }
)
