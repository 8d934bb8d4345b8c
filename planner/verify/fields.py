"""Two documents compared field by field."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

__all__ = ["Difference", "compare"]

_LONGEST: Final = 120
_MESSAGE: Final = re.compile(r"at (?P<path>\S+): expected (?P<expected>.*?), found (?P<found>.*?)(?:; search again)?")


@dataclass(frozen=True, slots=True)
class Difference:
    """A field that is not as it has to be.  `path` leads to it from the top of the file: `redistributions[12].bytes`,
    `meshes.m0.groups.x`; `expected` and `found` are in words or as JSON has them."""

    path: str
    expected: str
    found: str

    def __str__(self) -> str:
        return f"at {self.path}: expected {self.expected}, found {self.found}"

    @classmethod
    def of_message(cls, message: str, path: str) -> Difference:
        """What the message of an error says; `path`: where it names no field."""
        match = _MESSAGE.fullmatch(message)
        if match is not None:
            return cls(match["path"], match["expected"], match["found"])
        return cls(path, "a plan that can be understood", message)


def compare(expected: Any, found: Any, path: str = "") -> Iterator[Difference]:
    """The fields in which `found` is not `expected`, in order; the order of the keys of a mapping counts, too."""
    if isinstance(expected, Mapping) and isinstance(found, Mapping):
        yield from _mappings(expected, found, path)
    elif isinstance(expected, Sequence) and isinstance(found, Sequence) and not isinstance(expected, str):
        if isinstance(found, str):
            yield Difference(path, _text(expected), _text(found))
        else:
            yield from _sequences(expected, found, path)
    elif expected != found or type(expected) is not type(found):
        yield Difference(path, _text(expected), _text(found))


def _mappings(expected: Mapping[str, Any], found: Mapping[str, Any], path: str) -> Iterator[Difference]:
    for key, value in expected.items():
        inner = f"{path}.{key}" if path else key
        if key not in found:
            yield Difference(inner, _text(value), "nothing")
        else:
            yield from compare(value, found[key], inner)
    further = [key for key in found if key not in expected]
    for key in further:
        yield Difference(f"{path}.{key}" if path else key, "nothing", _text(found[key]))
    if not further and len(expected) == len(found) and list(expected) != list(found):
        before, after = next((a, b) for a, b in zip(expected, found, strict=True) if a != b)
        yield Difference(path or "keys", f"{before} before {after}", "another order")


def _sequences(expected: Sequence[Any], found: Sequence[Any], path: str) -> Iterator[Difference]:
    if len(expected) != len(found):
        yield Difference(path, f"{len(expected)} entries", f"{len(found)}")
    for i, (a, b) in enumerate(zip(expected, found, strict=False)):
        inner = list(compare(a, b, f"{path}[{i}]"))
        yield from inner
        if inner and len(expected) != len(found):
            return  # all that follows is out of step


def _text(value: Any) -> str:
    text = str(value) if value is not None else "none"
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"
