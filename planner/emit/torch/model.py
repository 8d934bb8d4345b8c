"""The model beside an emitted plan: without weights, which the user's module has, but with the constants that it may
not have."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import onnx

from planner.emit.onnx.file import load_file
from planner.frontends.file.beside import with_data
from planner.frontends.file.strip import strip_file
from planner.ir import Graph, Role

__all__ = ["kept_model"]

MODEL: Final = "model.onnx"
DATA: Final = "constants.data"


def kept_model(path: Path, graph: Graph) -> dict[str, bytes]:
    """Files: the model that gives `graph` again, and its constants that lay in a file of their own before.

    Large constants that an exporter computed (masks, rotary tables) are what no module has under their names.  They
    stay inside or outside of the model's file, since that decides what an importer reads of them.  Of a file that lost
    its weights before, they are as little in the result as they are in it.  InputError where data cannot be read.
    """
    stripped = strip_file(path)
    wanted = {t.name for t in graph.tensors.values() if t.role is Role.CONSTANT and t.value is None}
    wanted = {graph.origins.get(n, n) for n in wanted - graph.producers.keys()}
    if not wanted:
        return {MODEL: stripped}
    model, whole = onnx.ModelProto.FromString(stripped), dict(_stored(load_file(path)))
    outside = b""
    for name, t in _stored(model):
        if name not in wanted or t.data_location != onnx.TensorProto.EXTERNAL:
            continue
        if whole[name].data_location != onnx.TensorProto.EXTERNAL:
            t.CopyFrom(whole[name])
            continue
        held = with_data(whole[name], path.parent)
        if held is not None:
            data = held.raw_data
            del t.external_data[:]
            for key, value in (("location", DATA), ("offset", len(outside)), ("length", len(data))):
                t.external_data.add(key=key, value=str(value))
            outside += data
    files = {MODEL: bytes(model.SerializeToString(deterministic=True))}
    return {**files, DATA: outside} if outside else files


def _stored(model: onnx.ModelProto) -> Iterator[tuple[str, onnx.TensorProto]]:
    """Initializers, and the values of `Constant` nodes, by the name of the tensor."""
    for t in model.graph.initializer:
        yield t.name, t
    for node in model.graph.node:
        if node.op_type == "Constant":
            for a in node.attribute:
                if a.name == "value":
                    yield node.output[0], a.t
