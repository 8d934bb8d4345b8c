"""Resize and Upsample: batch, channels and resized space.

Interpolation along one dimension is a linear map: every result reads a few neighbouring sources.  Split space needs a
halo of the source; where whole factors repeat or skip elements, none.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from planner.rules.operator import KeepWholeError, Operator, sharded
from planner.rules.registry import rule
from planner.rules.rule import Rule
from planner.rules.window import Range, Space

__all__ = ["Resampling", "resamplings", "taps"]

_LOCAL = ("asymmetric", "half_pixel", "half_pixel_symmetric", "tf_half_pixel_for_nn")  # a shift moves both sides


@dataclass(frozen=True, slots=True)
class Resampling:
    """One dimension: `positions` results from `elements` sources, at `scale` results per source.

    mode         nearest, linear or cubic
    coordinates  how a result's coordinate becomes a source's
    rounding     of the source's coordinate to the nearest element
    exclude      elements off the border have no weight; otherwise they repeat the border
    stated       the local operator may be given its own size or the same scale
    """

    elements: int
    positions: int
    scale: float
    mode: str
    coordinates: str
    rounding: str = "round_prefer_floor"
    cubic: float = -0.75
    exclude: bool = False
    antialias: bool = False
    stated: bool = True

    @property
    def tiles(self) -> bool:
        """At the finest cut every shard reads its own sources, by a map that is the same for all shards."""
        parts = math.gcd(self.elements, self.positions)
        if not self.stated or self.mode != "nearest" or self.coordinates not in _LOCAL or not parts:
            return False
        u, v = self.elements // parts, self.positions // parts
        local = taps(Resampling(u, v, self.scale, self.mode, self.coordinates, self.rounding))[0]
        whole = taps(self)[0].reshape(parts, v)
        fits = self.scale * self.elements == self.positions
        return fits and bool(np.array_equal(whole, local.reshape(1, v) + u * np.arange(parts)[:, None]))

    def read_by(self, positions: Range) -> Range:
        read = taps(self)[0][slice(*positions)]
        return int(read.min(initial=self.elements)), int(read.max(initial=-1)) + 1

    def reading(self, elements: Range) -> Range:
        read = taps(self)[0]
        rows = np.flatnonzero((read.max(axis=1) >= elements[0]) & (read.min(axis=1) < elements[1]))
        return (int(rows[0]), int(rows[-1]) + 1) if len(rows) else (0, 0)


@lru_cache(maxsize=1024)
def taps(r: Resampling) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """(result, tap) → source and weight.  Coordinates are computed in float32, as runtimes do: ties depend on it."""
    at = _coordinates(r)
    if r.mode == "nearest":
        return np.clip(_round(at, r), 0, r.elements - 1)[:, None], np.ones((r.positions, 1))
    if r.antialias and r.scale != 1.0:
        source, weight = _antialiased(at.astype(np.float64), r)
    elif r.mode == "linear":
        at = np.clip(at, 0, r.elements - 1)
        first = np.floor(at).astype(np.int64)
        part = (at - first).astype(np.float64)
        source, weight = np.stack([first, first + 1], axis=1), np.stack([1 - part, part], axis=1)
    else:
        first = np.floor(at).astype(np.int64)
        source = first[:, None] + np.arange(-1, 3)
        weight = _cubic(at[:, None].astype(np.float64) - source, r.cubic)
    if r.exclude:
        weight = np.where((source >= 0) & (source < r.elements), weight, 0.0)
        weight = weight / weight.sum(axis=1, keepdims=True)
    source = np.clip(source, 0, r.elements - 1)
    # Taps without weight read nothing.
    return np.where(weight == 0, source[np.arange(r.positions), np.abs(weight).argmax(axis=1)][:, None], source), weight


def _coordinates(r: Resampling) -> NDArray[np.float32]:
    """Where each result lies among the sources."""
    x = np.arange(r.positions, dtype=np.float32)
    scale, half = np.float32(r.scale), np.float32(0.5)
    match r.coordinates:
        case "asymmetric":
            return x / scale
        case "align_corners":
            return x * np.float32(r.elements - 1) / np.float32(max(r.positions - 1, 1))
        case "tf_half_pixel_for_nn":
            return (x + half) / scale
        case "pytorch_half_pixel" if r.positions == 1:
            return np.zeros_like(x)
        case "half_pixel_symmetric":
            adjustment = np.float32(r.positions) / (scale * np.float32(r.elements))
            return np.float32(r.elements / 2) * (1 - adjustment) + (x + half) / scale - half
    return (x + half) / scale - half


def _round(at: NDArray[np.float32], r: Resampling) -> NDArray[np.int64]:
    half = np.float32(0.5)
    match r.rounding:
        case "floor":
            found = np.floor(at)
        case "ceil":
            found = np.ceil(at)
        case "simple":  # of the first versions
            found = np.ceil(at) if r.scale < 1 else np.floor(at)
        case "round_prefer_ceil":
            found = np.floor(at + half)
        case _:
            found = np.ceil(at - half)
    return found.astype(np.int64)


def _cubic(distance: NDArray[np.float64], a: float) -> NDArray[np.float64]:
    """Keys' kernel."""
    x = np.abs(distance)
    near = ((a + 2) * x - (a + 3)) * x * x + 1
    far = ((a * x - 5 * a) * x + 8 * a) * x - 4 * a
    return np.where(x <= 1, near, np.where(x < 2, far, 0.0))


