"""Where the values of parameters and constants come from: a file, or a seed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import onnx

from planner.errors import InputError
from planner.frontends.facts.stated import aliases
from planner.frontends.file.strip import strip_file
from planner.ir import DeviceMesh, Graph, Layout, Role, Tensor
from planner.kernels.shards import Array
from planner.runtime.training.stored import Stored, in_onnx, safetensors
from planner.verify.data import numpy_dtype, random_tensors

__all__ = ["Weights", "kind_of", "plain_names", "weights_of"]

_NAMED = 5  # names in a message; of more their number


def plain_names(graph: Graph) -> dict[str, str]:
    """The name of each parameter in checkpoints and files of weights: the file's own, unless several share that."""
    counts = Counter(graph.origins.get(t.name, t.name) for t in graph.parameters)
    found = {}
    for t in graph.parameters:
        origin = graph.origins.get(t.name, t.name)
        found[t.name] = origin if counts[origin] == 1 else t.name
    return found


@dataclass(frozen=True)
class Weights:
    """Values of parameters and constants: those that files hold, and others drawn from `seed`.

    `said`: where they come from, in words; `unread`: names of a file that the model does not read; `aliases`: further
    names of parameters, which checkpoints have too, with the graph's.
    """

    graph: Graph
    held: Mapping[str, Stored]
    seed: int
    said: str
    unread: tuple[str, ...] = ()
    aliases: Mapping[str, str] = field(default_factory=dict)

    def drawn(self, names: Collection[str]) -> dict[str, Array]:
        """Whole values of those of the names that no file holds."""
        wanted = [n for n in names if n not in self.held]
        return random_tensors(self.graph, self.seed, only=wanted) if wanted else {}

    def constants(self) -> dict[str, Array]:
        """Whole values of the constants that the graph does not hold itself."""
        wanted = [t.name for t in self.graph.tensors.values()
                  if t.role is Role.CONSTANT and t.value is None and t.name not in self.graph.producers]  # fmt: skip
        found = self.drawn(wanted)
        return found | {n: _typed(self.held[n].read(), self.graph.tensors[n]) for n in wanted if n in self.held}

    def part(self, name: str, layout: Layout, mesh: DeviceMesh, place: int) -> Array:
        """The part of a tensor that a file holds which lies on a rank in a layout; nothing else is read of it."""
        return _typed(layout.shard(self.held[name].read(), mesh, place), self.graph.tensors[name])


def weights_of(graph: Graph, model: Path, given: Path | None, seed: int | None) -> Weights:
    """As `_weights_of`, with what the model says of parameters that are tied."""
    file = onnx.ModelProto.FromString(strip_file(model))
    known = {p: n for n, p in plain_names(graph).items()}
    tied = {alias: known[name] for alias, name in aliases(file, model.name).items() if name in known}
    return replace(_weights_of(graph, model, given, seed, tied), aliases=tied)


def _weights_of(
    graph: Graph, model: Path, given: Path | None, seed: int | None, tied: Mapping[str, str]
) -> Weights:  # fmt: skip
    """The weights that were asked for: of the file that was given, else drawn from the seed, else the model's own, else
    drawn from the seed 0.

    Raises:
        InputError: a file lacks a parameter, or holds one of another shape or type, or cannot be read.
    """
    if given is None and seed is not None:
        return Weights(graph, {}, seed, f"drawn from seed {seed}")
    if given is None:
        stored, _ = in_onnx(model)
        held = _of_model(graph, stored)
        lacking = [t.name for t in graph.parameters if t.name not in held]
        if len(lacking) == sum(1 for _ in graph.parameters):
            return Weights(graph, _checked(graph, held), 0, f"drawn from seed 0: {model} holds none")
        if lacking:
            raise InputError(
                f"{model}: it holds some weights, and has no values for {_listed(lacking)}; give all weights with "
                "--weights, or draw them all with --seed"
            )
        return Weights(graph, _checked(graph, held), 0, f"{model}")
    if not given.exists():
        raise InputError(f"--weights {given}: there is no such file or folder")
    if given.is_file() and given.suffix != ".safetensors":
        stored, absent = in_onnx(given)
        held = _of_model(graph, stored)
        lacking = [t.name for t in graph.parameters if t.name not in held]
        if lacking:
            gone = " (their data lies in a file that is not there)" if absent & set(lacking) else ""
            raise InputError(f"--weights {given}: no values for {_listed(lacking)}{gone}")
        return Weights(graph, _checked(graph, held), seed or 0, f"{given}")
    return _of_tensors(graph, given, _tensors_of(given), seed or 0, tied)


