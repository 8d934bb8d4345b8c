"""What the import works on between the file and the frozen Graph.

`read` turns a checked ModelProto into operators (our `Op`, with Python attribute values) and sources.  A
source is anything no operator computes: graph inputs, initializers and `Constant` nodes alike.  Values are
read only where planning may need them: integers and booleans up to 256 KiB (shape arithmetic, indices,
masks), anything else up to 1 KiB; external data never.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

from planner.errors import InputError
from planner.frontends.file.checker import subgraphs
from planner.frontends.file.dtypes import array_dtype_name, dtype_name
from planner.frontends.file.parse import captured
from planner.ir import Op, Tensor

__all__ = [
    "DOMAINS",
    "FILL_OF_STRIPPED",
    "LOCATION_OF_STRIPPED",
    "Draft",
    "Source",
    "body_of",
    "fill_of",
    "is_light",
    "read",
    "reads_value",
    "split_type",
]

SMALL_VALUE_BYTES = 1024
INTEGER_VALUE_BYTES = 256 * 1024
CONTROL_FLOW = frozenset({"If", "Loop", "Scan", "SequenceMap"})
LONGEST_VECTOR = 1 << 20  # the widest layers and vocabularies stay below
DOMAINS = ("", "ai.onnx")  # the two spellings of ONNX's own domain
LOCATION_OF_STRIPPED = "weights-left-out"  # of data that lay in the file before `planner.frontends.file.strip`
FILL_OF_STRIPPED = "fill"  # key of what is said of such data: one number throughout ("1") or not ("0")


@dataclass(frozen=True, slots=True)
class Source:
    """A tensor that no operator computes.  `dims` may hold names where the file leaves a size open.

    `origin` is the tensor of the file that this one is a copy of, where its name is another; `fill` says of a vector
    of floats whether all its elements are equal, None where the file does not show them.
    """

    name: str
    dims: tuple[int | str, ...] | None
    dtype: str
    fed: bool  # a graph input without an initializer
    value: np.ndarray[Any, Any] | None = None
    inline: bool = False  # its data lies in the file, or lay there before the file was stripped
    fill: bool | None = None
    origin: str = ""


@dataclass(slots=True)
class Draft:
    """Mutable while importing.  `tensors` is filled by inference; `hints` are the file's own shapes."""

    name: str
    ops: list[Op]
    sources: dict[str, Source]
    inputs: list[str]
    outputs: list[str]
    hints: dict[str, tuple[str, tuple[int | str, ...] | None]]
    tensors: dict[str, Tensor] = field(default_factory=dict)

    def rename_operands(self, new_name: Callable[[Op, int, str], str]) -> None:
        """Replace operand names; captured names of sub-graphs are never offered."""
        for i, op in enumerate(self.ops):
            own = len(op.inputs) - len(captured_by(op))
            inputs = tuple(new_name(op, k, t) if t and k < own else t for k, t in enumerate(op.inputs))
            if inputs != op.inputs:
                self.ops[i] = replace_op(op, inputs=inputs)


def split_type(op_type: str) -> tuple[str, str]:
    """(domain, name) of an operator type; ONNX's own domain is the empty string."""
    domain, _, name = op_type.rpartition("::")
    return domain, name


def replace_op(op: Op, **changes: Any) -> Op:
    return replace(op, **changes)


def captured_by(op: Op) -> tuple[str, ...]:
    """Outer names that an operator's sub-graphs read; `read` appends them to the operator's inputs."""
    if split_type(op.type)[1] not in CONTROL_FLOW:
        return ()
    graphs = [onnx.GraphProto.FromString(v) for v in op.attributes.values() if isinstance(v, bytes)]
    return tuple(captured(graphs))


def body_of(op: Op) -> list[Op]:
    """The operators of an operator's sub-graphs; what these hold appears as `Constant` without a value."""
    if split_type(op.type)[1] not in CONTROL_FLOW:
        return []
    bodies = [v for value in op.attributes.values() for v in (value if isinstance(value, tuple) else (value,))]
    graphs = [onnx.GraphProto.FromString(v) for v in bodies if isinstance(v, bytes)]
    found: list[Op] = []
    for g in graphs:
        held = [*(t.name for t in g.initializer), *(n.output[0] for n in g.node if n.op_type == "Constant")]
        found += [Op(name, "Constant", (), (name,)) for name in held]
        found += [_op(n, {"": op.opset}) for n in g.node if n.op_type != "Constant" and any(n.output)]
    return found


