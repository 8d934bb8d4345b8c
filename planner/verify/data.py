"""Random values for a graph's parameters, inputs and constants, that keep its arithmetic finite and its indices valid.

What a tensor may hold follows from how it is read.  One pass from the results to the operands carries *uses*
through operators that only move or repeat elements, so that an index that is sliced, cast and reshaped before a
Gather is still drawn below the size of what it indexes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping

import ml_dtypes
import numpy as np

from planner.ir import Graph, Role, Tensor
from planner.kernels.shards import Array
from planner.verify.uses import Use, uses

__all__ = ["Drawn", "numpy_dtype", "random_tensors"]

# Floats before they are of the tensor's own type, by all that they depend on.
Drawn = dict[tuple[str, int, tuple[int, ...], Role, Use], Array]


# Products of two projections (attention scores that are not scaled) stay small enough that softmax does not saturate:
# a saturated softmax has gradients that are pure rounding.
GAIN = 0.7

# Weights of products of as many terms add up to zero along these.  What a product reads often has a mean much larger
# than its variation (behind Relu, behind pooling); it would decide the sign of whole channels, and the next Relu
# would cut these off.
LEAST_TERMS = 4


def random_tensors(
    graph: Graph,
    seed: int,
    *,
    only: Collection[str] | None = None,
    keep: Drawn | None = None,
    kept: Drawn | None = None,
) -> dict[str, Array]:
    """A value for every parameter, input and constant that has none, and the constants' own values; of those in `only`
    where that is given.

    Each tensor is drawn from its own generator, seeded by `seed` and its name: adding a tensor to a graph changes
    no other.  Floats are standard normal unless their use asks for a scale: weights of products 1/√fan-in,
    normalisation scales and divisors near one, variances positive.

    What is drawn goes into `keep`, too; what lies in `kept` is not drawn again, and nothing is left in there.
    """
    found: dict[str, Array] = {}
    known = uses(graph)
    for t in graph.tensors.values() if only is None else [graph.tensors[n] for n in only]:
        if t.value is not None:
            found[t.name] = np.asarray(t.value)
        elif t.name not in graph.producers:
            found[t.name] = _draw(t, known.get(t.name, Use()), seed, keep, kept)
    if kept is not None:
        kept.clear()
    _fit_running_statistics(graph, found)
    return found


def _fit_running_statistics(graph: Graph, found: dict[str, Array]) -> None:
    """Scale normalisations so that the variances a file states, of weights it does not, leave the result near one."""
    for op in graph.ops:
        if op.type == "BatchNormalization" and len(op.inputs) > 4:
            scale, variance = op.inputs[1], graph.tensors[op.inputs[4]].value
            if variance is not None and graph.tensors[scale].value is None and scale in found:
                deviation = np.sqrt(np.abs(variance) + op.attributes.get("epsilon", 1e-5))
                found[scale] = (found[scale] * deviation).astype(found[scale].dtype)


def _generator(name: str, seed: int) -> np.random.Generator:
    digest = hashlib.sha256(f"{seed}:{name}".encode()).digest()
    return np.random.default_rng(int.from_bytes(digest[:8], "little"))


def _draw(t: Tensor, use: Use, seed: int, keep: Drawn | None, kept: Drawn | None) -> Array:
    shape = t.shape
    if shape is None:
        raise ValueError(f"tensor {t.name} has no static shape; bind the model's dimensions before drawing values")
    dtype = numpy_dtype(t.dtype)
    rng = _generator(t.name, seed)
    if use.below is not None:
        return _indices(shape, use.below, rng).astype(dtype)
    if t.dtype == "bool":
        return _mask(shape, rng, mostly=use.mask is not False)
    if use.mask is not None:
        return _mask(shape, rng, mostly=use.mask).astype(dtype)
    if not t.is_float:
        if t.dtype in ("int8", "uint8", "int4", "uint4"):  # quantised values
            return _quantised(t.dtype, shape, rng).astype(dtype)
        return np.ones(shape, dtype=dtype)
    key = t.name, seed, shape, t.role, use
    value = kept.pop(key, None) if kept is not None else None
    if value is None:
        value = _floats(t, use, rng)
    if keep is not None:
        keep[key] = value
    return value.astype(dtype, copy=False)


def _floats(t: Tensor, use: Use, rng: np.random.Generator) -> Array:
    shape = t.shape or ()
    # float32 at once, and scaled in place: a matrix of a large model must exist neither in double precision nor twice.
    normal = np.asarray(rng.standard_normal(shape, dtype=np.float32))
    if use.positive:
        return np.asarray(0.5 + rng.random(shape, dtype=np.float32))
    if use.near_one:
        normal *= np.float32(0.1)
        normal += 1
        return normal
    if use.fan_in:
        if use.fan_in >= LEAST_TERMS and all(d < len(shape) for d in use.terms) and use.terms:
            normal -= normal.mean(axis=use.terms, keepdims=True)
        normal *= np.float32(GAIN * use.fan_in**-0.5)
    elif use.shift or (t.role is Role.PARAMETER and len(shape) < 2):
        normal *= np.float32(0.1)
    return normal


def _quantised(dtype: str, shape: tuple[int, ...], rng: np.random.Generator) -> Array:
    """Normal, as weights are, with the extremes at four standard deviations: that is what a scale is chosen for."""
    bits = int(dtype.lstrip("uint"))
    middle = 1 << (bits - 1)
    values = np.clip(np.rint(rng.standard_normal(shape) * middle / 4), 1 - middle, middle - 1)
    return np.asarray(values + middle if dtype.startswith("u") else values)


def _indices(shape: tuple[int, ...], below: tuple[int, ...], rng: np.random.Generator) -> Array:
    """Below one bound, or below a bound of its own for each component of the last dimension."""
    if len(below) > 1 and shape and shape[-1] == len(below):
        return rng.integers(0, np.maximum(below, 1), size=shape)
    return rng.integers(0, max(1, min(below)), size=shape)


def _mask(shape: tuple[int, ...], rng: np.random.Generator, *, mostly: bool) -> Array:
    """Nine of ten elements are `mostly`; the first of every row always, so that no row is masked throughout."""
    drawn = rng.random(shape) < 0.9
    if shape:
        drawn[..., :1] = True
    return np.asarray(drawn if mostly else ~drawn)


# Packed types are held one element per byte; numpy lacks the last two, which `ml_dtypes` (part of onnx) has.
_STORED: Mapping[str, str] = {
    "int4": "int8",
    "uint4": "uint8",
    "int2": "int8",
    "uint2": "uint8",
    "float8e4m3fn": "float8_e4m3fn",
    "float8e5m2": "float8_e5m2",
}


def numpy_dtype(dtype: str) -> np.dtype[np.generic]:
    name = _STORED.get(dtype, dtype)
    return np.dtype(getattr(ml_dtypes, name) if hasattr(ml_dtypes, name) else name)
