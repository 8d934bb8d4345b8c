"""MindSpore's parameter-keyed strategy file: values, and their protobuf and JSON forms.

The message is `mindspore.straspb.ParallelStrategyMap` (proto2) as MindSpore 2.10 writes it.  The reader takes either
form; both keep the order of their items, so that what MindSpore wrote is written back byte by byte.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from planner.emit.mindspore.arrangement import Arrangement, Places
from planner.errors import InputError

__all__ = [
    "OperatorStrategy",
    "ParameterLayout",
    "StrategyMap",
    "from_bytes",
    "read_strategy_map",
    "to_json",
    "to_protobuf",
]

_LIMIT: Final = 1 << 28  # bytes of a file: strategies of a million parameters


@dataclass(frozen=True, slots=True)
class OperatorStrategy:
    """Shards of every dimension of every operand of one operator, and its pipeline stage."""

    stage: int
    operands: tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class ParameterLayout:
    """Where a parameter lies.  `shape` is of one slice, and in the JSON form alone."""

    arrangement: Arrangement
    field_size: int = 0
    shape: tuple[int, ...] | None = None
    split_shape: tuple[int, ...] = ()
    indices_offset: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class StrategyMap:
    """`operators`: `Primitive_parameter` → strategy; `parameters`: full name (merged files: `stage-name`) → layout."""

    operators: Mapping[str, OperatorStrategy] = field(default_factory=dict)
    parameters: Mapping[str, ParameterLayout] = field(default_factory=dict)
    current_stage: int = 0


@lru_cache(maxsize=1)
def _message() -> Any:
    """The message class, made from its description: no generated code to keep."""
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    proto = descriptor_pb2.FileDescriptorProto(
        name="planner/straspb.proto", package="mindspore.straspb", syntax="proto2"
    )
    kinds = descriptor_pb2.FieldDescriptorProto

    def message(name: str, *fields: tuple[str, int, int, int, str]) -> None:
        made = proto.message_type.add(name=name)
        for label, number, kind, rule, of in fields:
            entry = made.field.add(name=label, number=number, type=kind, label=rule)
            if of:
                entry.type_name = f".mindspore.straspb.{of}"

    one, many = kinds.LABEL_REQUIRED, kinds.LABEL_REPEATED
    u32, i32, i64, text, inner = (
        kinds.TYPE_UINT32, kinds.TYPE_INT32, kinds.TYPE_INT64, kinds.TYPE_STRING, kinds.TYPE_MESSAGE,
    )  # fmt: skip
    message("ParallelStrategy", ("dim", 1, u32, many, ""))
    message("ParallelStrategys", ("stage", 1, u32, one, ""), ("parallel_strategy", 2, inner, many, "ParallelStrategy"))
    message(
        "ParallelStrategyItem",
        ("node_name", 1, text, one, ""),
        ("parallel_strategys", 2, inner, one, "ParallelStrategys"),
    )
    message("DevMatrix", ("dim", 1, u32, many, ""))
    message("TensorMap", ("dim", 1, i32, many, ""))
    message("ParamSplitShape", ("dim", 1, i64, many, ""))
    message("IndicesOffset", ("dim", 1, i64, many, ""))
    message(
        "ParallelLayouts",
        ("dev_matrix", 1, inner, many, "DevMatrix"),
        ("tensor_map", 2, inner, many, "TensorMap"),
        ("param_split_shape", 3, inner, many, "ParamSplitShape"),
        ("indices_offset", 4, inner, many, "IndicesOffset"),
        ("field", 5, i32, one, ""),
        ("opt_weight_shard_step", 6, i32, one, ""),
        ("opt_weight_shard_size", 7, i32, one, ""),
    )
    message(
        "ParallelLayoutItem", ("param_name", 1, text, one, ""), ("parallel_layouts", 2, inner, one, "ParallelLayouts")
    )
    message(
        "ParallelStrategyMap",
        ("current_stage", 1, u32, one, ""),
        ("parallel_strategy_item", 2, inner, many, "ParallelStrategyItem"),
        ("parallel_layout_item", 3, inner, many, "ParallelLayoutItem"),
    )
    pool = descriptor_pool.DescriptorPool()
    pool.Add(proto)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("mindspore.straspb.ParallelStrategyMap"))


def to_protobuf(strategies: StrategyMap) -> bytes:
    out = _message()(current_stage=strategies.current_stage)
    for name, s in strategies.operators.items():
        item = out.parallel_strategy_item.add(node_name=name)
        item.parallel_strategys.stage = s.stage
        for dims in s.operands:
            item.parallel_strategys.parallel_strategy.add(dim=dims)
    for name, p in strategies.parameters.items():
        item = out.parallel_layout_item.add(param_name=name)
        layouts, a = item.parallel_layouts, p.arrangement
        layouts.dev_matrix.add(dim=a.device_matrix)
        if any(isinstance(place, tuple) for place in a.tensor_map):
            for place in a.tensor_map:
                layouts.tensor_map.add(dim=place if isinstance(place, tuple) else (place,))
        else:
            layouts.tensor_map.add(dim=a.tensor_map)
        layouts.param_split_shape.add(dim=p.split_shape)
        layouts.indices_offset.add(dim=p.indices_offset)
        layouts.field = p.field_size
        layouts.opt_weight_shard_step, layouts.opt_weight_shard_size = a.optimizer_step, a.optimizer_shards
    return bytes(out.SerializeToString(deterministic=True))


def to_json(strategies: StrategyMap) -> bytes:
    """The JSON form, compact and with sorted keys, as MindSpore writes it.

    Raises:
        ValueError: a dimension split by several axes, which the form cannot hold.
    """
    layouts = {}
    for name, p in strategies.parameters.items():
        a = p.arrangement
        if any(isinstance(place, tuple) for place in a.tensor_map):
            raise ValueError(f"parameter {name}: a dimension is split by several axes, which the JSON form cannot hold")
        layouts[name] = {
            "dev_matrix": list(a.device_matrix),
            "field": p.field_size,
            "opt_weight_shard_size": a.optimizer_shards,
            "opt_weight_shard_step": a.optimizer_step,
            "tensor_map": list(a.tensor_map),
        }
        if p.shape is not None:
            layouts[name]["tensor_shape"] = list(p.shape)
        if p.split_shape:
            layouts[name]["param_split_shape"] = list(p.split_shape)
        if p.indices_offset:
            layouts[name]["indices_offset"] = list(p.indices_offset)
    document: dict[str, Any] = {"current_stage": strategies.current_stage}
    if layouts:
        document["parallel_layout_item"] = layouts
    document["parallel_strategy_item"] = {
        name: {"parallel_strategy": [list(d) for d in s.operands], "stage": s.stage}
        for name, s in strategies.operators.items()
    }
    return json.dumps(document, separators=(",", ":"), sort_keys=True).encode()


def read_strategy_map(path: Path) -> StrategyMap:
    """A file in either form.  InputError naming the file where it is neither."""
    try:
        if path.stat().st_size > _LIMIT:
            raise InputError(f"{path}: {path.stat().st_size:,} bytes; a strategy file has at most {_LIMIT:,}")
        data = path.read_bytes()
    except OSError as e:
        raise InputError(f"{path}: cannot be read ({e.strerror}); give a strategy file of MindSpore") from e
    return from_bytes(data, str(path))


def from_bytes(data: bytes, name: str) -> StrategyMap:
    """InputError where the bytes are no strategy file; `name` stands in its message."""
    if not data:
        raise InputError(f"{name}: is empty; expected a strategy file of MindSpore")
    try:
        found = _from_json(data) if data.lstrip()[:1] == b"{" else _from_protobuf(data)
    except InputError as e:
        raise InputError(f"{name}: {e}") from None
    for parameter, p in found.parameters.items():
        _check(f"{name}: parameter {parameter}", p.arrangement)
    for operator, s in found.operators.items():
        if any(n < 1 for dims in s.operands for n in dims):
            raise InputError(f"{name}: operator {operator}: expected shards of at least 1, found {s.operands}")
    return found


def _check(where: str, a: Arrangement) -> None:
    if not a.device_matrix or min(a.device_matrix) < 1 or a.ranks > 1 << 24:
        raise InputError(f"{where}: expected a device matrix of positive sizes, found {list(a.device_matrix)}")
    places = [p for place in a.tensor_map for p in (place if isinstance(place, tuple) else (place,))]
    used = [p for p in places if p >= 0]
    if any(p < -1 or p >= len(a.device_matrix) for p in places) or len(set(used)) != len(used):
        raise InputError(
            f"{where}: expected a tensor map of distinct axes of a matrix of {len(a.device_matrix)}, "
            f"found {list(a.tensor_map)}"
        )
    if a.optimizer_shards < 0 or a.optimizer_step < 0 or (a.optimizer_shards and a.replicas % a.optimizer_shards):
        raise InputError(
            f"{where}: expected optimizer shards that divide the {a.replicas} ranks with equal parts, "
            f"found {a.optimizer_shards}"
        )


def _made(matrix: tuple[int, ...], places: Places, step: int, shards: int) -> Arrangement:
    """-1 optimizer shards are all ranks that compute with equal parts."""
    made = Arrangement(matrix, places)
    if shards == -1 and matrix and min(matrix) > 0:
        used = [p for place in places for p in (place if isinstance(place, tuple) else (place,)) if p >= 0]
        if all(p < len(matrix) for p in used):
            shards = made.replicas
    return Arrangement(matrix, places, step, shards)


def _from_protobuf(data: bytes) -> StrategyMap:
    from google.protobuf.message import DecodeError

    message = _message()()
    try:
        message.ParseFromString(data)
    except (DecodeError, RecursionError, UnicodeDecodeError) as e:
        raise InputError(f"is neither JSON nor a ParallelStrategyMap of MindSpore ({e})") from e
    # What is no UTF-8 comes as bytes.
    named = [i.node_name for i in message.parallel_strategy_item] + [i.param_name for i in message.parallel_layout_item]
    odd = next((n for n in named if not isinstance(n, str)), None)
    if odd is not None:
        raise InputError(f"name {odd!r:.80} is no text")
    operators = {
        i.node_name: OperatorStrategy(
            i.parallel_strategys.stage, tuple(tuple(s.dim) for s in i.parallel_strategys.parallel_strategy)
        )
        for i in message.parallel_strategy_item
    }
    parameters = {}
    for i in message.parallel_layout_item:
        p = i.parallel_layouts
        if len(p.dev_matrix) != 1 or not p.tensor_map:
            raise InputError(f"parameter {i.param_name}: expected one device matrix and a tensor map")
        if len(p.tensor_map) > 1:
            places: Places = tuple(m.dim[0] if len(m.dim) == 1 else tuple(m.dim) for m in p.tensor_map if m.dim)
        else:
            places = tuple(p.tensor_map[0].dim)
        parameters[i.param_name] = ParameterLayout(
            _made(tuple(p.dev_matrix[0].dim), places, p.opt_weight_shard_step, p.opt_weight_shard_size),
            p.field,
            None,
            tuple(n for s in p.param_split_shape for n in s.dim),
            tuple(n for s in p.indices_offset for n in s.dim),
        )
    return StrategyMap(operators, parameters, message.current_stage)


def _from_json(data: bytes) -> StrategyMap:
    try:
        document = json.loads(data)
    except (ValueError, RecursionError) as e:
        raise InputError(f"is not JSON ({e})") from e
    operators = {}
    for name, item in _table(document, "parallel_strategy_item").items():
        stage, lists = item.get("stage", 0), item.get("parallel_strategy")
        if not isinstance(lists, list):
            raise InputError(f"operator {name}: parallel_strategy: expected lists of shards, found {lists!r:.80}")
        operators[name] = OperatorStrategy(
            _count(name, "stage", stage), tuple(_counts(name, "shards", d) for d in lists)
        )
    parameters = {}
    for name, item in _table(document, "parallel_layout_item").items():
        shape = item.get("tensor_shape")
        parameters[name] = ParameterLayout(
            _made(
                _counts(name, "dev_matrix", item.get("dev_matrix")),
                _counts(name, "tensor_map", item.get("tensor_map")),
                _count(name, "opt_weight_shard_step", item.get("opt_weight_shard_step", 0)),
                _count(name, "opt_weight_shard_size", item.get("opt_weight_shard_size", 0)),
            ),
            _count(name, "field", item.get("field", 0)),
            None if shape is None else _counts(name, "tensor_shape", shape),
            _counts(name, "param_split_shape", item.get("param_split_shape", [])),
            _counts(name, "indices_offset", item.get("indices_offset", [])),
        )
    return StrategyMap(operators, parameters, _count("the file", "current_stage", document.get("current_stage", 0)))


def _table(document: dict[str, Any], key: str) -> dict[str, dict[str, Any]]:
    table = document.get(key, {})
    if not isinstance(table, dict) or not all(isinstance(v, dict) for v in table.values()):
        raise InputError(f"{key}: expected an object of objects, found {table!r:.80}")
    return table


def _count(where: str, what: str, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not -(1 << 31) <= value < 1 << 31:
        raise InputError(f"{where}: {what}: expected a whole number, found {value!r:.80}")
    return value


def _counts(where: str, what: str, value: object) -> tuple[int, ...]:
    if not isinstance(value, list):
        raise InputError(f"{where}: {what}: expected a list of whole numbers, found {value!r:.80}")
    return tuple(_count(where, what, v) for v in value)
