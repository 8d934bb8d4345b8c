"""A second witness of vector-Jacobian products: finite differences of the operator itself, in double precision.

Along a random direction u of one operand, ⟨gradient of the operand, u⟩ must be the derivative of ⟨gradient of the
results, op(operand + t·u)⟩ by t at 0.  The central difference D at a step h gives it, but for

- curvature, of order h², and rounding, of order 1/h: steps from 1e-5 down are tried until one agrees;
- kinks (Relu, Max, pools).  Where the slopes on both sides differ, every value between them is a right answer, and D
  lies halfway: kinks explain a disagreement of at most ½ Σ |dy|·|f(+h) − 2 f(0) + f(−h)| / h.  A direction whose
  disagreement kinks explain, or differences that do not settle, decides nothing; then another moves fewer elements.

A wrong product of a smooth operator disagrees at every step and in (almost) every direction.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from planner.ir import Op
from planner.kernels import run_local
from planner.kernels.attributes import Array
from planner.kernels.pieces import pieces

__all__ = ["DISAGREES", "witness"]

DISAGREES = 1e-5  # relative: a right product stays below, one that is wrong by a percent lies above
AGREES = 1e-6  # no further steps are tried; smooth operators agree to 1e-9 and better
_STEPS = (1e-5, 1e-6, 1e-7, 1e-8)
_NOISE = 64 * float(np.finfo(np.float64).eps)  # rounding within an operator, relative to its results
_SMALLEST = 1e-3  # of the root mean square of an operand: what its zeros are moved by, per unit of the step
_DRAWN = 1 << 19  # elements of a larger operand that are moved: a stretch of them where its gradient is largest
_LARGEST = 1e6  # of the lowest tenth: larger elements stay
_SUBSETS = (4, 4, 32, 32, 256, 256, 4096, 1 << 16, 1 << 62)  # one element of so many is moved, at least one


def witness(
    op: Op,
    operands: Sequence[Array | None],
    results: Sequence[Array | None],
    result_gradients: Sequence[Array | None],
    operand_gradients: Sequence[Array | None],
    wanted: Sequence[bool],
    *,
    seed: int,
) -> float | None:
    """Largest relative disagreement between the gradients of the wanted operands and finite differences.

    Arguments are those of `planner.kernels.gradients.vjp`, in float64, and what it returned.  The disagreement of an
    operand is relative to the size of its gradient along the direction.  None where no operand has a witness: its
    gradient is absent, or the operator is not continuous where it stands.
    """
    probe = _Probe(op, operands, results, result_gradients)
    found = []
    for i, gradient in enumerate(operand_gradients):
        x = operands[i] if i < len(operands) else None
        if i < len(wanted) and wanted[i] and gradient is not None and x is not None and x.dtype == np.float64:
            rng = np.random.default_rng([seed, i])
            disagreement = _of_operand(probe, i, x, gradient, rng)
            if disagreement is not None:
                found.append(disagreement)
    return max(found, default=None)


def _of_operand(probe: _Probe, index: int, x: Array, gradient: Array, rng: np.random.Generator) -> float | None:
    if not x.size:
        return 0.0
    for direction in _directions(x, gradient, rng):
        verdict = _along(probe, index, x, gradient, direction)
        if verdict is not None:
            return verdict
    return None


@dataclass(frozen=True, slots=True)
class _Direction:
    """How the elements at `place` of an operand, in one row, are moved per unit of the step; others stay."""

    place: slice
    moves: Array

    def from_(self, x: Array, step: float) -> Array:
        moved = np.array(x, order="C")
        moved.reshape(-1)[self.place] += step * self.moves
        return moved


def _directions(x: Array, gradient: Array, rng: np.random.Generator) -> Iterator[_Direction]:
    """Of a large operand so many consecutive elements, around the largest one of the gradient."""
    flat, among = x.reshape(-1), gradient.reshape(-1)
    place = slice(0, flat.size)
    if flat.size > _DRAWN:
        ends = [int(np.argmax(among)), int(np.argmin(among))]
        if np.isnan(among[ends[0]]):
            ends = [int(np.nanargmax(among)), int(np.nanargmin(among))]
        middle = max(ends, key=lambda i: abs(among[i]))
        start = min(max(0, middle - _DRAWN // 2), flat.size - _DRAWN)
        place = slice(start, start + _DRAWN)
    for moves in _moves(flat[place], among[place], rng):
        yield _Direction(place, moves)


def _moves(x: Array, gradient: Array, rng: np.random.Generator) -> Iterator[Array]:
    """All elements; those whose value is met once (others may tie); then ever fewer.

    An element moves in proportion to its size, so that none changes its sign.
    """
    movable = np.isfinite(x) & np.isfinite(gradient)
    if not movable.any():
        return
    size = np.abs(np.where(movable, x, 0.0))
    nonzero = size[size > 0]
    if nonzero.size:  # a masking value of -1e38 beside scores of 1: nothing moves on its scale
        movable &= size <= _LARGEST * float(np.quantile(nonzero, 0.1))
        size = np.where(movable, size, 0.0)
    usual = float(np.sqrt(np.square(size / max(size.max(), 1e-300)).mean()) * size.max())
    size = np.maximum(size, _SMALLEST * (usual or 1.0))

    def drawn(moved: Array) -> Array:
        return np.where(moved, size * rng.uniform(0.5, 1.5, x.shape) * rng.choice((-1.0, 1.0), x.shape), 0.0)

    yield drawn(movable)
    _, where, counts = np.unique(x, return_inverse=True, return_counts=True)
    single = movable & (counts[where] == 1).reshape(x.shape)
    if single.any():
        yield drawn(single)
    places = np.flatnonzero(single if single.any() else movable)
    for share in _SUBSETS:
        moved = np.zeros(x.size, dtype=bool)
        moved[rng.choice(places, max(1, len(places) // share), replace=False)] = True
        yield drawn(moved.reshape(x.shape))


def _along(probe: _Probe, index: int, x: Array, gradient: Array, direction: _Direction) -> float | None:
    """The disagreement along one direction; None where kinks explain it."""
    moves = direction.moves
    terms = np.where(moves == 0, 0.0, gradient.reshape(-1)[direction.place]) * moves
    claimed, typical = float(terms.sum()), float(np.linalg.norm(terms))
    least, unexplained, before = np.inf, np.inf, np.nan
    for step in _STEPS:
        d = probe.difference(index, x, direction, step)
        if d is None:
            continue
        off = max(0.0, abs(d.slope - claimed) - d.noise)
        scale = max(typical, abs(d.slope), d.noise)
        if off <= AGREES * scale or not scale:
            return off / scale if scale else 0.0
        least = min(least, off / scale)
        if np.isfinite(before):  # at a jump the difference grows as the step shrinks
            excuse = d.kinks + 2 * abs(d.slope - before)
            unexplained = min(unexplained, max(0.0, off - excuse) / scale)
        before = d.slope
    return None if not np.isfinite(unexplained) or unexplained <= AGREES else least


@dataclass(frozen=True, slots=True)
class _Difference:
    """`slope` is the central difference, `noise` what rounding may contribute to it, and `kinks` what kinks may."""

    slope: float
    noise: float
    kinks: float


@dataclass(frozen=True, slots=True)
class _Probe:
    """The operator at its operands, and the gradients of its results."""

    op: Op
    operands: Sequence[Array | None]
    results: Sequence[Array | None]
    gradients: Sequence[Array | None]

    def difference(self, index: int, x: Array, direction: _Direction, step: float) -> _Difference | None:
        """Of operand `index`; None where a result that matters is no number on one side."""
        there, back = (self._moved(index, direction.from_(x, sign * step)) for sign in (1, -1))
        slope, noise, kinks = 0.0, 0.0, 0.0
        for y, dy, high, low in zip(self.results, self.gradients, there, back, strict=False):
            if y is None or dy is None or high is None or low is None:
                continue
            if high.shape != y.shape or low.shape != y.shape:
                return None
            flat = [v.reshape(-1) for v in (dy, y, high, low)]
            squares = 0.0
            for part in pieces(y.size, 1):
                terms = _terms(*(v[part] for v in flat))
                if terms is None:
                    return None
                slope, squares, kinks = slope + terms[0], squares + terms[1], kinks + terms[2]
            noise += math.sqrt(squares)
        return _Difference(slope / (2 * step), _NOISE * noise / step, kinks / (2 * step))

    def _moved(self, index: int, value: Array) -> Sequence[Array | None]:
        operands = [*self.operands[:index], value, *self.operands[index + 1 :]]
        shapes = [None if y is None else y.shape for y in self.results]
        with np.errstate(all="ignore"):
            return run_local(self.op, operands, output_shapes=shapes)


def _terms(dy: Array, y: Array, high: Array, low: Array) -> tuple[float, float, float] | None:
    """What elements of a result add to the slope, to the square of the noise, and to the kinks; None where one that
    matters is no number on one side."""
    kinks, read = 0.0, dy != 0
    if not read.all():
        dy, y, high, low = dy[read], y[read], high[read], low[read]
    first = high - low
    second = high - y
    second += low - y
    if not np.isfinite(np.abs(second).sum()):  # some are infinite, or too large to add up
        stuck = ~np.isfinite(y) & (high == y) & (low == y)
        if stuck.any():  # an infinity has no slope, whatever a product says
            kinks, read = np.inf, ~stuck
            dy, y, high, low, first, second = (v[read] for v in (dy, y, high, low, first, second))
        if not np.all(np.isfinite(high) & np.isfinite(low) & np.isfinite(y)):
            return None
    noise = dy * np.maximum(np.abs(y), np.abs(first))
    return float(dy @ first), float(noise @ noise), kinks + float(np.abs(dy) @ np.abs(second))
