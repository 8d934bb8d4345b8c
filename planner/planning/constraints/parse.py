"""YAML or JSON text into plain values, with the line of every part.

No aliases, no repeated keys, no tags: a file says what it seems to say, and stays as small in memory as on disk.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import yaml

from planner.errors import InputError
from planner.terminal import quoted

__all__ = ["Lines", "parse_text"]

MOST_DEPTH = 20
MOST_CHARACTERS = 200  # of what is no text
_TEXT = "tag:yaml.org,2002:str"
_Path = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class Lines:
    """Path into the file → line, counted from 1."""

    of: Mapping[_Path, int]
    numbered: bool = True

    def where(self, name: str, path: _Path) -> str:
        """`name:line` of the part, or of the closest part around it; `name` where lines mean nothing."""
        if not self.numbered:
            return name
        for n in range(len(path), 0, -1):
            if path[:n] in self.of:
                return f"{name}:{self.of[path[:n]]}"
        return name


def parse_text(text: str, name: str) -> tuple[Any, Lines]:
    """The values and their lines.  InputError where it is neither YAML nor JSON, or says things twice."""
    lines: dict[_Path, int] = {}
    try:
        text = text.replace("\t", " ") if _is_json(text) else text
        _check_depth(text, name)
        node = yaml.compose(text, Loader=_Loader)
        return (None if node is None else _value(node, (), lines, set(), name)), Lines(lines)
    except yaml.YAMLError as e:
        mark = getattr(e, "problem_mark", None)
        line = f":{mark.line + 1}" if mark is not None else ""
        problem = getattr(e, "problem", None) or str(e).splitlines()[0]
        raise InputError(f"constraints {name}{line}: is neither YAML nor JSON: {problem}") from e


_Loader: type[Any] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_CONSTRUCT = yaml.constructor.SafeConstructor()


def _check_depth(text: str, name: str) -> None:
    """Events come one by one; only what is shallow may be composed, which the compiled parser does by recursion."""
    depth = 0
    for event in yaml.parse(text, Loader=_Loader):
        if isinstance(event, yaml.events.CollectionStartEvent):
            depth += 1
            if depth > MOST_DEPTH:
                line = "" if event.start_mark is None else f":{event.start_mark.line + 1}"
                raise InputError(
                    f"constraints {name}{line}: is nested too deeply; at most {MOST_DEPTH} levels are read"
                )
        elif isinstance(event, yaml.events.CollectionEndEvent):
            depth -= 1


def _is_json(text: str) -> bool:
    """JSON allows tabs between its parts, YAML does not; inside strings neither has them raw."""
    if not text.lstrip().startswith("{") or "\t" not in text:
        return False
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def _value(node: Any, path: _Path, lines: dict[_Path, int], seen: set[int], name: str) -> Any:
    here = node.start_mark.line + 1
    lines.setdefault(path, here)
    if id(node) in seen:
        raise InputError(f"constraints {name}:{here}: aliases are not understood here; write the value out")
    seen.add(id(node))
    if isinstance(node, yaml.MappingNode):
        found: dict[str, Any] = {}
        for key, value in node.value:
            at = key.start_mark.line + 1
            if not isinstance(key, yaml.ScalarNode):
                raise InputError(f"constraints {name}:{at}: expected a name before the colon")
            if key.value in found:
                raise InputError(f"constraints {name}:{at}: {quoted(key.value)} stands here twice; keep one")
            lines[(*path, key.value)] = at
            found[key.value] = _value(value, (*path, key.value), lines, seen, name)
        return found
    if isinstance(node, yaml.SequenceNode):
        return [_value(item, (*path, i), lines, seen, name) for i, item in enumerate(node.value)]
    if node.tag != _TEXT and len(node.value) > MOST_CHARACTERS:  # a number of base 60 takes time by its square
        message = f"{quoted(node.value)} is longer than any number; put it in quotes"
        raise InputError(f"constraints {name}:{here}: {message}")
    try:
        return _CONSTRUCT.construct_object(node)
    except (yaml.YAMLError, ValueError) as e:
        message = f"{quoted(node.value)} is not understood; put it in quotes"
        raise InputError(f"constraints {name}:{here}: {message}") from e
