"""The model beside an emitted plan: without weights, which the user's module has, but with the constants that it may
not have."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import onnx
from onnx.external_data_helper import load_external_data_for_tensor

from planner.emit.onnx.file import load_file
from planner.errors import InputError
from planner.frontends.file.strip import strip_file
from planner.ir import Graph, Role

__all__ = ["kept_model"]


def kept_model(path: Path, graph: Graph) -> bytes:
    """The serialised ModelProto that gives `graph` again.  InputError where a constant's data cannot be read.

    Large constants that an exporter computed (masks, rotary tables) are what no module has under their names.  Of a
    file that lost its weights before, they are as little in the result as they are in it.
    """
    stripped = strip_file(path)
    wanted = {t.name for t in graph.tensors.values() if t.role is Role.CONSTANT and t.value is None}
    wanted = {graph.origins.get(n, n) for n in wanted - graph.producers.keys()}
    if not wanted:
        return stripped
    model, whole = onnx.ModelProto.FromString(stripped), load_file(path)
    found = dict(_stored(whole))
    for name, t in _stored(model):
        if name in wanted and t.data_location == onnx.TensorProto.EXTERNAL:
            t.CopyFrom(_with_data(found[name], path))
    return bytes(model.SerializeToString(deterministic=True))


def _stored(model: onnx.ModelProto) -> Iterator[tuple[str, onnx.TensorProto]]:
    """Initializers, and the values of `Constant` nodes, by the name of the tensor."""
    for t in model.graph.initializer:
        yield t.name, t
    for node in model.graph.node:
        if node.op_type == "Constant":
            for a in node.attribute:
                if a.name == "value":
                    yield node.output[0], a.t


def _with_data(t: onnx.TensorProto, path: Path) -> onnx.TensorProto:
    """A copy that needs no other file; as it is where its data are nowhere."""
    out = onnx.TensorProto()
    out.CopyFrom(t)
    places = {e.key: e.value for e in t.external_data}
    if t.data_location != onnx.TensorProto.EXTERNAL or not (path.parent / places.get("location", "")).is_file():
        return out
    try:
        load_external_data_for_tensor(out, str(path.parent))
    except (OSError, ValueError, onnx.checker.ValidationError) as e:
        raise InputError(f"--model {path}: the data of {t.name} cannot be read ({e}); keep them beside the file") from e
    out.data_location = onnx.TensorProto.DEFAULT
    del out.external_data[:]
    return out
