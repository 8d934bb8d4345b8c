"""Every field of a plan.json changed in every way that its kind allows.

A *pattern* is a path with the names and numbers of entries left out: `operators.*.runs[*].seconds`.  Of each pattern
the first and the last place are changed, one at a time.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

__all__ = ["Mutation", "mutations", "pattern_of"]

Path = tuple[str | int, ...]
Change = Callable[[Any], Any]

# Mappings whose keys are names, not fields.
_NAMED: Final = {
    ("inputs",), ("meshes",), ("tensors",), ("operators",), ("parameters",), ("model", "bind"),
    ("search", "request", "bind"), ("cost", "parts_s"), ("cost", "memory_bytes"),
}  # fmt: skip
_NAMED_ANYWHERE: Final = {"groups", "strategy", "partial"}
# Words that a field of plan.json may hold.
_WORDS: Final = (
    ("training", "inference"), ("bf16", "fp16", "fp32"), ("adam", "momentum", "sgd"), ("any", "torch", "mindspore"),
    ("", "1f1b"), ("forward", "gradient"), ("forward", "recompute", "backward"), ("sum", "max", "min"),
    ("auto", "none", "blocks"), ("auto", "dp", "ilp"), ("none", "sibling", "forward", "full"),
    ("optimal", "feasible", "infeasible", "unknown"), ("operator", "tensor", "parameter", "rest"),
    ("all_gather", "all_reduce", "reduce_scatter", "all_to_all", "permute", "slice", "to_partial"),
    ("replicate", "defer"), ("float32", "int64"), ("parameter", "input", "activation", "constant", "output"),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Mutation:
    """`what` was done to the field at `path`."""

    path: Path
    what: str
    change: Change

    @property
    def pattern(self) -> str:
        return pattern_of(self.path)

    def of(self, document: dict[str, Any]) -> dict[str, Any]:
        """The document with this one field changed."""
        return _replaced(document, self.path, self.change)

    def __str__(self) -> str:
        return f"{self.pattern}: {self.what} (at {'.'.join(map(str, self.path))})"


def mutations(document: dict[str, Any]) -> Iterator[Mutation]:
    """All of them, in the order of the document."""
    places: dict[tuple[str, str], list[tuple[Path, Any]]] = {}
    filled: dict[str, Any] = {}
    for path, value in _walk(document, ()):
        places.setdefault((pattern_of(path), _kind(value)), []).append((path, value))
        if value not in (None, [], {}, ""):
            filled.setdefault(pattern_of(path), value)
    for (pattern, _), found in places.items():
        for path, value in {found[0][0]: found[0][1], found[-1][0]: found[-1][1]}.items():
            for what, change in _changes(value, filled.get(pattern)):
                yield Mutation(path, what, change)


def pattern_of(path: Path) -> str:
    out = ""
    for i, part in enumerate(path):
        before = path[:i]
        if isinstance(part, int):
            out += "[*]"
        else:
            named = before in _NAMED or (bool(before) and before[-1] in _NAMED_ANYWHERE)
            out += f".{'*' if named else part}"
    return out.removeprefix(".")


def _walk(value: Any, path: Path) -> Iterator[tuple[Path, Any]]:
    if path:
        yield path, value
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _walk(inner, (*path, key))
    elif isinstance(value, list):
        for i, inner in enumerate(value):
            yield from _walk(inner, (*path, i))


def _kind(value: Any) -> str:
    """Empty ones apart: what can be done to them is not what can be done to others."""
    return f"{type(value).__name__}{'' if value or isinstance(value, int | float) else ' empty'}"


def _changes(value: Any, filled: Any) -> Iterator[tuple[str, Change]]:
    if value is not None:
        yield "null", lambda v: None
    if isinstance(value, bool):
        yield "flipped", lambda v: not v
    elif isinstance(value, int | float):
        yield from _of_number(value)
    elif isinstance(value, str):
        yield from _of_text(value)
    elif isinstance(value, list):
        yield from _of_list(value)
    elif isinstance(value, dict):
        yield from _of_mapping(value)
    if value in (None, [], {}, "") and filled is not None and not isinstance(value, bool):
        yield "filled as another is", lambda v: copy.deepcopy(filled)


def _of_number(value: float) -> Iterator[tuple[str, Change]]:
    yield "one more", lambda v: v + 1
    yield "one less", lambda v: v - 1
    if value:
        yield "negated", lambda v: -v
        yield "doubled", lambda v: v * 2
        yield "zero", lambda v: 0
    if value and isinstance(value, float):
        yield "a little more", lambda v: v * (1 + 1e-12)


def _of_text(value: str) -> Iterator[tuple[str, Change]]:
    yield "longer", lambda v: v + "x"
    yield "empty", lambda v: ""
    if number := re.search(r"\d+", value):
        yield "another number", lambda v: v[: number.start()] + str(int(number[0]) + 1) + v[number.end() :]
    for words in _WORDS:
        if value in words:
            for word in words:
                yield f"→ {word!r}", lambda v, word=word: word


def _of_list(value: list[Any]) -> Iterator[tuple[str, Change]]:
    if not value:
        return
    yield "emptied", lambda v: []
    yield "first dropped", lambda v: v[1:]
    yield "last dropped", lambda v: v[:-1]
    yield "first twice", lambda v: [v[0], *v]
    yield "last twice", lambda v: [*v, v[-1]]
    yield "reversed", lambda v: v[::-1]
    for i in range(min(3, len(value) - 1)):
        yield f"{i} and {i + 1} swapped", lambda v, i=i: [*v[:i], v[i + 1], v[i], *v[i + 2 :]]


def _of_mapping(value: dict[str, Any]) -> Iterator[tuple[str, Change]]:
    yield "another key", lambda v: {**v, "zz": next(iter(v.values()), 0)}
    if not value:
        return
    yield "emptied", lambda v: {}
    yield "reordered", lambda v: dict(reversed(v.items()))
    first, last = next(iter(value)), list(value)[-1]
    for key in dict.fromkeys((first, last)):
        yield f"without {key}", lambda v, key=key: {k: x for k, x in v.items() if k != key}
        yield f"{key} renamed", lambda v, key=key: {("zz" if k == key else k): x for k, x in v.items()}
    for other in list(value)[1:2]:
        yield "values swapped", lambda v, a=first, b=other: {**v, a: v[b], b: v[a]}


def _replaced(value: Any, path: Path, change: Change) -> Any:
    """A copy along the path alone."""
    if not path:
        return change(value)
    head, *rest = path
    if isinstance(value, list):
        assert isinstance(head, int)
        return [*value[:head], _replaced(value[head], tuple(rest), change), *value[head + 1 :]]
    return {k: _replaced(v, tuple(rest), change) if k == head else v for k, v in value.items()}
