"""Random layouts, and checkpoints of ranks under them, for tests."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from planner.checkpoint.layouts import Layouts, Spread
from planner.checkpoint.naming import parse
from planner.checkpoint.source import local_shapes
from planner.ir import DeviceMesh, Layout
from planner.stored.arrays import Files, StoredArray
from planner.stored.formats.layout import Arranged, Entry
from planner.stored.formats.registry import FORMATS
from planner.transfer.pieces import Pieces

Whole = dict[str, np.ndarray[Any, Any]]


def random_mesh(rng: random.Random, most: int = 12) -> DeviceMesh:
    sizes = [rng.choice([1, 2, 2, 3, 4]) for _ in range(rng.randint(1, 3))]
    while int(np.prod(sizes)) > most:
        sizes.pop()
    return DeviceMesh.of(*(sizes or [1]))


def random_layout(rng: random.Random, dims: int, mesh: DeviceMesh, shape: tuple[int, ...] | None = None) -> Layout:
    """Each axis on one dimension, or on none; with `shape`, now and then in parts that divide it."""
    axes = list(mesh.names)
    rng.shuffle(axes)
    split: list[list[str]] = [[] for _ in range(dims)]
    for a in axes:
        if dims and rng.random() < 0.7:
            split[rng.randrange(dims)].append(a)
    parts: tuple[int, ...] = ()
    if shape is not None and rng.random() < 0.25:
        found = [rng.choice([p for p in (1, 2, 3) if n % p == 0]) for n in shape]
        parts = tuple(found) if any(p > 1 for p in found) else ()
    return Layout(tuple(map(tuple, split)), (), parts)


def random_shape(rng: random.Random) -> tuple[int, ...]:
    return tuple(rng.choice([1, 2, 3, 5, 6, 8, 12]) for _ in range(rng.randint(0, 3)))


def random_layouts(rng: random.Random, shapes: Mapping[str, tuple[int, ...]], said: str = "a plan") -> Layouts:
    """A mesh, now and then in several stages, and a layout for each parameter, with another for its slots."""
    mesh = random_mesh(rng)
    stages = rng.choice([1, 1, 2])
    parameters, slots = {}, {}
    for name, shape in shapes.items():
        chosen = sorted(rng.sample(range(stages), rng.randint(1, stages)))
        firsts = tuple(s * mesh.devices for s in chosen)
        parameters[name] = Spread(random_layout(rng, len(shape), mesh, shape), mesh, firsts, shape)
        if rng.random() < 0.5:
            slots[name] = Spread(random_layout(rng, len(shape), mesh, shape), mesh, firsts, shape)
    return Layouts(said, stages * mesh.devices, parameters, slots)


def of_rank(value: np.ndarray[Any, Any], pieces: Pieces, rank: int) -> np.ndarray[Any, Any] | None:
    """The rank's array, by copying boxes one by one: what the product is compared with."""
    shapes = local_shapes(pieces)
    if rank not in shapes:
        return None
    out = np.full(shapes[rank], 0, value.dtype)
    mine = pieces.of(rank)
    for start, stop, inside in zip(mine.boxes.starts, mine.boxes.stops, mine.inside, strict=True):
        size = stop - start
        into = tuple(slice(int(i), int(i + n)) for i, n in zip(inside, size, strict=True))
        out[into] = value[tuple(slice(int(a), int(b)) for a, b in zip(start, stop, strict=True))]
    return out


def write_file(path: Path, arrays: Whole) -> None:
    """A file in the format that its ending says, by the product's own arrangement."""
    file_format = next(f for f in FORMATS.values() if path.suffix in f.suffixes)
    entries = [Entry(n, a.dtype, a.shape) for n, a in arrays.items()]
    write_arranged(path, file_format.arrange(entries, {}), entries, list(arrays.values()))


def write_arranged(
    path: Path, arranged: Arranged, entries: Sequence[Entry], arrays: Sequence[np.ndarray[Any, Any]]
) -> None:
    """A file that a format has arranged, with the elements of its arrays."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as opened:
        opened.truncate(arranged.size)
        for offset, data in arranged.fixed:
            opened.seek(offset)
            opened.write(data)
    with Files(write=True) as files:
        for e, value in zip(entries, arrays, strict=True):
            extents = tuple(arranged.extents.get(e.name, ()))
            array = StoredArray(path, arranged.offsets[e.name], e.dtype, e.shape, None, extents)
            files.write(array, [(0, n) for n in e.shape], value)


def write_ranks(folder: Path, layouts: Layouts, weights: Whole, slots: Whole, suffix: str = ".safetensors") -> None:
    """`slots`: NAME.exp_avg, moment1.NAME and the like."""
    for rank in range(layouts.ranks):
        held: Whole = {}
        for name, value in weights.items():
            found = of_rank(value, layouts.parameters[name].pieces(value.shape), rank)
            if found is not None:
                held[name] = found
        for slot, value in slots.items():
            spread = layouts.of_slot(parse(slot, layouts.parameters).parameter)
            found = of_rank(value, spread.pieces(value.shape), rank)
            if found is not None:
                held[slot] = found
        write_file(folder / f"rank_{rank}" / f"checkpoint{suffix}", held)


def random_tensors(rng: random.Random, shapes: Mapping[str, tuple[int, ...]]) -> tuple[Whole, Whole]:
    """(weights, a slot of each)."""
    numbers = np.random.default_rng(rng.getrandbits(32))
    weights = {n: numbers.standard_normal(s).astype(np.float32) for n, s in shapes.items()}
    return weights, {f"{n}.exp_avg": numbers.standard_normal(s).astype(np.float32) for n, s in shapes.items()}
