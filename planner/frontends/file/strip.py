"""The file without its weights: what is sent to a service and kept beside a plan.

Only what the importer never reads is taken out: data of stored tensors and `Constant` nodes whose value `draft`
would not look at, documentation strings and stack traces of nodes, `training_info`.  A tensor that lost its data
keeps name, type and dimensions, and is marked as external at a location that says where its data was.  Shape
arithmetic, indices, masks, clip bounds and scales stay, and so does whatever stands in attributes (sub-graphs of
control flow, tables of tree ensembles), as it is part of the graph's digest.

The work is done on the wire format (https://protobuf.dev/programming-guides/encoding), copying slices: weights are
skipped by their length, and neither parsed nor held, so a file mapped into memory needs as much memory as the
result.  Field numbers are those of onnx.proto.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import onnx
from google.protobuf.message import DecodeError

from planner.errors import InputError
from planner.frontends.file.dtypes import dtype_name
from planner.frontends.file.foreign import HEAD_BYTES, of_content, of_folder, of_missing
from planner.frontends.file.parse import MAX_NODES
from planner.frontends.steps.draft import (
    DOMAINS,
    FILL_OF_STRIPPED,
    LOCATION_OF_STRIPPED,
    fill_of,
    is_light,
    reads_value,
)

__all__ = ["strip_file", "strip_model"]

MOST_FIELDS = 2_000_000  # of one message other than a tensor; the largest known graph has 100,000
_ADVICE: Final = "Give the path of an ONNX model."
SMALL_BYTES = 1024  # of a tensor's whole message; what is smaller stays, whatever it is

# Numbers of fields.
_MODEL_GRAPH, _MODEL_TRAINING, _MODEL_FUNCTIONS = 7, 20, 25
_GRAPH_NODE, _GRAPH_INITIALIZER, _GRAPH_SPARSE = 1, 5, 15
_FUNCTION_NODE = 7
_NODE_OP_TYPE, _NODE_ATTRIBUTE, _NODE_DOC, _NODE_DOMAIN, _NODE_METADATA = 4, 5, 6, 7, 9
_ATTRIBUTE_TENSOR, _ATTRIBUTE_SPARSE = 5, 22
_TENSOR_DATA = frozenset({4, 5, 6, 7, 9, 10, 11})  # float, int32, string, int64, raw, double, uint64
_ENTRY_KEY = 1

_TRACES = frozenset({b"pkg.torch.onnx.stack_trace", b"pkg.torch.onnx.fx_node"})  # torch's dynamo exporter, one a node

# Of a field: its number, the slice with its tag, the slice of its contents where these have a length.
Field = tuple[int, memoryview, "memoryview | None"]
Pieces = list["memoryview | bytes"]


def strip_model(data: bytes | memoryview | mmap.mmap, name: str = "model") -> bytes:
    """The serialised ModelProto without weights; importing it gives the very Graph that `data` gives.

    Stripping again changes nothing.  InputError for bytes that are not a protobuf message.
    """
    with memoryview(data) as view:
        try:
            return b"".join(_model(view, name))
        except (_Malformed, DecodeError) as error:
            raise InputError(
                f"{name}: not an ONNX model, or a truncated one: the {len(view)} bytes do not parse as a ModelProto"
                f"{f' ({error})' if isinstance(error, _Malformed) else ''}. "
                f"{_ADVICE}"
            ) from None


def strip_file(path: str | os.PathLike[str]) -> bytes:
    """`strip_model` of a file of any size, which is mapped and not read.  InputError where it cannot be."""
    file = Path(path)
    try:
        if not file.is_file():
            found = "found a directory or device" if file.exists() else "there is no such file"
            instead = of_folder(file) if file.exists() else of_missing(file)
            raise InputError(f"{file}: expected a file with an ONNX model, {found}. {instead or _ADVICE}")
        if file.stat().st_size == 0:
            raise InputError(f"{file}: the file is empty; expected a serialised ONNX model.")
        with file.open("rb") as opened:
            other = of_content(file, opened.read(HEAD_BYTES))
            if other is not None:
                raise InputError(f"{file}: {other}")
            return strip_model(mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ), str(file))
    except OSError as error:
        raise InputError(f"{file}: cannot be read: {error.strerror}.") from None


class _Malformed(Exception):
    """The bytes are no protobuf message; the text says where."""


def _model(view: memoryview, name: str) -> Pieces:
    out: Pieces = []
    for number, whole, inner in _fields(view):
        if number == _MODEL_GRAPH and inner is not None:
            out += _nested(number, _graph(inner, name))
        elif number == _MODEL_FUNCTIONS and inner is not None:
            out += _nested(number, _each_node(inner, _FUNCTION_NODE))
        elif number != _MODEL_TRAINING:
            out.append(whole)
    return out


def _graph(view: memoryview, name: str) -> Pieces:
    out: Pieces = []
    nodes = 0
    for number, whole, inner in _fields(view):
        nodes += number == _GRAPH_NODE
        if nodes > MAX_NODES:
            raise InputError(f"{name}: more than {MAX_NODES} nodes; at most {MAX_NODES} are accepted.")
        if inner is None:
            out.append(whole)
        elif number == _GRAPH_INITIALIZER:
            out += _nested(number, _tensor(inner))
        elif number == _GRAPH_SPARSE:
            out += _nested(number, _sparse(inner))
        elif number == _GRAPH_NODE:
            out += _nested(number, _node(inner))
        else:
            out.append(whole)
    return out


def _each_node(view: memoryview, at: int) -> Pieces:
    out: Pieces = []
    for number, whole, inner in _fields(view):
        out += _nested(number, _node(inner)) if number == at and inner is not None else [whole]
    return out


def _node(view: memoryview) -> Pieces:
    """Without documentation and traces; the value of a `Constant` without its data."""
    fields = list(_fields(view))
    kind = domain = b""
    for number, _, inner in fields:
        if number == _NODE_OP_TYPE and inner is not None:
            kind = bytes(inner)
        elif number == _NODE_DOMAIN and inner is not None:
            domain = bytes(inner)
    constant = kind == b"Constant" and domain.decode("utf-8", "replace") in DOMAINS
    out: Pieces = []
    for number, whole, inner in fields:
        if number == _NODE_DOC or (number == _NODE_METADATA and inner is not None and _is_trace(inner)):
            continue
        if constant and number == _NODE_ATTRIBUTE and inner is not None and len(inner) > SMALL_BYTES:
            out += _nested(number, _attribute(inner))
        else:
            out.append(whole)
    return out


def _is_trace(entry: memoryview) -> bool:
    raw = bytes(entry)
    return any(name in raw for name in _TRACES) and any(
        number == _ENTRY_KEY and inner is not None and bytes(inner) in _TRACES for number, _, inner in _fields(entry)
    )


def _attribute(view: memoryview) -> Pieces:
    fields = list(_fields(view))
    if sum(number == _ATTRIBUTE_TENSOR for number, _, _ in fields) > 1:
        return [view]  # a parser would merge them; no exporter writes such a thing
    out: Pieces = []
    for number, whole, inner in fields:
        if number == _ATTRIBUTE_TENSOR and inner is not None:
            out += _nested(number, _tensor(inner))
        elif number == _ATTRIBUTE_SPARSE and inner is not None:
            out += _nested(number, _sparse(inner))
        else:
            out.append(whole)
    return out


def _tensor(view: memoryview) -> Pieces:
    if len(view) <= SMALL_BYTES:
        return [view]
    pieces: Pieces = []
    data = False
    for number, whole, _ in _fields(view, most=None):
        if number in _TENSOR_DATA:
            data = True
        else:
            pieces.append(whole)
    head = onnx.TensorProto.FromString(b"".join(pieces))
    dtype = dtype_name(head.data_type)
    external = head.data_location == onnx.TensorProto.EXTERNAL
    if not data or external or dtype is None or any(d < 0 for d in head.dims) or reads_value(dtype, head.dims):
        return [view]
    mark = onnx.TensorProto(data_location=onnx.TensorProto.EXTERNAL)
    mark.external_data.add(key="location", value=LOCATION_OF_STRIPPED)
    fill = fill_of(onnx.TensorProto.FromString(bytes(view))) if is_light(head.dims) else None
    if fill is not None:
        mark.external_data.add(key=FILL_OF_STRIPPED, value=str(int(fill)))
    return [*pieces, mark.SerializeToString()]


def _sparse(view: memoryview) -> Pieces:
    """Of sparse tensors the importer reads the dimensions and the type of the elements."""
    if len(view) <= SMALL_BYTES:
        return [view]
    given = onnx.SparseTensorProto.FromString(bytes(view))
    values = onnx.TensorProto(name=given.values.name, data_type=given.values.data_type, dims=[0])
    return [onnx.SparseTensorProto(values=values, dims=given.dims).SerializeToString()]


def _nested(number: int, pieces: Pieces) -> Pieces:
    """A field with a length, around these pieces."""
    return [_varint(number << 3 | 2), _varint(sum(map(len, pieces))), *pieces]


def _fields(view: memoryview, most: int | None = MOST_FIELDS) -> Iterator[Field]:
    """The fields of one message, in order."""
    at, end, count = 0, len(view), 0
    while at < end:
        start = at
        count += 1
        if most is not None and count > most:
            raise _Malformed(f"more than {most} fields in one message")
        tag, at = view[at], at + 1
        if tag > 127:  # most numbers take one byte: calls for these took half of the time
            tag, at = _read_varint(view, start)
        number, kind = tag >> 3, tag & 7
        inner = None
        if kind == 2:
            if at < end and view[at] < 128:
                length, at = view[at], at + 1
            else:
                length, at = _read_varint(view, at)
            inner = view[at : at + length]
            at += length
        elif kind == 0:
            _, at = _read_varint(view, at)
        elif kind in (1, 5):
            at += 8 if kind == 1 else 4
        else:
            raise _Malformed(f"a field of the unknown wire type {kind}")
        if at > end or number == 0:
            raise _Malformed("a field that ends behind its message" if at > end else "a field of the number 0")
        yield number, view[start:at], inner


def _read_varint(view: memoryview, begin: int) -> tuple[int, int]:
    """The number and where it ends."""
    value = shift = 0
    for at in range(begin, min(begin + 10, len(view))):
        byte = view[at]
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at + 1
        shift += 7
    raise _Malformed("a number without an end")


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)
