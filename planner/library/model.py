"""`planner.Model`: a model that is planned for, imported once for each batch."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol, runtime_checkable

from planner.errors import InputError, OptionError
from planner.library.wording import worded
from planner.requests.model import ModelSource
from planner.terminal import plain

if TYPE_CHECKING:
    from planner.frontends import Imported
    from planner.ir import Graph

__all__ = ["Model", "ModelLike", "Proto", "model_of"]

_NAME: Final = "model"  # of bytes that nobody named


@runtime_checkable
class Proto(Protocol):
    """An onnx.ModelProto, which is not imported for this."""

    def SerializeToString(self) -> bytes:
        """Its bytes."""


ModelLike = "Model | str | os.PathLike[str] | bytes | Proto"


@dataclass(frozen=True, eq=False, repr=False)
class Model:
    """A model with the file or the bytes that it comes from, which plans are verified against and emitted with.

    Made by `planner.load` and `planner.build`.  `graph` is what the importer understood of it, with every dimension
    bound; it holds no weights.

    source  where it is read
    bind    sizes of symbolic dimensions
    batch   the global batch that it is bound to; None: as the file has it
    """

    source: ModelSource
    bind: Mapping[str, int] = field(default_factory=dict)
    batch: int | None = None

    @cached_property
    def graphs(self) -> dict[int | None, Imported]:
        """What was imported so far: batch → graph, and the file without weights."""
        return {}

    @property
    def graph(self) -> Graph:
        """The operators and tensors.  InputError where the model cannot be understood."""
        return self._loaded.graph

    @property
    def name(self) -> str:
        """The name of the model in its plans."""
        return self.source.name

    @property
    def digest(self) -> str:
        """The SHA-256 of the graph, without names and weights: equal for models that are planned for alike."""
        return self.graph.digest

    @property
    def parameters(self) -> int:
        """The number of elements of all parameters."""
        from math import prod

        return sum(prod(t.shape or ()) for t in self.graph.parameters)

    @worded
    def save(self, path: str | os.PathLike[str]) -> Path:
        """Writes the model as it was given to an ONNX file.  InputError where it cannot be written."""
        from planner.files import write_whole

        with self.source.file() as file:
            try:
                write_whole(Path(path), file.read_bytes())
            except OSError as e:
                raise InputError(f"model {path}: cannot be written ({e}); give another place") from e
        return Path(path)

    def stripped(self) -> bytes:
        """The file without its weights, which gives the same graph."""
        return self._loaded.file

    @property
    def _loaded(self) -> Imported:
        if self.batch not in self.graphs:
            self.graphs[self.batch] = self.source.load_with_file(bind=self.bind, batch=self.batch)
        return self.graphs[self.batch]

    def __repr__(self) -> str:
        ends = f"loss {self.graph.loss}" if self.graph.loss else "no loss"
        return plain(f"<Model {self.name}: {len(self.graph.ops):,} operators, {self.parameters:,} weights, {ends}>")

    def _repr_html_(self) -> str:
        graph = self.graph
        fed = ", ".join(f"{t} {graph.tensors[t].dtype}{list(graph.tensors[t].shape or ())}" for t in graph.inputs)
        rows = {
            "operators": f"{len(graph.ops):,}",
            "weights": f"{self.parameters:,}",
            "inputs": fed,
            "loss": graph.loss or "none: planned for inference",
            "digest": self.digest[:12],
        }
        cells = "".join(f"<tr><th>{k}</th><td>{escape(plain(v))}</td></tr>" for k, v in rows.items())
        return f"<b>{escape(plain(self.name))}</b><table>{cells}</table>"


def model_of(value: Any) -> Model:
    """The model that a user means: a `Model`, a path, bytes, or an onnx.ModelProto.  OptionError for anything else."""
    if isinstance(value, Model):
        return value
    if isinstance(value, str | os.PathLike):
        return Model(ModelSource(Path(value)))
    if isinstance(value, bytes | bytearray | memoryview):
        return Model(ModelSource(Path(f"{_NAME}.onnx"), bytes(value)))
    if isinstance(value, Proto):
        return Model(ModelSource(Path(f"{_NAME}.onnx"), value.SerializeToString()))
    raise OptionError(
        f"model: expected a model of planner.load or planner.build, a path, bytes or an onnx.ModelProto, found "
        f"{type(value).__name__}"
    )
