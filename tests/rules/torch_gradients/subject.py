"""An operator, its operands, and the torch function that means the same."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from planner.kernels.shards import Array
from tests.rules.prover import Case, case

__all__ = ["Subject", "apart", "f", "i", "indices", "named", "p", "subject"]

_RNG = np.random.default_rng(20240607)


@dataclass(frozen=True, eq=False)
class Subject:
    """`meaning` takes the operands as tensors (None where absent) and returns the results, None where not compared.

    seeded   results that hand back a gradient
    fixed    floating-point operands without a gradient
    """

    case: Case
    constants: frozenset[int]
    meaning: Callable[..., Any]
    seeded: frozenset[int]
    fixed: frozenset[int]


def subject(
    type: str,
    inputs: Sequence[Any],
    meaning: Callable[..., Any],
    *,
    constants: Collection[int] = (),
    seeded: Collection[int] = (0,),
    fixed: Collection[int] = (),
    **options: Any,
) -> Subject:
    """`options` are those of `prover.case`: opset, results, and the attributes."""
    made = case(type, inputs, constants=constants, **options)
    return Subject(made, frozenset(constants), meaning, frozenset(seeded), frozenset(fixed))


def named(meaning: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    """The function with these keywords."""
    return lambda *operands: meaning(*operands, **options)


# Multiples of 1/64 (plus 1/128: no operand lies on a kink) are exact in every type and small when compressed.


def f(*shape: int) -> Array:
    """Normal values."""
    return np.asarray((np.round(_RNG.standard_normal(shape) * 64) + 0.5) / 64).astype(np.float32)


def p(*shape: int, low: float = 0.5, high: float = 2.0) -> Array:
    """Values between `low` and `high`."""
    return np.asarray((np.floor(_RNG.uniform(low, high, shape) * 64) + 0.5) / 64).astype(np.float32)


def apart(*shape: int) -> Array:
    """Values of which no two are equal."""
    n = int(np.prod(shape))
    return ((_RNG.permutation(n) - n // 2 + 0.5) / 16).reshape(shape).astype(np.float32)


def indices(high: int, *shape: int) -> Array:
    """Integers below `high`."""
    return _RNG.integers(0, high, shape).astype(np.int64)


def i(*values: Any) -> Array:
    return np.array(values, dtype=np.int64)
