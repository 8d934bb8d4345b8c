"""A model file as ONNX Runtime runs it, with values for the weights that it does not hold.

Nothing here comes from the import: the file is parsed as it is, and what ONNX Runtime makes of it (function bodies,
constants, control flow) is its own.  Only tensors without data are given some: those of the top graph become inputs of
the session, so that large ones are not copied, those of sub-graphs and those of element types that numpy lacks are
written into the model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from google.protobuf.message import DecodeError
from onnx import helper, numpy_helper

from planner.errors import InputError
from planner.frontends.file.dtypes import dtype_name
from planner.kernels.session import NoKernelError, handed_back, runtime_failures
from planner.kernels.shards import Array

__all__ = ["Fed", "ModelFile"]

_OWN_DOMAIN = ("", "ai.onnx")
_FIXED = frozenset({"Constant", "ConstantOfShape"})
Dims = tuple[int | str, ...]


@dataclass(frozen=True, slots=True)
class Fed:
    """An input of the model: its element type, and its dimensions, by name or "" where they are open."""

    dtype: str | None
    dims: Dims | None


class ModelFile:
    """`inputs` are what must be fed, `outputs` the results; `missing` are tensors without data, by name, with their
    dimensions and element types; `ambiguous` are names of several stored tensors; `computed` results of operators."""

    def __init__(self, model: str | Path | bytes) -> None:
        data = Path(model).read_bytes() if isinstance(model, str | Path) else model
        try:
            self.model = onnx.ModelProto.FromString(data)
        except DecodeError:
            raise InputError(f"the {len(data)} bytes do not parse as a ModelProto; expected an ONNX model.") from None
        self.size = len(data)
        graph = self.model.graph
        self._top = {t.name: t for t in graph.initializer}
        self._constants: dict[str, onnx.TensorProto] = {}
        for node in graph.node:
            t = _value_of(node)
            if t is not None:
                self._constants[node.output[0]] = t
        self._nested: dict[str, onnx.TensorProto] = {}
        self.ambiguous: set[str] = set()
        for name, t in _inside(graph):
            if name in self._nested or name in self._top or name in self._constants:
                self.ambiguous.add(name)
            self._nested[name] = t
        stored = {**self._top, **{s.values.name: s for s in graph.sparse_initializer}}
        self.computed = [o for n in graph.node if n.op_type not in _FIXED for o in n.output if o]
        self.declared = {i.name for i in graph.input}
        self.inputs = {i.name: _fed(i.type) for i in graph.input if i.name not in stored}
        self.outputs = tuple(o.name for o in graph.output)
        self.missing = {
            name: (tuple(t.dims), _element(t))
            for name, t in (*self._nested.items(), *self._constants.items(), *self._top.items())
            if t.data_location == onnx.TensorProto.EXTERNAL
        }
        self.functions_lack_data = any(
            t.data_location == onnx.TensorProto.EXTERNAL
            for f in self.model.functions
            for node in f.node
            if (t := _value_of(node)) is not None
        )

    def stored(self, name: str) -> tuple[tuple[int, ...], np.dtype[Any]] | None:
        """Dimensions and element type of a stored tensor; None where there is none of that name."""
        t = self._find(name)
        return None if t is None else (tuple(t.dims), _element(t))

    def value(self, name: str) -> Array | None:
        """Data of a stored tensor, as the file has it."""
        t = self._find(name)
        if t is None or t.data_location == onnx.TensorProto.EXTERNAL:
            return None
        return np.asarray(numpy_helper.to_array(t))

    def _find(self, name: str) -> onnx.TensorProto | None:
        return self._top.get(name) or self._constants.get(name) or self._nested.get(name)

    def session(self, given: Mapping[str, Array], inner: Sequence[str] = ()) -> Session:
        """Ready to run; `given` are values for what is missing, and for fills that stand for weights.  `inner` are
        computed tensors to return beside the outputs."""
        model = onnx.ModelProto()
        model.CopyFrom(self.model)
        graph = model.graph
        gone = {t.name for t in graph.initializer} & given.keys()
        gone |= {n.output[0] for n in graph.node if n.op_type in _FIXED and n.output[0] in given}
        _keep(graph.initializer, lambda t: t.name not in gone)
        _keep(graph.node, lambda n: n.op_type not in _FIXED or n.output[0] not in gone)
        lifted = []
        for name in sorted(gone):
            if given[name].dtype.isbuiltin == 1:  # numpy's own element types are what ONNX Runtime takes as inputs
                lifted.append(name)
                if name not in self.declared:
                    element = helper.np_dtype_to_tensor_dtype(given[name].dtype)
                    graph.input.append(helper.make_tensor_value_info(name, element, given[name].shape))
            else:
                graph.initializer.append(numpy_helper.from_array(given[name], name))
        for name, t in _inside(graph):
            if name in given:
                t.CopyFrom(numpy_helper.from_array(np.ascontiguousarray(given[name]), t.name))
        graph.output.extend(onnx.ValueInfoProto(name=n) for n in inner if n not in gone)
        options = ort.SessionOptions()
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
        options.log_severity_level = 4
        options.enable_cpu_mem_arena = False
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        refused: tuple[type[Exception], ...] = (*runtime_failures(), ValueError)
        try:
            made = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        except refused as error:
            raise NoKernelError(f"ONNX Runtime cannot run the file: {_line(error)}") from error
        return Session(made, lifted)


class Session:
    """Results of the file by name.  Sequences and maps are left out, and element types that numpy has none of."""

    def __init__(self, session: ort.InferenceSession, lifted: list[str]) -> None:
        self._session, self._lifted = session, lifted

    def run(
        self, fed: Mapping[str, Array], given: Mapping[str, Array], requested: Sequence[str] | None = None
    ) -> dict[str, Array]:
        """All results, or those that are `requested` for."""
        feed = {n: np.asarray(x, order="C") for n, x in fed.items()}
        feed |= {n: np.asarray(given[n], order="C") for n in self._lifted}
        returned = {o.name: handed_back(o.type) for o in self._session.get_outputs()}
        names = [n for n in (returned if requested is None else requested) if returned.get(n, True)]
        if not names:
            return {}
        refused: tuple[type[Exception], ...] = (*runtime_failures(), ValueError)
        try:
            found = self._session.run(names, feed)
        except refused as error:
            raise NoKernelError(f"ONNX Runtime cannot run the file: {_line(error)}") from error
        return {n: v for n, v in zip(names, found, strict=True) if isinstance(v, np.ndarray)}


def _value_of(node: onnx.NodeProto) -> onnx.TensorProto | None:
    if node.op_type != "Constant" or node.domain not in _OWN_DOMAIN:
        return None
    return next((a.t for a in node.attribute if a.name == "value"), None)


def _inside(graph: onnx.GraphProto) -> Iterator[tuple[str, onnx.TensorProto]]:
    """Tensors that sub-graphs hold."""
    for node in graph.node:
        for a in node.attribute:
            for g in (*([a.g] if a.type == onnx.AttributeProto.GRAPH else []), *a.graphs):
                for t in g.initializer:
                    yield t.name, t
                for inner in g.node:
                    value = _value_of(inner)
                    if value is not None:
                        yield inner.output[0], value
                yield from _inside(g)


def _fed(t: onnx.TypeProto) -> Fed:
    tensor = t.tensor_type
    dims = tuple(d.dim_value if d.dim_value > 0 else d.dim_param for d in tensor.shape.dim)
    return Fed(dtype_name(tensor.elem_type), dims if tensor.HasField("shape") else None)


def _element(t: onnx.TensorProto) -> np.dtype[Any]:
    return np.dtype(helper.tensor_dtype_to_np_dtype(t.data_type))


def _keep(field: Any, wanted: Callable[[Any], bool]) -> None:
    copies = [type(x).FromString(x.SerializeToString()) for x in field if wanted(x)]
    del field[:]
    field.extend(copies)


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:300]