def read(model: onnx.ModelProto, name: str) -> Draft:
    graph = model.graph
    sources: dict[str, Source] = {}
    for t in graph.initializer:
        sources[t.name] = _stored(t, t.name)
    for sparse in graph.sparse_initializer:
        sources[sparse.values.name] = _sparse(sparse, sparse.values.name)
    inputs = []
    for i in graph.input:
        if i.name not in sources:
            dtype, dims = _type(i.type)
            if dtype is None:
                raise InputError(f"{name}: graph input '{i.name}' has no element type; expected a tensor.")
            sources[i.name] = Source(i.name, dims, dtype, fed=True)
            inputs.append(i.name)
    hints = {}
    for v in [*graph.value_info, *graph.output]:
        dtype, dims = _type(v.type)
        if dtype is not None:
            hints[v.name] = (dtype, dims)
    versions = {o.domain: o.version for o in model.opset_import}
    versions.setdefault("", versions.get("ai.onnx", 1))
    ops = []
    for node in graph.node:
        if node.op_type == "Constant" and node.domain in DOMAINS:
            sources[node.output[0]] = _constant(node)
        elif any(node.output):
            ops.append(_op(node, versions))
    return Draft(name, ops, sources, inputs, [o.name for o in graph.output], hints)


def _op(node: onnx.NodeProto, versions: Mapping[str, int]) -> Op:
    domain = "" if node.domain in DOMAINS else node.domain
    outer = captured(list(subgraphs(node)))
    return Op(
        name=next(o for o in node.output if o),
        type=f"{domain}::{node.op_type}" if domain else node.op_type,
        inputs=(*node.input, *outer),
        outputs=tuple(node.output),
        attributes={a.name: _attribute(a, node) for a in node.attribute},
        opset=versions.get(domain, 1),
        source=node.name,
        module=_module(node),
    )


def _attribute(a: onnx.AttributeProto, node: onnx.NodeProto) -> Any:
    kinds = onnx.AttributeProto
    if a.ref_attr_name:
        raise InputError(f"{node.op_type} '{node.name}': attribute '{a.name}' refers to a function that is not there.")
    match a.type:
        case kinds.INT:
            return a.i
        case kinds.FLOAT:
            return a.f
        case kinds.STRING:
            return a.s.decode("utf-8", "surrogateescape")
        case kinds.INTS:
            return tuple(a.ints)
        case kinds.FLOATS:
            return tuple(a.floats)
        case kinds.STRINGS:
            return tuple(s.decode("utf-8", "surrogateescape") for s in a.strings)
        case kinds.TENSOR:
            return _array(a.t, f"attribute '{a.name}' of {node.op_type} '{node.name}'")
        case kinds.GRAPH:
            return a.g.SerializeToString(deterministic=True)
        case kinds.GRAPHS:
            return tuple(g.SerializeToString(deterministic=True) for g in a.graphs)
        case kinds.TYPE_PROTO:
            return a.tp.SerializeToString(deterministic=True)
        case kinds.SPARSE_TENSOR:
            return a.sparse_tensor.SerializeToString(deterministic=True)
    raise InputError(f"{node.op_type} '{node.name}': attribute '{a.name}' has no type that this version of onnx knows.")


def _module(node: onnx.NodeProto) -> str:
    """Dotted path of the module the node came from.

    torch's dynamo exporter leaves `namespace`, a chain `path: class/path: class/…` whose last link is the
    node itself (its "class" an ATen or Python operator); the TorchScript exporter names nodes by path.
    """
    for entry in node.metadata_props:
        if entry.key == "namespace":
            links = [link.split(": ", 1) for link in entry.value.split("/") if ": " in link]
            paths = [path for path, kind in links[:-1] if path]
            return paths[-1] if paths else ""
    if node.name.startswith("/"):
        return ".".join(node.name.split("/")[1:-1])
    return ""


def _constant(node: onnx.NodeProto) -> Source:
    name = node.output[0]
    a = node.attribute[0] if node.attribute else onnx.AttributeProto()
    match a.name:
        case "value":
            return _stored(a.t, name)
        case "sparse_value":
            return _sparse(a.sparse_tensor, name)
        case "value_int" | "value_ints":
            array = np.array(a.i if a.name == "value_int" else list(a.ints), dtype=np.int64)
        case "value_float" | "value_floats":
            array = np.array(a.f if a.name == "value_float" else list(a.floats), dtype=np.float32)
        case "value_string" | "value_strings":
            strings = [a.s] if a.name == "value_string" else list(a.strings)
            array = np.array(strings, dtype=object).reshape(() if a.name == "value_string" else (-1,))
            return Source(name, array.shape, "string", fed=False, inline=True)
        case _:
            raise InputError(f"Constant '{name}' holds no value.")
    return Source(name, array.shape, array_dtype_name(array.dtype), fed=False, value=array, inline=True)


