"""`.layout` files: where every parameter lies, by rank, as core/checkpoint/layout.py of HyperParallel saves them.

JSON: rank → parameter → {mesh_shape (later versions: device_matrix), tensor_map, interleaved_parallel, alias_name,
rank_list, type, full_shape}.  `tensor_map[d]` is the axis that splits dimension d, counted from the right, -1 where
none does, a list where several do, outermost first; `rank_list` are the ranks of the mesh in row-major order.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from planner.emit.mindspore.arrangement import Arrangement
from planner.errors import InputError

__all__ = ["Lying", "read_layout_file", "to_json"]

_LIMIT: Final = 1 << 28  # bytes of a file
_MOST_RANKS: Final = 1 << 16
_MOST_AXES: Final = 16


@dataclass(frozen=True, slots=True)
class Lying:
    """A parameter on the ranks `first` and those behind it; `names`: of the axes; `dtype` as the framework prints it,
    empty where the file does not say."""

    arrangement: Arrangement
    names: tuple[str, ...]
    shape: tuple[int, ...]
    first: int = 0
    dtype: str = ""


def to_json(rank: int, parameters: Mapping[str, Lying]) -> bytes:
    """The file of one rank."""
    return (json.dumps({str(rank): {n: _entry(p) for n, p in parameters.items()}}, ensure_ascii=False) + "\n").encode()


def _entry(p: Lying) -> dict[str, Any]:
    a = p.arrangement
    return {
        "mesh_shape": list(a.device_matrix),
        "tensor_map": [list(x) if isinstance(x, tuple) else x for x in a.tensor_map],
        "interleaved_parallel": False,
        "alias_name": list(p.names),
        "rank_list": list(range(p.first, p.first + a.ranks)),
        "type": p.dtype,
        "full_shape": list(p.shape),
    }


def read_layout_file(path: Path) -> dict[str, Lying]:
    """Parameter → where it lies, of the ranks of the file together.

    InputError where the file is none, its ranks contradict each other, or ranks are not numbered in the mesh's order.
    """
    try:
        if path.stat().st_size > _LIMIT:
            raise InputError(f"{path}: {path.stat().st_size:,} bytes; a layout file of one rank has at most {_LIMIT:,}")
        document = json.loads(path.read_bytes())
    except OSError as e:
        raise InputError(f"{path}: cannot be read ({e.strerror}); give a .layout file of HyperParallel") from e
    except (ValueError, RecursionError) as e:
        raise InputError(f"{path}: is not JSON ({e}); give a .layout file of HyperParallel") from e
    if not isinstance(document, dict) or not document:
        raise InputError(f"{path}: expected an object of ranks, found {document!r:.80}")
    found: dict[str, Lying] = {}
    for rank, table in document.items():
        if not (rank.isascii() and rank.isdecimal() and len(rank) < 8) or not isinstance(table, dict):
            raise InputError(f"{path}: expected ranks with their parameters, found {rank!r:.40}: {table!r:.40}")
        for name, item in table.items():
            lying = _lying(f"{path}: rank {rank}: parameter {name!r}", item)
            if lying is None:
                continue
            if not lying.first <= int(rank) < lying.first + lying.arrangement.ranks:
                raise InputError(f"{path}: rank {rank}: parameter {name!r} is said to lie on other ranks")
            if found.setdefault(name, lying) != lying:
                raise InputError(
                    f"{path}: parameter {name!r} lies one way on rank {rank} and another on an earlier one"
                )
    if not found:
        raise InputError(f"{path}: no parameter has a layout in it")
    return found


def _lying(where: str, item: Any) -> Lying | None:
    """None for a parameter that HyperParallel did not lay out."""
    if not isinstance(item, dict):
        raise InputError(f"{where}: expected an object, found {item!r:.80}")
    if "tensor_map" not in item:
        return None
    matrix = _counts(where, "mesh_shape", item.get("mesh_shape", item.get("device_matrix")))
    if not matrix or len(matrix) > _MOST_AXES or min(matrix) < 1:
        raise InputError(f"{where}: mesh_shape: expected one to {_MOST_AXES} sizes of at least 1, found {list(matrix)}")
    ranks = 1
    for size in matrix:
        ranks *= size
        if ranks > _MOST_RANKS:
            raise InputError(
                f"{where}: mesh_shape: at most {_MOST_RANKS:,} ranks are planned for, found {list(matrix)}"
            )
    if item.get("interleaved_parallel"):
        raise InputError(f"{where}: is divided in copies on one device (interleaved_parallel), which no plan here is")
    places = item["tensor_map"]
    if not isinstance(places, list):
        raise InputError(f"{where}: tensor_map: expected a list, found {places!r:.80}")
    tensor_map = tuple(
        tuple(_counts(where, "tensor_map", x)) if isinstance(x, list) else _counts(where, "tensor_map", [x])[0]
        for x in places
    )
    used = [a for x in tensor_map for a in (x if isinstance(x, tuple) else (x,)) if a != -1]
    if any(not 0 <= a < len(matrix) for a in used) or len(set(used)) != len(used):
        raise InputError(f"{where}: tensor_map: expected distinct axes of {len(matrix)}, -1 for none, found {places}")
    shape = _counts(where, "full_shape", item.get("full_shape"))
    if len(shape) != len(tensor_map):
        raise InputError(f"{where}: tensor_map has {len(tensor_map)} entries, full_shape {len(shape)}")
    numbers = _counts(where, "rank_list", item.get("rank_list", list(range(ranks))))
    first = numbers[0] if numbers else 0
    if first < 0 or list(numbers) != list(range(first, first + ranks)):
        raise InputError(
            f"{where}: rank_list: expected {ranks} neighbouring ranks in their order, found {list(numbers)[:8]}"
        )
    names = item.get("alias_name")
    named = tuple(map(str, names)) if isinstance(names, list) else ()
    flat = tuple(_flat(x) for x in tensor_map)
    return Lying(Arrangement(matrix, flat), named, shape, first, str(item.get("type", "")))


def _flat(place: int | tuple[int, ...]) -> int | tuple[int, ...]:
    """`("dp", "None")` splits as `"dp"` does."""
    if not isinstance(place, tuple):
        return place
    real = tuple(a for a in place if a != -1)
    return real if len(real) > 1 else (real[0] if real else -1)


def _counts(where: str, what: str, value: object) -> tuple[int, ...]:
    if not isinstance(value, list) or not all(type(n) is int and -1 <= n < 1 << 40 for n in value):
        raise InputError(f"{where}: {what}: expected a list of whole numbers, found {value!r:.80}")
    return tuple(value)
