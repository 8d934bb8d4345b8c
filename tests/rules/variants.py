"""Further cases made from a case: the same operator on other data, and on dimensions twice as large."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from planner.kernels import NoKernelError, run_local
from planner.kernels.shards import Array
from tests.rules.prover import Case, from_values, is_floating

__all__ = ["doubled", "redrawn"]

_Operands = list["Array | None"]
_Draw = Callable[[tuple[int, ...], np.random.Generator], Array]


def redrawn(subject: Case, seed: int = 5) -> Case | None:
    """The same shapes with other values, so that what was right by accident no longer is.

    Integers may be indices or shapes: they are permuted where the operator then still gives results of the same
    shapes, else kept.  None where nothing else can be computed.
    """
    rng = np.random.default_rng(seed)
    for draw in (_coarse, _normal, _positive):
        for permute in (True, False):
            inputs = [_other(v, draw, rng, permute=permute) for v in subject.inputs]
            found = _run(subject, inputs)
            if found is not None and [_shape(v) for v in found.results] == [_shape(v) for v in subject.results]:
                return found
    return None


def doubled(subject: Case, seed: int = 6) -> Case | None:
    """Every dimension longer than one is twice as long; integer operands are tiled, or kept where they are not data.

    None where the operator does not take such operands.
    """
    if any(v is not None and v.size > 4096 for v in (*subject.inputs, *subject.results)):
        return None
    rng = np.random.default_rng(seed)
    for stretch in _ways(subject):
        inputs: _Operands = []
        for i, v in enumerate(subject.inputs):
            if v is None or i not in stretch or not any(n > 1 for n in v.shape):
                inputs.append(v)
                continue
            twice = np.tile(v, [2 if n > 1 else 1 for n in v.shape])
            inputs.append(_other(twice, _positive if _positive_only(v) else _normal, rng, permute=False))
        found = _run(subject, inputs)
        if found is not None and [_shape(v) for v in found.results] != [_shape(v) for v in subject.results]:
            return found
    return None


def _ways(subject: Case) -> Iterator[set[int]]:
    """Operands to stretch: all, those of the first one's kind, the first alone."""
    present = [i for i, v in enumerate(subject.inputs) if v is not None]
    yield set(present)
    yield {i for i in present if _is_float(subject.inputs[i])}
    yield set(present[:2])
    yield set(present[:1])


def _is_float(v: Array | None) -> bool:
    return v is not None and v.dtype.kind == "f"


def _is_argument(v: Array | None) -> bool:
    """A vector of integers: a shape, axes, starts."""
    return v is not None and v.dtype.kind in "iu" and v.ndim < 2


def _positive_only(v: Array) -> bool:
    return v.dtype.kind == "f" and bool(v.size) and bool(np.all(v >= 0))


def _shape(v: Array | None) -> tuple[int, ...] | None:
    return None if v is None else v.shape


def _normal(shape: tuple[int, ...], rng: np.random.Generator) -> Array:
    return rng.standard_normal(shape)


def _coarse(shape: tuple[int, ...], rng: np.random.Generator) -> Array:
    """Few different values, so that comparisons are true now and then."""
    return rng.choice([-1.5, -0.5, 0.5, 1.0, 2.0], shape)


def _positive(shape: tuple[int, ...], rng: np.random.Generator) -> Array:
    return rng.uniform(0.2, 0.9, shape)


def _other(v: Array | None, draw: _Draw, rng: np.random.Generator, *, permute: bool) -> Array | None:
    if v is None:
        return None
    if is_floating(v):
        return np.asarray(draw(v.shape, rng)).astype(v.dtype)
    if v.dtype.kind == "b" and permute:
        return np.asarray(rng.random(v.shape) < 0.5)
    return rng.permutation(v.reshape(-1)).reshape(v.shape) if permute and v.size > 1 else v


def _run(subject: Case, inputs: _Operands) -> Case | None:
    try:
        with np.errstate(all="ignore"):
            results = run_local(subject.op, inputs)
    except (NoKernelError, ValueError, IndexError, AssertionError, TypeError, ZeroDivisionError):
        return None
    if any(v is not None and v.dtype.kind == "f" and not np.all(np.isfinite(v)) for v in results):
        return None
    known = {
        i
        for i, n in enumerate(subject.op.inputs)
        if n
        and subject.graph.tensors[n].value is not None
        and (inputs[i] is subject.inputs[i] or _is_argument(inputs[i]))
    }
    return from_values(subject.op, tuple(inputs), tuple(results), known, f"{subject.name} varied")
