"""Values of parameters and constants as the model's file holds them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import numpy_helper

from planner.frontends.file.dtypes import dtype_name
from planner.frontends.steps.draft import DOMAINS
from planner.ir import Graph, Role

__all__ = ["FileValues"]


class FileValues:
    """Reads one value at a time.  `external` are tensors whose values lie in other files, which are not read;
    `lacking` those of which the file says nothing."""

    def __init__(self, model: onnx.ModelProto, graph: Graph) -> None:
        self.graph = graph
        self._held = _tensors(model)
        self._made = {o: n for n in model.graph.node for o in n.output if o}
        self._found: dict[str, onnx.TensorProto | None] = {}
        sources = [
            n for n, t in graph.tensors.items()
            if n not in graph.producers and n in graph.consumers and t.role is not Role.INPUT and t.value is None
        ]  # fmt: skip
        self.external = [n for n in sources if self._lies_outside(n)]
        self.lacking = [n for n in sources if self._tensor(n) is None]

    def read(self, name: str) -> NDArray[Any] | None:
        """The whole value; None where the file does not hold it."""
        t = self.graph.tensors[name]
        if t.value is not None:
            return np.asarray(t.value)
        found = self._tensor(name)
        return None if found is None or self._lies_outside(name) else numpy_helper.to_array(found)

    def _lies_outside(self, name: str) -> bool:
        found = self._tensor(name)
        return found is not None and found.data_location == onnx.TensorProto.EXTERNAL

    def _tensor(self, name: str) -> onnx.TensorProto | None:
        """That of this name, or, of a parameter that the importer gave its own name, the one that its reader reads."""
        if name not in self._found:
            t = self.graph.tensors[name]
            candidates = [name]
            for op, slot in self.graph.consumers.get(name, ()):
                node = self._made.get(op.name)
                if node is not None and slot < len(node.input):
                    candidates.append(node.input[slot])
            fitting = (self._held.get(self._origin(c)) for c in candidates)
            self._found[name] = next(
                (
                    f for f in fitting
                    if f is not None and tuple(f.dims) == t.shape and dtype_name(f.data_type) == t.dtype
                ),
                None,
            )  # fmt: skip
        return self._found[name]

    def _origin(self, name: str) -> str:
        """Behind nodes that only give a tensor another name."""
        seen = set()
        while name not in self._held and name not in seen:
            seen.add(name)
            node = self._made.get(name)
            if node is None or node.op_type != "Identity" or node.domain not in DOMAINS:
                break
            name = node.input[0]
        return name


def _tensors(model: onnx.ModelProto) -> Mapping[str, onnx.TensorProto]:
    """Initializers and constants."""
    found = {t.name: t for t in model.graph.initializer}
    for node in model.graph.node:
        if node.op_type == "Constant" and node.domain in DOMAINS:
            found.update((node.output[0], a.t) for a in node.attribute if a.name == "value")
    return found
