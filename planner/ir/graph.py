"""The graph: operators in topological order and the tensors between them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from planner.ir.tensor import Role, Tensor

if TYPE_CHECKING:
    import networkx as nx

__all__ = ["Graph", "Op"]


@dataclass(frozen=True, slots=True, eq=False)
class Op:
    """One operator.  `type` carries its domain unless it is ONNX's own: `com.microsoft::Gelu`.

    `name` is the first non-empty output, which is unique in a graph (node names are not).  Absent
    optional inputs and outputs are empty strings.  Attribute values are plain Python values (int,
    float, str, tuple of these), numpy arrays for tensors, and bytes of the serialised protobuf for
    sub-graphs.
    """

    name: str
    type: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, Any] = field(default_factory=dict)
    opset: int = 0
    source: str = ""  # the node's name in the file
    module: str = ""  # module path the exporter left, dotted


@dataclass(frozen=True, eq=False)
class Graph:
    """Immutable; `ops` are in topological order, `tensors` holds every name that they mention.

    `loss` names the scalar output that training minimises, when the graph ends in one.  `origins` says of which tensor
    of the file a source is a copy, where it has a name of its own; `bound` whether sizes that the file leaves open were
    put in, from which numbers may have been computed.
    """

    ops: tuple[Op, ...]
    tensors: Mapping[str, Tensor]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    name: str = ""
    loss: str | None = None
    origins: Mapping[str, str] = field(default_factory=dict)
    bound: bool = False

    @cached_property
    def producers(self) -> Mapping[str, Op]:
        """Tensor name → the operator that computes it."""
        return {t: op for op in self.ops for t in op.outputs if t}

    @cached_property
    def consumers(self) -> Mapping[str, tuple[tuple[Op, int], ...]]:
        """Tensor name → its readers as (operator, operand index), in graph order."""
        found: dict[str, list[tuple[Op, int]]] = {}
        for op in self.ops:
            for i, t in enumerate(op.inputs):
                if t:
                    found.setdefault(t, []).append((op, i))
        return {t: tuple(v) for t, v in found.items()}

    @property
    def parameters(self) -> Iterator[Tensor]:
        return (t for t in self.tensors.values() if t.role is Role.PARAMETER)

    def op(self, name: str) -> Op:
        """The operator whose first output is `name`."""
        return self.producers[name]

    def to_networkx(self) -> nx.DiGraph:
        """Operators as nodes (by name), an edge where one reads another's result."""
        import networkx as nx  # which takes as long to load as all that is here

        g = nx.DiGraph()
        for op in self.ops:
            g.add_node(op.name, op=op)
            for t in op.inputs:
                if t in self.producers:
                    g.add_edge(self.producers[t].name, op.name, tensor=t)
        return g

    @cached_property
    def digest(self) -> str:
        """Content digest that ignores weight values and the names of tensors and nodes."""
        number: dict[str, str] = {}

        def describe(name: str) -> str:
            if not name:
                return "-"
            if name not in number:
                t = self.tensors[name]
                value = "" if t.value is None else hashlib.sha256(np.ascontiguousarray(t.value).tobytes()).hexdigest()
                number[name] = f"%{len(number)}"
                return f"{number[name]}:{t.role}{':frozen' if t.frozen else ''}:{t.dtype}:{t.shape}:{value}"
            return number[name]

        h = hashlib.sha256()
        for name in self.inputs:
            h.update(describe(name).encode())
        for op in self.ops:
            attributes = ",".join(f"{k}={_stable(v)}" for k, v in sorted(op.attributes.items()))
            ins = ",".join(map(describe, op.inputs))
            outs = ",".join(map(describe, op.outputs))
            h.update(f"{op.type}@{op.opset}({ins};{attributes})->{outs}\n".encode())
        h.update(",".join(map(describe, self.outputs)).encode())
        return h.hexdigest()


def _stable(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return f"{value.dtype}{value.shape}{hashlib.sha256(np.ascontiguousarray(value).tobytes()).hexdigest()}"
    return repr(value)
