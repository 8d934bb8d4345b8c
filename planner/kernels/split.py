"""Which kernel runs an operator while a factor is split of which it must be aware (`Cut.aware`)."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from planner.ir import Op
from planner.kernels.session import NoKernelError
from planner.kernels.spmd import SpmdBackward, SpmdForward
from planner.plugins import load_operators
from planner.rules import Rule

__all__ = ["Kernel", "kernel", "spmd_backward", "spmd_forward"]


@dataclass(frozen=True, slots=True)
class Kernel:
    """`backward` is None for operators without gradient."""

    forward: SpmdForward
    backward: SpmdBackward | None = None


_KERNELS: dict[str, Kernel] = {}


def kernel(types: Collection[str], forward: SpmdForward, backward: SpmdBackward | None = None) -> None:
    """Register a kernel for operator types, with their domain where it is not ONNX's own."""
    for t in types:
        if t in _KERNELS:
            raise ValueError(f"operator {t} has two kernels; keep one")
        _KERNELS[t] = Kernel(forward, backward)


def spmd_forward(op: Op, rule: Rule, split: Collection[str]) -> SpmdForward | None:
    """The forward that must run instead of the local operator while the factors or modes `split` are, if any."""
    found = _chosen(op, rule, split)
    return None if found is None else found.forward


def spmd_backward(op: Op, rule: Rule, split: Collection[str]) -> SpmdBackward | None:
    """The backward that must run instead of the local vector-Jacobian product, if any."""
    found = _chosen(op, rule, split)
    if found is None:
        return None
    if found.backward is None:
        raise NoKernelError(f"operator {op.name}: no backward kernel for {op.type} while {sorted(split)} are split")
    return found.backward


def _chosen(op: Op, rule: Rule, split: Collection[str]) -> Kernel | None:
    if not rule.aware(split):
        return None
    load_operators("split")
    if op.type not in _KERNELS:
        raise NoKernelError(f"operator {op.name}: no kernel for {op.type} while {sorted(split)} are split")
    return _KERNELS[op.type]
