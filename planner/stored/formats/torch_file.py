"""torch.save's files: a zip file with a pickle of what was saved and the storages of its tensors.

Nothing of the pickle is executed (pickled.py), so that a stranger's file is read like any other.  Names are keys of
nested dictionaries joined by a dot.  Source: torch/serialization.py and torch/_utils.py of PyTorch 2.13.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from planner.errors import InputError
from planner.stored.arrays import StoredArray
from planner.stored.elements import TORCH, Type, name_in
from planner.stored.formats.archive import Member, Zipped, members, zipped
from planner.stored.formats.crc import patches
from planner.stored.formats.layout import Arranged, Content, Entry
from planner.stored.formats.nested import leaves, name_of, nested, place_of
from planner.stored.formats.pickled import Call, Name, Persistent, read_pickle, write_pickle

__all__ = ["TorchFile", "read_saved", "saved"]

# Storage classes of torch by what they hold; UntypedStorage says it elsewhere.
_STORAGES: Final = {
    "FloatStorage": "float32", "DoubleStorage": "float64", "HalfStorage": "float16", "BFloat16Storage": "bfloat16",
    "LongStorage": "int64", "IntStorage": "int32", "ShortStorage": "int16", "CharStorage": "int8",
    "ByteStorage": "uint8", "BoolStorage": "bool", "ComplexFloatStorage": "complex64",
    "ComplexDoubleStorage": "complex128",
}  # fmt: skip
_ALIGNED: Final = 64
_DEPTH: Final = 64
_DICTIONARIES: Final = (
    ("collections", "OrderedDict"), ("builtins", "dict"), ("collections", "defaultdict"), ("collections", "Counter"),
)  # fmt: skip


class TorchFile:
    """`values`: of a file to write, what it holds beside tensors, by name; `paths`: where each name lies among nested
    dictionaries; names without one lie where the longest such path leads."""

    name = "torch"
    suffixes: tuple[str, ...] = (".pt", ".pth", ".bin")

    def __init__(
        self, values: Mapping[str, Any] | None = None, paths: Mapping[str, tuple[Any, ...]] | None = None
    ) -> None:
        self._values, self._paths = values or {}, paths or {}

    def read(self, file: Path) -> Content:
        try:
            arrays: dict[str, StoredArray] = {}
            values: dict[str, Any] = {}
            paths: dict[str, tuple[Any, ...]] = {}
            for path, value in leaves(read_saved(file)):
                name = name_of(path)
                if name in arrays or name in values:
                    raise ValueError(f"two values called {name!r:.80}, by keys that have dots in them")
                if isinstance(value, Call) and _has_tensors(value, 0):
                    raise ValueError(f"tensors within {value.name}: save a state_dict, of plain dictionaries and lists")
                if isinstance(value, StoredArray):
                    arrays[name] = value
                else:
                    values[name] = value
                paths[name] = path
            return Content(arrays, values=values, paths=paths)
        except OSError as e:
            raise InputError(f"{file}: cannot be read: {e.strerror}") from None
        except (ValueError, TypeError, RecursionError, OverflowError) as e:
            raise InputError(f"{file}: expected a file that torch.save wrote, found {e}; save it anew") from None

    def arrange(self, entries: Sequence[Entry], metadata: Mapping[str, str]) -> Arranged:
        made = _zipped(entries, self._outline(entries))
        offsets = {e.name: made.begins[_member(i)] for i, e in enumerate(entries)}
        return Arranged(made.size, made.fixed, offsets, summed=True)

    def finished(self, entries: Sequence[Entry], sums: Mapping[str, int]) -> list[tuple[int, bytes]]:
        made = _zipped(entries, self._outline(entries))
        found: list[tuple[int, bytes]] = []
        for i, e in enumerate(entries):
            found += patches(made.sums[_member(i)], b"", sums[e.name], e.nbytes)
        return found

    def _outline(self, entries: Sequence[Entry]) -> Any:
        """What is saved, entries in place of tensors; a single dictionary where names cannot be nested so."""
        held: dict[str, Any] = {e.name: e for e in entries}
        held = {n: v for n, v in self._values.items() if n not in held} | held
        order = [n for n in self._paths if n in held]
        order += [n for n in held if n not in self._paths]
        try:
            return nested((place_of(n, self._paths), held[n]) for n in order)
        except ValueError:
            return held


def _member(index: int) -> str:
    return f"archive/data/{index}"


def _zipped(entries: Sequence[Entry], value: Any) -> Zipped:
    numbers = {id(e): i for i, e in enumerate(entries)}
    data = write_pickle(_with_tensors(value, numbers))
    first = [Member("archive/data.pkl", data), Member("archive/byteorder", b"little")]
    held = [Member(_member(i), b"", e.nbytes) for i, e in enumerate(entries)]
    return zipped([*first, *held, Member("archive/version", b"3\n")], aligned=_ALIGNED)


def saved(entries: Sequence[Entry], value: Any) -> Zipped:
    """The file that torch.save writes of a value with entries in it, each a tensor; storages are `rest` of members
    `archive/data/N`."""
    return _zipped(entries, value)


def _with_tensors(value: Any, numbers: Mapping[int, int]) -> Any:
    if isinstance(value, Entry):
        return _tensor_call(value, numbers[id(value)])
    if isinstance(value, dict):
        return {k: _with_tensors(v, numbers) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(_with_tensors(v, numbers) for v in value)
    return value


def _tensor_call(e: Entry, number: int) -> Call:
    kind = name_in(TORCH, e.dtype)
    steps = tuple(math.prod(e.shape[d + 1 :]) for d in range(len(e.shape)))
    count = math.prod(e.shape)
    hooks = Call(Name("collections", "OrderedDict"), ())
    storage = next((s for s, t in _STORAGES.items() if t == kind), None)
    if storage is not None:
        pid = ("storage", Name("torch", storage), str(number), "cpu", count)
        arguments: tuple[Any, ...] = (Persistent(pid), 0, e.shape, steps, False, hooks)
        return Call(Name("torch._utils", "_rebuild_tensor_v2"), arguments)
    pid = ("storage", Name("torch.storage", "UntypedStorage"), str(number), "cpu", e.nbytes)
    arguments = (Persistent(pid), 0, e.shape, steps, False, hooks, Name("torch", kind))
    return Call(Name("torch._utils", "_rebuild_tensor_v3"), arguments)


# Reading


class _Storage:
    __slots__ = ("dtype", "nbytes", "offset")

    def __init__(self, offset: int, nbytes: int, dtype: Type | None) -> None:
        self.offset, self.nbytes, self.dtype = offset, nbytes, dtype


def read_saved(file: Path, begin: int = 0, length: int | None = None) -> Any:
    """What torch.save saved, tensors as StoredArray, from byte `begin` of a file on.  ValueError where it is none."""
    found = members(file, begin, length)
    heads = [n for n in found if n.endswith("/data.pkl") and n.count("/") == 1]
    if len(heads) != 1:
        raise ValueError("a zip file without a data.pkl (of before PyTorch 1.6, or of TorchScript)")
    prefix = heads[0].removesuffix("data.pkl")
    with file.open("rb") as opened:
        if (order := found.get(f"{prefix}byteorder")) is not None:
            opened.seek(order[0])
            if opened.read(min(order[1], 16)) != b"little":
                raise ValueError("numbers whose bytes are the other way round")
        opened.seek(found[heads[0]][0])
        data = opened.read(found[heads[0]][1])

    def storage(pid: Any) -> _Storage:
        if not isinstance(pid, tuple) or len(pid) != 5 or pid[0] != "storage" or not isinstance(pid[1], Name):
            raise ValueError(f"a reference {pid!r:.80}")
        place = found.get(f"{prefix}data/{pid[2]}")
        if place is None:
            raise ValueError(f"no storage {pid[2]!r:.40}")
        kind = _STORAGES.get(pid[1].name)
        return _Storage(*place, TORCH[kind] if kind else None)

    return _resolved(read_pickle(data, storage), file, {}, 0)


def _resolved(value: Any, file: Path, seen: dict[int, Any], depth: int) -> Any:
    """With tensors in place of the calls that would make them."""
    if depth > _DEPTH:
        raise ValueError(f"values within {_DEPTH} others")
    if id(value) in seen:
        return seen[id(value)]
    found = value
    if isinstance(value, Call):
        found = _called(value, file, seen, depth)
    elif isinstance(value, dict):
        found = seen[id(value)] = {}
        found |= {k: _resolved(v, file, seen, depth + 1) for k, v in value.items()}
    elif isinstance(value, (list, tuple)):
        found = type(value)(_resolved(v, file, seen, depth + 1) for v in value)
    seen[id(value)] = found
    return found


def _called(call: Call, file: Path, seen: dict[int, Any], depth: int) -> Any:
    name = call.name.name
    if call.name.module == "torch._utils" and name in ("_rebuild_tensor_v2", "_rebuild_tensor_v3"):
        return _tensor(call, file)
    if call.name.module == "torch._utils" and name.startswith("_rebuild_parameter") and call.arguments:
        return _resolved(call.arguments[0], file, seen, depth + 1)
    if (call.name.module, name) == ("torch._tensor", "_rebuild_from_type_v2") and len(call.arguments) == 4:
        made, _, given, _ = call.arguments  # a tensor that has attributes, such as DeepSpeed's partitions
        if isinstance(made, Name) and made.module == "torch._utils" and isinstance(given, tuple):
            return _called(Call(made, given), file, seen, depth)
    if (call.name.module, name) in _DICTIONARIES:
        pairs = call.arguments[0] if call.arguments else ()
        pairs = list(pairs.items()) if isinstance(pairs, dict) else pairs
        if not isinstance(pairs, (list, tuple)) or any(not isinstance(p, (list, tuple)) or len(p) != 2 for p in pairs):
            pairs = ()  # the factory of a defaultdict
        held = dict(pairs)
        return {k: _resolved(v, file, seen, depth + 1) for k, v in (held | call.entries).items()}
    if (call.name.module, name) == ("torch", "Size") and call.arguments:
        return tuple(call.arguments[0])
    return call


def _tensor(call: Call, file: Path) -> StoredArray:
    if len(call.arguments) < 6 or not isinstance(call.arguments[0], _Storage):
        raise ValueError(f"a tensor of {len(call.arguments)} arguments")
    storage, first, shape, steps = call.arguments[:4]
    dtype = storage.dtype
    if call.name.name == "_rebuild_tensor_v3":
        kind = call.arguments[6] if len(call.arguments) > 6 else None
        dtype = TORCH.get(kind.name) if isinstance(kind, Name) else None
    flags = call.arguments[7:8] if call.name.name == "_rebuild_tensor_v3" else call.arguments[6:7]
    if any(isinstance(f, dict) and any(f.values()) for f in flags):
        raise ValueError(
            "a tensor whose numbers are conjugated or negated when they are read: save x.resolve_conj().resolve_neg()"
        )
    if dtype is None:
        raise ValueError("a tensor of a type that is not known here")
    if isinstance(shape, Call):
        shape = shape.arguments[0] if shape.arguments else ()
    counts = (first, *shape, *steps)
    if any(isinstance(n, bool) or not isinstance(n, int) or not 0 <= n < 1 << 62 for n in counts):
        raise ValueError(f"a tensor of the shape {shape!r:.80}")
    if len(shape) != len(steps) or len(shape) > 32:
        raise ValueError(f"a tensor of the shape {shape!r:.80} and the strides {steps!r:.80}")
    item = dtype.itemsize
    plain = all(n == 1 or s == math.prod(shape[d + 1 :]) for d, (n, s) in enumerate(zip(shape, steps, strict=True)))
    strides = None if plain or 0 in shape else tuple(s * item for s in steps)
    found = StoredArray(file, storage.offset + first * item, dtype, tuple(shape), strides)
    if found.end > storage.offset + storage.nbytes:
        raise ValueError(f"a tensor {list(shape)} of {dtype} in a storage of {storage.nbytes} bytes")
    return found


def _has_tensors(value: Any, depth: int) -> bool:
    """Whether tensors lie in what is not looked into."""
    if isinstance(value, (StoredArray, _Storage)):
        return True
    if depth > _DEPTH:
        return False
    parts: list[Any] = []
    if isinstance(value, Call):
        parts = [*value.arguments, value.state, *value.entries.values(), *value.items]
    elif isinstance(value, dict):
        parts = list(value.values())
    elif isinstance(value, (list, tuple)):
        parts = list(value)
    return any(_has_tensors(p, depth + 1) for p in parts[:1000])
