"""Whether two computations of the same tensors agree, judged by what rounding alone does to them.

Errors are taken element by element, relative to the element's own size and a typical small size of the tensor, so that
a mask value of -1e38 hides nothing.  A tensor agrees within `CLOSE`, or within `FACTOR` times what moving every weight
and input by one unit in the last place does to it, but never beyond `LARGEST`: of a tensor that differs by more than
that, and that rounding moves as far, nothing can be said.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from planner.kernels.shards import Array

__all__ = ["TensorAgreement", "error_of", "moved_by_rounding"]

CLOSE = 1e-5  # two orders above single precision: sums of thousands of terms in another order
FACTOR = 16.0  # rounding strikes at every operator, the measurement moves only what enters
LARGEST = 5e-3
TYPICAL = 0.1  # of the elements that are not zero, this part is smaller than the typical small size
SAMPLED = 100_000  # elements that show the typical size of a large tensor

_PIECE = 1 << 15  # elements compared at a time


@dataclass(frozen=True, slots=True)
class TensorAgreement:
    """Of one tensor: its element type, how far ours is from the reference, and the reference from itself after
    rounding of what enters."""

    name: str
    dtype: np.dtype[Any]
    error: float
    noise: float

    @property
    def close(self) -> float:
        return max(CLOSE, 8 * self._unit)

    @property
    def allowed(self) -> float:
        return min(max(self.close, FACTOR * self.noise), max(LARGEST, 64 * self._unit))

    @property
    def chaotic(self) -> bool:
        """Differs by more than is ever allowed, and rounding moves it so far that this means nothing."""
        return self.allowed < self.error <= FACTOR * self.noise

    @property
    def wrong(self) -> bool:
        return self.error > self.allowed and not self.chaotic

    @property
    def _unit(self) -> float:
        return float(np.finfo(self.dtype).eps) if self.dtype.kind == "f" else 0.0


def error_of(found: Array, reference: Array) -> float:
    """The largest error of an element; infinite where other elements are finite.  Of anything but floats the share of
    elements that differ."""
    if not reference.size:
        return 0.0
    if reference.dtype.kind != "f":
        return float(np.mean(found != reference))
    a, b = (x if x.dtype.itemsize >= 4 else x.astype(np.float32) for x in (found, reference))
    finite = np.isfinite(b)
    if not finite.all():
        if not np.array_equal(a[~finite], b[~finite], equal_nan=True):
            return float("inf")
        a, b = a[finite], b[finite]
    if not b.size:
        return 0.0
    a, b = np.broadcast_arrays(a, b)
    sample = np.abs(b.reshape(-1)[:: max(1, b.size // SAMPLED)])
    sample = sample[sample > 0]
    typical = np.quantile(sample, TYPICAL).astype(b.dtype) if sample.size else b.dtype.type(0)
    return max(_largest(x, y, typical) for x, y in zip(_pieces(a), _pieces(b), strict=True))


def _pieces(x: Array) -> Iterator[Array]:
    """Parts that stay in a core's cache."""
    flat = x.reshape(-1)
    return (flat[at : at + _PIECE] for at in range(0, flat.size, _PIECE))


def _largest(a: Array, b: Array, typical: Any) -> float:
    """Of elements of a finite reference."""
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        off = np.abs(a - b)
        if not np.isfinite(off.max()) and not np.isfinite(a).all():
            return float("inf")
        errors = off / (np.abs(b) + typical)
        largest = errors.max()  # not a number where zero stands for zero, and nothing is small
        return float(np.max(errors, initial=0.0, where=~np.isnan(errors)) if np.isnan(largest) else largest)


def moved_by_rounding(value: Array, rng: np.random.Generator) -> Array:
    """Every float that is no whole number by at most one unit in the last place."""
    if value.dtype.kind != "f" or value.dtype.itemsize < 2:
        return value
    moved = np.array(value, order="C")
    for piece in _pieces(moved):
        near = piece * (1 + rng.uniform(-1, 1, piece.shape).astype(piece.dtype) * np.finfo(piece.dtype).eps)
        np.copyto(piece, near, where=np.rint(piece) != piece)
    return moved