def _stored(t: onnx.TensorProto, name: str) -> Source:
    dtype = dtype_name(t.data_type)
    if dtype is None:
        raise InputError(f"initializer '{name}' has element type {t.data_type}, which onnx does not define.")
    dims = tuple(t.dims)
    if any(d < 0 for d in dims):
        raise InputError(f"initializer '{name}' has the negative dimension {min(dims)}.")
    external = t.data_location == onnx.TensorProto.EXTERNAL
    value = None
    if not external and reads_value(dtype, dims):
        value = _array(t, f"initializer '{name}'")
    inline = not external or any(e.key == "location" and e.value == LOCATION_OF_STRIPPED for e in t.external_data)
    return Source(name, dims, dtype, fed=False, value=value, inline=inline, fill=fill_of(t) if inline else None)


def is_light(dims: Sequence[int | str]) -> bool:
    """A vector, perhaps with dimensions of one, of a length that biases and scales have."""
    longest = max((d for d in dims if isinstance(d, int)), default=0)
    return sum(d != 1 for d in dims) == 1 and 0 not in dims and longest <= LONGEST_VECTOR


def fill_of(t: onnx.TensorProto) -> bool | None:
    """Whether a vector of floats holds one number throughout; None where that is not known, and for anything else."""
    if not (dtype_name(t.data_type) or "").startswith(("float", "bfloat")) or not is_light(t.dims):
        return None
    if t.data_location == onnx.TensorProto.EXTERNAL:
        return {"0": False, "1": True}.get(next((e.value for e in t.external_data if e.key == FILL_OF_STRIPPED), ""))
    try:
        array = numpy_helper.to_array(t).reshape(-1)
    except (ValueError, TypeError, KeyError):
        return None
    return bool(array.size) and bool((array == array[0]).all())


def reads_value(dtype: str, dims: Sequence[int]) -> bool:
    """Whether the data of a stored tensor is read at all."""
    if dtype == "string":
        return False
    whole = dtype.startswith(("int", "uint", "bool"))
    size = int(np.prod(dims, dtype=np.float64)) * (8 if whole else 4)
    return size <= (INTEGER_VALUE_BYTES if whole else SMALL_VALUE_BYTES)


def _sparse(t: onnx.SparseTensorProto, name: str) -> Source:
    dtype = dtype_name(t.values.data_type)
    return Source(name, tuple(t.dims), dtype or "float32", fed=False, inline=True)


def _array(t: onnx.TensorProto, what: str) -> np.ndarray[Any, Any]:
    if t.data_location == onnx.TensorProto.EXTERNAL:
        raise InputError(f"{what} lies in an external file, which is never read; store it in the model.")
    try:
        return numpy_helper.to_array(t)
    except (ValueError, TypeError, KeyError) as error:
        raise InputError(f"{what}: its data does not fit its type and dimensions {list(t.dims)} ({error}).") from None


def _type(t: onnx.TypeProto) -> tuple[str | None, tuple[int | str, ...] | None]:
    """(element type, dims); dims None where the rank is open or the value is a sequence, map or optional."""
    match t.WhichOneof("value"):
        case "tensor_type" | "sparse_tensor_type" as kind:
            tensor = getattr(t, kind)
            dtype = dtype_name(tensor.elem_type)
            if not tensor.HasField("shape"):
                return dtype, None
            return dtype, tuple(_dim(d) for d in tensor.shape.dim)
        case "sequence_type":
            return _type(t.sequence_type.elem_type)[0], None
        case "optional_type":
            return _type(t.optional_type.elem_type)[0], None
        case "map_type":
            return _type(t.map_type.value_type)[0], None
    return None, None


def _dim(d: onnx.TensorShapeProto.Dimension) -> int | str:
    """Size, or name, or "" where the file leaves both open (nothing, `?`, 0 and negative sizes)."""
    if d.HasField("dim_value") and d.dim_value > 0:
        return d.dim_value
    return "" if d.dim_param in ("?", "-1") else d.dim_param
