"""Vector-Jacobian products by operator type.

A product gets the operator's operands, results and the gradients of the results, and returns the gradients
of the operands, in their shapes.  Half-precision tensors are computed in float32 and rounded once at the end.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from planner.errors import PlannerError
from planner.ir import Op
from planner.kernels.attributes import Array
from planner.plugins import load_operators

__all__ = ["Call", "NoVjpError", "differentiable_types", "is_float", "register", "unbroadcast", "vjp"]


class NoVjpError(PlannerError):
    """The operator lies on the path from a parameter to the loss, and has no vector-Jacobian product."""


@dataclass(frozen=True, slots=True)
class Call:
    """One executed operator.  `gradients[j]` is None where nothing reads result j (its gradient is zero)."""

    op: Op
    inputs: Sequence[Array | None]
    outputs: Sequence[Array | None]
    gradients: Sequence[Array | None]
    wanted: Sequence[bool]

    def attr(self, name: str, default: Any = None) -> Any:
        return self.op.attributes.get(name, default)

    def wants(self, index: int) -> bool:
        return index < len(self.wanted) and bool(self.wanted[index])

    def maybe(self, index: int) -> Array | None:
        """An optional operand."""
        return self.inputs[index] if index < len(self.inputs) else None

    @property
    def x(self) -> Array:
        return self.operand(0)

    @property
    def y(self) -> Array:
        return self.result(0)

    @property
    def dy(self) -> Array:
        return self.gradient(0)

    def operand(self, index: int) -> Array:
        value = self.inputs[index]
        if value is None:
            raise NoVjpError(f"operator {self.op.name} ({self.op.type}): operand {index} is needed and absent")
        return value

    def result(self, index: int) -> Array:
        value = self.outputs[index]
        if value is None:
            raise NoVjpError(f"operator {self.op.name} ({self.op.type}): result {index} is needed and absent")
        return value

    def gradient(self, index: int) -> Array:
        """The gradient of result `index`, zero where nothing reads it."""
        value = self.gradients[index] if index < len(self.gradients) else None
        return np.zeros_like(self.result(index)) if value is None else value


Vjp = Callable[[Call], "Sequence[Array | None]"]

_REGISTRY: dict[str, Vjp] = {}


def register(*types: str) -> Callable[[Vjp], Vjp]:
    """Decorator: the function is the vector-Jacobian product of these operator types.  ValueError for a type that has
    one already."""

    def add(function: Vjp) -> Vjp:
        for t in types:
            if t in _REGISTRY:
                raise ValueError(f"operator {t} has two vector-Jacobian products; keep one")
            _REGISTRY[t] = function
        return function

    return add


def differentiable_types() -> frozenset[str]:
    """Operator types that have a vector-Jacobian product."""
    load_operators("gradient")
    return frozenset(_REGISTRY)


def vjp(
    op: Op,
    inputs: Sequence[Array | None],
    outputs: Sequence[Array | None],
    output_gradients: Sequence[Array | None],
    wanted: Sequence[bool],
) -> list[Array | None]:
    """Gradients of the operands, in their shapes and element types; None where not `wanted`.

    `inputs` and `outputs` follow the operator's, None where absent; a gradient of None counts as zero.
    Operands whose values are not read by the product (Reshape, Add, …) may be empty views of the right shape.

    NoVjpError where the type has no product here.
    """
    load_operators("gradient")
    rule = _REGISTRY.get(op.type)
    if rule is None:
        raise NoVjpError(
            f"operator {op.name} ({op.type}, opset {op.opset}) has no vector-Jacobian product; "
            "plan for inference (--mode inference), or register one (docs/rules.md)"
        )
    wide = [[_widen(v) for v in values] for values in (inputs, outputs, output_gradients)]
    found = rule(Call(op, wide[0], wide[1], wide[2], wanted))
    result: list[Array | None] = []
    for i, x in enumerate(inputs):
        g = found[i] if i < len(found) and i < len(wanted) and wanted[i] else None
        if g is None or x is None or not is_float(x):
            result.append(None)
            continue
        if g.shape != x.shape:
            raise AssertionError(f"gradient of operand {i} of {op.type} has shape {g.shape}, operand has {x.shape}")
        result.append(np.asarray(g, dtype=x.dtype))
    return result


def is_float(x: Array) -> bool:
    """Whether gradients can flow into the array (bfloat16 and the 8-bit types are none of numpy's own)."""
    return x.dtype.kind == "f" or x.dtype.name.startswith(("bfloat", "float"))


def _widen(x: Array | None) -> Array | None:
    if x is None or not is_float(x) or x.dtype.itemsize >= 4:
        return x
    return x.astype(np.float32)


def unbroadcast(gradient: Array, shape: tuple[int, ...]) -> Array:
    """Sum of the gradient over the dimensions along which a value of `shape` was repeated."""
    if gradient.shape == shape:
        return gradient
    lead = gradient.ndim - len(shape)
    axes = tuple(range(lead)) + tuple(i + lead for i, s in enumerate(shape) if s == 1 and gradient.shape[i + lead] != 1)
    return np.asarray(gradient.sum(axis=axes, keepdims=True)).reshape(shape)
