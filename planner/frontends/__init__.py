"""Frontends: bytes → Graph (checked, shaped, folded, bound).

`load_model` is what commands and services call: it imports in a killable child process, because a
kilobyte of hostile ONNX can ask shape inference for gigabytes.  `import_bytes` is the same work in this
process.  Importing this package loads neither; onnx is imported by the modules that need it.
"""

from __future__ import annotations

from collections.abc import Mapping

from planner.frontends.file.sandbox import Imported, Limits, load_data, load_model, load_with_file
from planner.ir import Graph

__all__ = ["Imported", "Limits", "import_bytes", "load_data", "load_model", "load_with_file"]


def import_bytes(
    data: bytes, *, name: str = "model", bind: Mapping[str, int] | None = None, batch: int | None = None
) -> Graph:
    """Import a serialised ModelProto in this process; see `planner.frontends.importer.import_bytes`."""
    from planner.frontends import importer

    return importer.import_bytes(data, name=name, bind=bind, batch=batch)
