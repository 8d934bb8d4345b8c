"""The notation of pins: layouts, strategies, meshes.  Every parser raises ValueError that says what was expected."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from planner.ir import Reduction
from planner.ir.mesh import AXIS_NAMES
from planner.planning.constraints.values import Counts, LayoutPin, Rest, RestKind, StrategyPin
from planner.planning.roles import role_from_text

__all__ = ["parse_counts", "parse_factors", "parse_layout", "parse_meshes", "parse_rest", "parse_roles"]

MOST_SHARDS = 2**20
_LAYOUT = re.compile(r"\[(?P<dims>[^\[\]]*)\](?P<pending>(?:\s*\+\s*\w+(?:\s*\(\s*\w+\s*\))?)*)")
_PENDING = re.compile(r"\+\s*(\w+)(?:\s*\(\s*(\w+)\s*\))?")
_LAYOUT_FORMS = "a layout such as [x, _], [_, y]+x or [_, x:3], numbers of shards such as [8, 1], or `replicated`"
_REST: dict[str, RestKind] = {
    "search": "search", "replicated": "replicated", "data_parallel": "data_parallel", "zero": "zero"
}  # fmt: skip


def _axis(name: object) -> str:
    if not isinstance(name, str) or len(name) != 1 or name not in AXIS_NAMES:
        raise ValueError(f"{name!r} is not a mesh axis; they are {', '.join(AXIS_NAMES)}, outermost first")
    return name


def _axes(value: object) -> tuple[str, ...]:
    """`x`, `x.y`, `[x, y]`, or `_` and `[]` for none."""
    if isinstance(value, str):
        value = [] if value in ("_", "") else value.split(".")
    if not isinstance(value, list):
        raise ValueError(f"expected a mesh axis, several joined by a dot, or a list of them, found {value!r}")
    return tuple(_axis(a.strip() if isinstance(a, str) else a) for a in value)


def _split(value: object) -> tuple[tuple[str, ...], int]:
    """The axes of a dimension, and the number of equal parts that they split each: `x.y:3`."""
    text, colon, count = value.partition(":") if isinstance(value, str) else ("", "", "")
    if not colon:
        return _axes(value), 1
    axes, parts = _axes(text.strip()), int(count) if count.strip().isascii() and count.strip().isdigit() else 0
    if not axes or not 2 <= parts <= MOST_SHARDS:
        raise ValueError(f"expected axes and a number of equal parts such as x:3, found {value!r}")
    return axes, parts


def _once(axes: Sequence[str], what: str) -> None:
    twice = sorted({a for a in axes if axes.count(a) > 1})
    if twice:
        raise ValueError(f"{what} uses axis {', '.join(twice)} twice; an axis splits one dimension, or is pending")


def _count(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MOST_SHARDS:
        raise ValueError(f"expected a number of shards from 1 to {MOST_SHARDS}, found {value!r}")
    return value


def parse_layout(value: Any) -> LayoutPin:
    """`[x, _, z.y]+w`, as text or as a list; `[8, 1]`; `replicated`; `{dims: [[x], []], partial: {w: sum}}`."""
    if isinstance(value, str):
        return _layout_text(value.strip())
    if isinstance(value, list):
        return _counts(value) if any(isinstance(v, int) for v in value) else _layout(tuple(map(_split, value)), {})
    known = {"dims", "partial", "mesh", "parts"}
    if isinstance(value, dict) and set(value) <= known and isinstance(value.get("dims"), list):
        partial = value.get("partial") or {}
        if not isinstance(partial, dict):
            raise ValueError(f"partial: expected axis: reduction, found {partial!r}")
        dims = [_axes(v) for v in value["dims"]]
        parts = value.get("parts") or [1] * len(dims)
        if not isinstance(parts, list) or len(parts) != len(dims):
            raise ValueError(f"parts: expected a number for each of {len(dims)} dimensions, found {parts!r}")
        return _layout(tuple(zip(dims, map(_count, parts), strict=True)), partial)
    raise ValueError(f"expected {_LAYOUT_FORMS}, found {value!r}")


def _layout_text(text: str) -> LayoutPin:
    if text == "replicated":
        return LayoutPin()
    match = _LAYOUT.fullmatch(text)
    if match is None:
        raise ValueError(f"expected {_LAYOUT_FORMS}, found {text!r}")
    entries = [e.strip() for e in match["dims"].split(",")] if match["dims"].strip() else []
    if any(e.isascii() and e.isdigit() for e in entries) and not match["pending"]:
        return _counts([int(e) if e.isascii() and e.isdigit() else e for e in entries])
    return _layout(tuple(map(_split, entries)), {a: op or "sum" for a, op in _PENDING.findall(match["pending"])})


def _counts(entries: list[Any]) -> LayoutPin:
    named = [e for e in entries if isinstance(e, str) and e != "_"]
    if named:
        raise ValueError(
            f"numbers of shards stand beside {named[0]!r}; give axes for all dimensions, or numbers for all"
        )
    return LayoutPin(counts=tuple(1 if e == "_" else _count(e) for e in entries))


def _layout(ways: tuple[tuple[tuple[str, ...], int], ...], partial: dict[Any, Any]) -> LayoutPin:
    """`ways`: of every dimension its axes, and the equal parts that they split."""
    dims = tuple(axes for axes, _ in ways)
    parts = tuple(n for _, n in ways) if any(n > 1 for _, n in ways) else ()
    pending = []
    for axis, reduction in partial.items():
        if reduction not in set(Reduction):
            raise ValueError(f"pending over {axis}: expected {', '.join(Reduction)}, found {reduction!r}")
        pending.append((_axis(axis), Reduction(reduction)))
    _once([*(a for d in dims for a in d), *(a for a, _ in pending)], "the layout")
    pending.sort(key=lambda p: AXIS_NAMES.index(p[0]))
    return LayoutPin(dims=dims, partial=tuple(pending), parts=parts)


def parse_factors(value: Any) -> StrategyPin:
    """`{m: x, n: [y, z], k: 4}`, or `replicated`."""
    if value == "replicated":
        return StrategyPin(factors=())
    if not isinstance(value, dict):
        raise ValueError(f"expected factors with their axes such as {{m: x, n: y}}, or `replicated`, found {value!r}")
    factors: list[tuple[str, tuple[str, ...] | int]] = []
    for name, split in value.items():
        try:
            factors.append((str(name), _count(split) if isinstance(split, int) else _axes(split)))
        except ValueError as e:
            raise ValueError(f"factor {name}: {e}") from e
    _once([a for _, split in factors if not isinstance(split, int) for a in split], "the strategy")
    return StrategyPin(factors=tuple(factors))


def parse_roles(value: Any) -> StrategyPin:
    """`{x: "split:m", y: defer}`, as plan.json writes strategies; axes left out are free."""
    if not isinstance(value, dict) or not value:
        raise ValueError(f"expected axes with their roles such as {{x: 'split:m'}}, found {value!r}")
    if not all(isinstance(text, str) for text in value.values()):
        raise ValueError(
            f"expected roles split:FACTOR, split:FACTOR:PARTS, replicate, defer or linear:GROUP, found {value!r}"
        )
    return StrategyPin(roles=tuple((_axis(axis), role_from_text(text)) for axis, text in value.items()))


def parse_counts(value: Any) -> tuple[Counts | None, ...]:
    """`[[8, 1], [1, 2]]`: shards per dimension, tensor by tensor; null leaves a tensor free."""
    if not isinstance(value, list) or not value or not all(v is None or isinstance(v, list) for v in value):
        raise ValueError(f"expected numbers of shards, tensor by tensor, such as [[8, 1], [1, 2]], found {value!r}")
    return tuple(None if entry is None else tuple(map(_count, entry)) for entry in value)


def parse_meshes(value: Any) -> tuple[tuple[int, ...], ...]:
    """`8x2`, `16`, or a list of such."""
    meshes = []
    for item in value if isinstance(value, list) else [value]:
        sizes = [] if isinstance(item, bool) else str(item).lower().split("x")
        if not 1 <= len(sizes) <= 4 or not all(s.isascii() and s.isdigit() and int(s) >= 1 for s in sizes):
            raise ValueError(f"expected a mesh of up to four sizes such as 8x2, found {item!r}")
        meshes.append(tuple(map(int, sizes)))
    if not meshes:
        raise ValueError("expected a mesh such as 8x2, found an empty list; leave `mesh` out for all of them")
    return tuple(meshes)


def parse_rest(value: Any) -> Rest:
    """`search`, `replicated`, `data_parallel`, `zero`, or the last two with their axes: `{data_parallel: [x]}`."""
    if isinstance(value, str) and value in _REST:
        return Rest(_REST[value])
    if isinstance(value, dict) and len(value) == 1:
        ((kind, axes),) = value.items()
        if kind in ("data_parallel", "zero"):
            named = _axes(axes)
            _once(named, "rest")
            return Rest(_REST[kind], named)
    forms = "search, replicated, data_parallel, zero, or the last two with axes: {data_parallel: [x]}"
    raise ValueError(f"expected {forms}, found {value!r}")
