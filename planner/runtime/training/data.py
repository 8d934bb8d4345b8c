"""Batches of a folder, walked in order and from the beginning again at the end.

Two forms. One array an input, `FOLDER/<input>.npy`, with samples along the first dimension: a step takes the next ones.
Or one file a step, `FOLDER/*.npz` or `*.safetensors` in the order of their names, each with an array for every input.

The model's first input of any dimensions says how many samples a pass of it takes: its first dimension.  Inputs with
as many rows, or a multiple of that (labels of every token in one row), are cut into batches; another has the model's
own shape, and every step reads it whole.  A position counts samples, so that it means the same under every plan.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from planner.errors import InputError
from planner.ir import DeviceMesh, Graph, Layout, Role, Tensor
from planner.kernels.shards import Array
from planner.runtime.training.stored import Stored, npy, npz, safetensors
from planner.runtime.training.weights import kind_of
from planner.verify.data import numpy_dtype
from planner.verify.uses import uses

__all__ = ["Data", "batch_rows", "bounds_of", "ignored_of", "open_data"]


def batch_rows(graph: Graph) -> int:
    """Samples in one pass of the graph: the first dimension of its first input that has dimensions; 1 without any."""
    shapes = (graph.tensors[n].shape for n in graph.inputs if graph.tensors[n].role is Role.INPUT)
    return next((s[0] for s in shapes if s), 1)


@dataclass(frozen=True)
class _Arrays:
    """One array for each input, all of as many samples."""

    arrays: Mapping[str, Stored]
    samples: int

    def rows(self, name: str, first: int, count: int, each: int) -> tuple[Array, ...]:
        """`count` samples from `first` on, of `each` rows, in as many pieces as they lie in."""
        whole = self.arrays[name].read()
        begin, pieces = first % self.samples, []
        while count:
            taken = min(count, self.samples - begin)
            pieces.append(whole[begin * each : (begin + taken) * each])
            begin, count = 0, count - taken
        return tuple(pieces)

    def whole(self, name: str, first: int) -> Stored:
        return self.arrays[name]


@dataclass(frozen=True)
class _Files:
    """A file for each step; the last one that was opened is kept."""

    files: tuple[Path, ...]
    batch: int
    _open: dict[Path, dict[str, Stored]] = field(default_factory=dict)

    def _at(self, first: int) -> dict[str, Stored]:
        file = self.files[first // self.batch % len(self.files)]
        if file not in self._open:
            self._open.clear()
            self._open[file] = safetensors(file) if file.suffix == ".safetensors" else npz(file)
        return self._open[file]

    def rows(self, name: str, first: int, count: int, each: int) -> tuple[Array, ...]:
        begin = first % self.batch
        return (self._at(first)[name].read()[begin * each : (begin + count) * each],)

    def whole(self, name: str, first: int) -> Stored:
        found = self._at(first)
        if name not in found:
            file = self.files[first // self.batch % len(self.files)]
            raise InputError(f"{file}: it has no {name}, which the model reads; it has {', '.join(sorted(found))}")
        return found[name]


def bounds_of(graph: Graph) -> dict[str, Any]:
    """Inputs that are indices → the number, or numbers, that they lie below; of those alone that are looked up as they
    are."""
    known = uses(graph)
    inputs = (n for n in graph.inputs if graph.tensors[n].role is Role.INPUT)
    return {n: u.below for n in inputs if (u := known.get(n)) is not None and u.below is not None and not u.loose}


def ignored_of(graph: Graph) -> list[int]:
    """Labels that a loss leaves out."""
    return [op.attributes["ignore_index"] for op in graph.ops if "ignore_index" in op.attributes]


class Data:
    """Batches for a graph in `micro_batches` passes a step; `step_samples`: of all of them together."""

    def __init__(self, graph: Graph, folder: Path, source: _Arrays | _Files, micro_batches: int) -> None:
        self.graph, self.folder, self.source = graph, folder, source
        self.rows = batch_rows(graph)
        self.step_samples = self.rows * micro_batches
        self.inputs = [n for n in graph.inputs if graph.tensors[n].role is Role.INPUT]
        self.below = bounds_of(graph)
        self.ignored = ignored_of(graph)

    def check(self, position: int) -> None:
        """InputError where the step from a sample on has not what the model reads; nothing but headers is read."""
        for name in self.inputs:
            stored, t = self.source.whole(name, position), self.graph.tensors[name]
            if kind_of(stored.dtype) != kind_of(numpy_dtype(t.dtype)):
                raise InputError(f"{stored.where}: expected elements of {t.dtype} for the input {name}, "
                                 f"found {stored.dtype}")  # fmt: skip
            each, shape = self._each(t, stored), t.shape or ()
            if each is None:
                rows = "any number of samples" if isinstance(self.source, _Arrays) else f"{self.step_samples}"
                raise InputError(
                    f"{stored.where}: expected [{', '.join([rows, *map(str, shape[1:])])}] for the input {name}, "
                    f"found {list(stored.shape)}"
                )
            samples = stored.shape[0] // each if each else self.step_samples
            uneven = each and stored.shape[0] % each
            other = samples < self.step_samples if isinstance(self.source, _Arrays) else samples != self.step_samples
            if uneven or other:
                at_least = "at least " if isinstance(self.source, _Arrays) else ""
                raise InputError(
                    f"{stored.where}: expected {at_least}{self.step_samples} samples, which a step of the plan takes, "
                    f"found {f'{stored.shape[0]} rows of {each} a sample' if each > 1 else samples}"
                )
            if isinstance(self.source, _Arrays) and each and samples != self.source.samples:
                raise InputError(
                    f"{stored.where}: expected as many samples as the other inputs have, {self.source.samples}, "
                    f"found {samples}"
                )

    def _each(self, t: Tensor, stored: Stored) -> int | None:
        """Rows of a sample; 0 for an input that is no sample's; None where the file fits in no way."""
        shape = t.shape or ()
        if not shape or shape[0] % self.rows:
            return 0 if stored.shape == shape else None
        if stored.shape[1:] != shape[1:] or not stored.shape:
            return None
        each = shape[0] // self.rows
        return 0 if each > 1 and stored.shape == shape else each

    def part(
        self, name: str, position: int, micro_batch: int, layout: Layout, mesh: DeviceMesh, place: int
    ) -> Array:  # fmt: skip
        """The part of an input of a micro-batch that lies on a rank, of the step that begins at a position.

        InputError for an index that no row has: a label of no class, a token of no word.
        """
        t = self.graph.tensors[name]
        stored = self.source.whole(name, position)
        each = self._each(t, stored)
        first = position + micro_batch * self.rows
        pieces = self.source.rows(name, first, self.rows, each) if each else (stored.read(),)
        batch = pieces[0] if len(pieces) == 1 else np.concatenate(pieces)
        found = layout.shard(batch, mesh, place)
        if name in self.below:
            self._check_indices(name, stored, found, first)
        return np.ascontiguousarray(found.astype(numpy_dtype(t.dtype), copy=False))

    def _check_indices(self, name: str, stored: Stored, found: Array, first: int) -> None:
        bounds: Any = np.asarray(self.below[name])
        if len(bounds) > 1 and (not found.shape or found.shape[-1] != len(bounds)):
            bounds = bounds.min(keepdims=True)
        wrong = (found < 0) | (found >= bounds)
        for ignored in self.ignored:
            wrong &= found != ignored
        if wrong.any():
            value = found[tuple(np.argwhere(wrong)[0])]
            left_out = f", or {self.ignored[0]} to be left out" if self.ignored else ""
            raise InputError(
                f"{stored.where}: the input {name} has {value} in the {self.rows} samples from {first} on; expected "
                f"numbers from 0 to {int(bounds.min()) - 1}{left_out}"
            )


