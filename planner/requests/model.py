"""Where a model comes from: a file, or bytes that never were one."""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from planner.frontends import Imported
    from planner.ir import Graph

__all__ = ["ModelSource"]


@dataclass(frozen=True)
class ModelSource:
    """`path` names the model, and is the file to read where there is no `data`, a serialised ModelProto."""

    path: Path
    data: bytes | None = field(default=None, repr=False)

    @property
    def name(self) -> str:
        """What plans call the model."""
        return self.path.stem

    @property
    def digest(self) -> str:
        """SHA-256 of the content, the same in memory and in a file.  OSError where the file cannot be read."""
        from planner.cache import file_digest

        return file_digest(self.path) if self.data is None else hashlib.sha256(self.data).hexdigest()

    def load(self, *, bind: Mapping[str, int] | None = None, batch: int | None = None) -> Graph:
        """The graph, with errors as of `planner.frontends.load_model`."""
        from planner.frontends import load_data, load_model

        if self.data is None:
            return load_model(self.path, bind=bind, batch=batch)
        return load_data(self.data, self.name, bind=bind, batch=batch)[0]

    def load_with_file(self, *, bind: Mapping[str, int] | None = None, batch: int | None = None) -> Imported:
        """The graph, with the model's bytes less the weights."""
        from planner.frontends import load_data, load_with_file

        if self.data is None:
            return load_with_file(self.path, bind=bind, batch=batch)
        return load_data(self.data, self.name, bind=bind, batch=batch, keep=True)

    @contextmanager
    def file(self) -> Iterator[Path]:
        """The model as a file, for what reads nothing else; one of bytes is gone behind the block."""
        if self.data is None:
            yield self.path
            return
        with tempfile.TemporaryDirectory(prefix="planner-model-") as folder:
            path = Path(folder) / f"{self.name}.onnx"
            path.write_bytes(self.data)
            yield path
