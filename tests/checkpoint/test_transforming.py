"""Laws of transformations: whatever the layouts, tensors come out as they went in."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from planner.checkpoint.layouts import Layouts
from planner.checkpoint.naming import parse
from planner.checkpoint.source import open_checkpoint, rank_files
from planner.checkpoint.transforming import Options, planned, transform
from planner.stored.arrays import Files
from planner.stored.formats.registry import read_file
from tests.checkpoint.layouts import Whole, of_rank, random_layouts, random_shape, random_tensors, write_ranks

FORMATS = ("safetensors", "mindspore", "npz", "torch")


def moved(source: Path, before: Layouts | None, place: Path, after: Layouts | None, **options: Any) -> Path:
    opened = open_checkpoint(source, before, options.get("skip", ()))
    transform(planned(opened, place, after, Options(sync=False, **options)))
    return place


def arrays_of(file: Path) -> Whole:
    with Files() as files:
        return {n: files.read(a, [(0, k) for k in a.shape]) for n, a in read_file(file).arrays.items()}


def check_ranks(folder: Path, layouts: Layouts, weights: Whole, slots: Whole) -> None:
    """Every rank's file has exactly what the layouts give it."""
    files = rank_files(folder)
    for rank in range(layouts.ranks):
        expected: Whole = {}
        for name, value in (weights | slots).items():
            spread = layouts.parameters[name] if name in weights else (
                layouts.of_slot(parse(name, layouts.parameters).parameter)
            )  # fmt: skip
            found = of_rank(value, spread.pieces(value.shape), rank)
            if found is not None:
                expected[name] = found
        found_arrays = arrays_of(files[rank]) if expected else {}
        assert (rank in files) == bool(expected)
        assert set(found_arrays) == set(expected)
        for name, value in expected.items():
            np.testing.assert_array_equal(found_arrays[name], value)


def spelled_as(kind: str, weights: Whole, slots: Whole) -> tuple[Whole, Whole]:
    """With the names that a format has for slots."""
    if kind != "mindspore":
        return weights, slots
    return weights, {f"moment1.{n.removesuffix('.exp_avg')}": v for n, v in slots.items()}


@pytest.mark.parametrize("seed", range(60))
def test_any_layout_to_any_layout_and_back(seed: int, tmp_path: Path) -> None:
    rng = random.Random(seed)
    shapes = {f"p{i}.weight": random_shape(rng) for i in range(rng.randint(1, 5))}
    a, b, c = (random_layouts(rng, shapes) for _ in range(3))
    weights, slots = random_tensors(rng, shapes)
    write_ranks(tmp_path / "a", a, weights, slots)
    kind = rng.choice(FORMATS)
    memory = rng.choice([1 << 28, 200])  # in blocks of a few elements, too
    moved(tmp_path / "a", a, tmp_path / "b", b, format=kind, memory=memory, workers=rng.choice([1, 3]))
    check_ranks(tmp_path / "b", b, *spelled_as(kind, weights, slots))
    moved(tmp_path / "b", b, tmp_path / "c", c, format="safetensors", memory=memory)  # A to B to C is A to C
    check_ranks(tmp_path / "c", c, *spelled_as("safetensors", weights, slots))
    moved(tmp_path / "b", b, tmp_path / "d", a, format="safetensors")  # A to B to A is A
    check_ranks(tmp_path / "d", a, weights, slots)