def _antialiased(at: NDArray[np.float64], r: Resampling) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """The kernel is stretched when the result is smaller."""
    stretch = max(1 / r.scale, 1.0)
    support = stretch * (1 if r.mode == "linear" else 2)
    first = np.floor(at - support).astype(np.int64) + 1
    source = first[:, None] + np.arange(math.ceil(2 * support) + 1)
    distance = (source - at[:, None]) / stretch
    weight = np.maximum(1 - np.abs(distance), 0.0) if r.mode == "linear" else _cubic(distance, r.cubic)
    return source, weight / weight.sum(axis=1, keepdims=True)


def resamplings(
    type: str,
    opset: int,
    attributes: Mapping[str, Any],
    source: Sequence[int],
    result: Sequence[int],
    scales: Sequence[float] | None,
    sizes: bool,
) -> dict[int, Resampling]:
    """The dimensions that are resampled, those that keep their size at scale one left out.

    `scales` as given (None: the result's size is, `sizes`).
    """

    def text(name: str, default: str) -> str:
        value = attributes.get(name, default)
        return value.decode() if isinstance(value, bytes) else str(value)

    rank = len(source)
    old = type == "Upsample" or opset < 11
    axes = [int(a) % rank for a in attributes.get("axes", range(rank))]
    given = dict(zip(axes, map(float, scales), strict=True)) if scales is not None else {}
    found = {}
    for d in range(rank):
        scale = given.get(d, 1.0 if scales is not None else result[d] / max(source[d], 1))
        if source[d] == result[d] and scale == 1.0:
            continue
        found[d] = Resampling(
            source[d],
            result[d],
            scale,
            {"bilinear": "linear", "trilinear": "linear"}.get(text("mode", "nearest"), text("mode", "nearest")),
            "asymmetric" if old else text("coordinate_transformation_mode", "half_pixel"),
            "simple" if old else text("nearest_mode", "round_prefer_floor"),
            float(attributes.get("cubic_coeff_a", -0.75)),
            bool(attributes.get("exclude_outside", 0)),
            bool(attributes.get("antialias", 0)),
            not (sizes and "axes" in attributes),
        )
    return found


@rule("Resize", "Upsample")
def _resize(o: Operator) -> Rule:
    """Interpolation is linear; a dimension resized by exactly one is untouched."""
    rank, source, result = o.rank(0), o.shape(0), o.result()
    if o.attribute("coordinate_transformation_mode", "half_pixel") == "tf_crop_and_resize":
        raise KeepWholeError("its region of interest cuts every dimension")
    operand = 1 if o.type == "Upsample" or o.opset < 11 else 2
    sized = o.has(3)
    scales = None if sized else _scales(o, operand)
    axes = {int(a) % rank for a in o.attribute("axes", range(rank))}
    known = sized or scales is not None
    plain = o.attribute("keep_aspect_ratio_policy", "stretch") in ("stretch", b"stretch")
    shape_operand = 3 if sized and "axes" not in o.op.attributes else None
    touched: dict[int, Resampling] = {}
    if known:
        touched = resamplings(o.type, o.opset, o.op.attributes, source, result, scales, sized)
    # Sizes along untouched dimensions are stated in operand 3 for some axes only when `axes` is given.
    fixed = axes if sized and "axes" in o.op.attributes else set()
    exact = o.makes_float or o.attribute("mode", "nearest") in ("nearest", b"nearest")
    space = Space.of(touched.values() if plain and exact else ())
    numbered = {d: i for i, d in enumerate(touched)} if space.windows else {}
    names = [f"d{d}" if source[d] == result[d] and d not in touched and d not in fixed else "*" for d in range(rank)]
    read, made = list(names), list(names)
    for d, i in numbered.items():
        read[d], made[d] = f"(y{i} u{i}!)", f"(y{i} v{i}!)"
    rest = [name for d, name in enumerate(names) if name != "*"]
    still = math.prod(source[d] for d in range(rank) if names[d] == "*" and d not in numbered)
    item = o.item_bytes * still
    return sharded(
        o,
        f"{' '.join(read)}, -, -, - -> {' '.join(made)}",
        kind="layout",
        sizes=space.sizes,
        linear=[(0,)],
        differentiable=(0,),
        flops=8.0 * math.prod(result),
        shape_operand=shape_operand,
        aware=space.aware,
        inner=(
            *space.halo("elements", rest, item),
            *space.halo("elements", rest, item, back=True, backward=True),
        ),
    )


def _scales(o: Operator, operand: int) -> list[float] | None:
    """The scales, None where they are computed at run time."""
    if "scales" in o.op.attributes:
        return [float(s) for s in o.attribute("scales", ())]
    value = o.value(operand)
    return None if value is None else [float(s) for s in np.ravel(value)]
