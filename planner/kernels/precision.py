"""In which precision kernels compute."""

from __future__ import annotations

import numpy as np

from planner.kernels.shards import Array

__all__ = ["widen"]


def widen(x: Array | None) -> Array:
    """Half precision is computed in single; integers stay.  The operand must be given."""
    assert x is not None
    return x.astype(np.float32) if x.dtype.kind not in "iub" and x.dtype.itemsize < 4 else x