def open_data(graph: Graph, folder: Path, micro_batches: int) -> Data:
    """The batches of a folder for a graph; the first step's are checked.

    Raises:
        InputError: the folder has no file for an input, or one of another shape, type or number of samples.
    """
    if not folder.is_dir():
        what = "a file" if folder.exists() else "nothing of that name"
        raise InputError(f"--data {folder}: expected a folder, found {what}")
    inputs = [n for n in graph.inputs if graph.tensors[n].role is Role.INPUT]
    files = {n: folder / f"{_file_name(n)}.npy" for n in inputs}
    there = [n for n in inputs if files[n].is_file()]
    rows = batch_rows(graph)
    if there:
        lacking = [files[n].name for n in inputs if n not in there]
        if lacking:
            raise InputError(f"--data {folder}: it has no {', '.join(lacking)}, which the model reads")
        arrays = {n: npy(files[n]) for n in inputs}
        lead = next((n for n in inputs if graph.tensors[n].shape), None)
        samples = arrays[lead].shape[0] if lead is not None and arrays[lead].shape else 1
        found = Data(graph, folder, _Arrays(arrays, samples), micro_batches)
    else:
        steps = tuple(sorted(f for f in folder.iterdir() if f.suffix in (".npz", ".safetensors")))
        if not steps:
            raise InputError(
                f"--data {folder}: expected {', '.join(f.name for f in files.values())}, samples along the first "
                f"dimension, or a .npz or .safetensors file for each step; found neither"
            )
        found = Data(graph, folder, _Files(steps, rows * micro_batches), micro_batches)
    found.check(0)
    return found


def _file_name(name: str) -> str:
    """Of an input; signs that paths have become underscores."""
    return "".join("_" if c in '/\\:*?"<>|' else c for c in name)
