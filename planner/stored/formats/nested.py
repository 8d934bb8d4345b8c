"""Nested dictionaries and lists, as what torch.save saves usually is: taken apart into leaves, and put together again.

A path is the keys from the outermost dictionary on; the index of a list is an `Index`, so that the dictionary {0: x}
and the list [x] stay apart.  A leaf's name is its keys, joined by dots.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from planner.stored.arrays import StoredArray
from planner.stored.elements import TORCH
from planner.stored.formats.pickled import Call, Name

__all__ = ["Index", "Path", "is_plain", "leaves", "name_of", "named_leaves", "nested", "place_of"]

_DEPTH: Final = 64
_LEAVES: Final = 250_000
# What may be called to make a value and does nothing else.
_HARMLESS: Final = frozenset({
    ("torch", "Size"), ("torch", "device"), ("collections", "OrderedDict"), ("numpy", "dtype"),
    ("numpy.core.multiarray", "scalar"), ("numpy._core.multiarray", "scalar"),
})  # fmt: skip

Path = tuple[Any, ...]


class Index(int):
    """Of a list's element."""


def name_of(path: Path) -> str:
    return ".".join(map(str, path))


def leaves(value: Any, path: Path = (), count: list[int] | None = None) -> Iterator[tuple[Path, Any]]:
    """(path, leaf) in order; lists of plain values are leaves.  ValueError where they are too many."""
    count = count if count is not None else [0]
    if isinstance(value, (list, tuple)) and any(isinstance(v, (StoredArray, dict, list, tuple)) for v in value):
        value = {Index(i): v for i, v in enumerate(value)}
    if isinstance(value, dict) and value:
        for k, v in value.items():
            yield from leaves(v, (*path, k), count)
        return
    count[0] += 1
    if count[0] > _LEAVES:
        raise ValueError(f"more than {_LEAVES:,} values")
    yield path, value


def named_leaves(value: Any) -> Iterator[tuple[str, Any]]:
    """(keys joined by dots, leaf) in order."""
    for path, leaf in leaves(value):
        yield name_of(path), leaf


def nested(found: Iterable[tuple[Path, Any]]) -> Any:
    """The dictionaries and lists of which these are the leaves; lists without the elements that are not among them."""
    root: dict[Any, Any] = {}
    for path, value in found:
        inside = root
        for key in path[:-1]:
            inside = inside.setdefault(key, {})
            if not isinstance(inside, dict):
                raise ValueError(f"{name_of(path)!r:.80} within a value")
        if path[-1] in inside:
            raise ValueError(f"two values called {name_of(path)!r:.80}")
        inside[path[-1]] = value
    return _closed(root)


def _closed(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    if value and all(isinstance(k, Index) for k in value):
        return [_closed(value[k]) for k in sorted(value)]
    return {k: _closed(v) for k, v in value.items()}


def place_of(name: str, paths: Mapping[str, Path]) -> Path:
    """The path for a name that is none of `paths`: in the innermost dictionary of them that it could lie in."""
    if name in paths:
        return paths[name]
    containers = {path[:d] for path in paths.values() for d in range(1, len(path))}
    fitting = [c for c in containers if name.startswith(f"{name_of(c)}.")]
    if not fitting:
        return (name,)
    inner = max(fitting, key=lambda c: (len(name_of(c)), len(c)))
    return (*inner, name.removeprefix(f"{name_of(inner)}."))


def is_plain(value: Any, depth: int = 0) -> bool:
    """Whether a value is numbers, texts and containers of them, so that writing it again writes nothing else."""
    if depth > _DEPTH:
        return False
    if value is None or isinstance(value, (bool, int, float, complex, str, bytes, bytearray)):
        return True
    parts: Sequence[Any]
    if isinstance(value, (list, tuple, set, frozenset)):
        parts = tuple(value)
    elif isinstance(value, dict):
        parts = [*value.keys(), *value.values()]
    elif isinstance(value, Name):
        return value.module == "torch" and value.name in TORCH
    elif isinstance(value, Call) and (value.name.module, value.name.name) in _HARMLESS and not value.items:
        parts = [*value.arguments, value.state, *value.entries.keys(), *value.entries.values()]
    else:
        return False
    return all(is_plain(p, depth + 1) for p in parts)
