"""Values for cases, with sizes that divide by 2, 3, 4 and 6."""

from __future__ import annotations

import numpy as np

__all__ = ["f", "i", "n", "p", "restart", "rows"]

_RNG = np.random.default_rng(0)


def restart() -> None:
    """The same values follow as in a new process."""
    _RNG.bit_generator.state = np.random.default_rng(0).bit_generator.state


def rows(high: int, count: int, wide: int) -> np.ndarray:
    """`count` rows of `wide` different indices below `high`."""
    return np.stack([_RNG.permutation(high)[:wide] for _ in range(count)])


def f(*shape: int) -> np.ndarray:
    """Standard normal values."""
    return _RNG.standard_normal(shape).astype(np.float32)


def p(*shape: int) -> np.ndarray:
    """Positive values."""
    return (np.abs(_RNG.standard_normal(shape)) + 0.5).astype(np.float32)


def n(high: int, *shape: int) -> np.ndarray:
    """Indices below `high`."""
    return _RNG.integers(0, high, size=shape).astype(np.int64)


def i(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.int64)