def _tensors_of(given: Path) -> dict[str, Stored]:
    files = [given] if given.is_file() else sorted(given.glob("*.safetensors"))
    if not files:
        raise InputError(f"--weights {given}: expected a folder with .safetensors files, found none in it")
    found: dict[str, Stored] = {}
    for file in files:
        for name, stored in safetensors(file).items():
            if name in found:
                raise InputError(f"--weights {given}: {name} is there twice: {found[name].where}, {stored.where}")
            found[name] = stored
    return found


def _of_tensors(
    graph: Graph, given: Path, tensors: Mapping[str, Stored], seed: int, tied: Mapping[str, str]
) -> Weights:  # fmt: skip
    held = {name: tensors[alias] for alias, name in tied.items() if alias in tensors}
    held |= {name: tensors[plain] for name, plain in plain_names(graph).items() if plain in tensors}
    for t in graph.tensors.values():  # constants, such as tables, may be there too
        if t.role is Role.CONSTANT and t.value is None and t.name not in graph.producers and t.name in tensors:
            held[t.name] = tensors[t.name]
    names = plain_names(graph)
    lacking = [plain for name, plain in names.items() if name not in held]
    unread = tuple(sorted(set(tensors) - set(names.values()) - set(held) - set(tied)))
    if lacking:
        has = f"; it holds {_listed(unread)}, which the model does not read" if unread else ""
        raise InputError(
            f"--weights {given}: no values for {_listed(lacking)}{has}. Names are those of the model's parameters"
        )
    return Weights(graph, _checked(graph, held), seed, f"{given}", unread)


def _of_model(graph: Graph, stored: Mapping[str, Stored]) -> dict[str, Stored]:
    """Stored tensors by the names that the graph has for them: several may be made of one."""
    found = {}
    for t in graph.tensors.values():
        origin = graph.origins.get(t.name, t.name)
        if t.name not in graph.producers and t.value is None and origin in stored:
            found[t.name] = stored[origin]
    return found


def _checked(graph: Graph, held: dict[str, Stored]) -> dict[str, Stored]:
    for name, stored in held.items():
        t = graph.tensors[name]
        if stored.shape != t.shape:
            turned = stored.shape == tuple(reversed(t.shape or ()))
            raise InputError(
                f"{stored.where}: expected the shape {list(t.shape or ())} of the model's {name}, found "
                f"{list(stored.shape)}{', which is the transposed one' if turned else ''}"
            )
        if kind_of(stored.dtype) != kind_of(numpy_dtype(t.dtype)):
            raise InputError(f"{stored.where}: expected elements of {t.dtype}, found {stored.dtype}")
    return held


def kind_of(dtype: np.dtype[np.generic]) -> str:
    """What values may be turned into each other: floats, whole numbers, truth values."""
    return "float" if dtype.name.startswith(("float", "bfloat")) else "bool" if dtype.kind == "b" else "int"


def _typed(value: Array, t: Tensor) -> Array:
    return value.astype(numpy_dtype(t.dtype), copy=False)


def _listed(names: Collection[str]) -> str:
    first = ", ".join(list(names)[:_NAMED])
    return first if len(names) <= _NAMED else f"{first} and {len(names) - _NAMED} more"
