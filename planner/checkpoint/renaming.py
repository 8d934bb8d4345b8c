"""Tensors under other names, turned, joined and cut apart: what `--map` says.

    {"h.*.attn.weight": "layers.*.attention.weight",
     "lm_head.weight": {"name": "head", "transposed": true},
     "layers.*.qkv.weight": {"joined": ["h.*.q.weight", "h.*.k.weight", "h.*.v.weight"], "dim": 0},
     "layers.*.mlp.weight": {"parts": {"h.*.gate.weight": 2048, "h.*.up.weight": 2048}, "dim": 0}}

A key is a name of the source, or with `joined` the name that several become behind each other, or with `parts` the name
of one that is cut into several of these sizes.  One `*` stands for any text, the same in all names.  Slots of an
optimizer go with their parameter.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from planner.checkpoint.naming import Tensor
from planner.checkpoint.wording import listed
from planner.errors import InputError
from planner.stored.arrays import StoredArray
from planner.stored.moves import Held
from planner.transfer.pieces import Boxes, Pieces

__all__ = ["Rule", "read_rules", "renamed", "rules_of"]


@dataclass(frozen=True, slots=True)
class Rule:
    """`sources` become `targets`, of which one side is a single name: joined or cut along `dim`, at `sizes`."""

    sources: tuple[str, ...]
    targets: tuple[str, ...]
    transposed: bool = False
    dim: int = 0
    sizes: tuple[int, ...] = ()


def read_rules(file: Path) -> tuple[Rule, ...]:
    """InputError where the file is not as the module describes."""
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except OSError as e:
        raise InputError(f"--map {file}: cannot be read: {e.strerror}") from None
    except (ValueError, RecursionError) as e:
        raise InputError(f"--map {file}: expected JSON, found {e}") from None
    return rules_of(found, f"--map {file}")


def rules_of(found: Any, where: str) -> tuple[Rule, ...]:
    """As `read_rules`, of what stands in such a file; `where` stands in messages."""
    if not isinstance(found, Mapping):
        raise InputError(f'{where}: expected an object such as {{"name in SRC": "name in DST"}}, found another')
    return tuple(_rule(f"{where}: {key!r}", str(key), value) for key, value in found.items())


def _rule(where: str, key: str, value: Any) -> Rule:
    if isinstance(value, str):
        value = {"name": value}
    if not isinstance(value, dict):
        raise InputError(f"{where}: expected a name or an object, found {value!r:.60}")
    unknown = [k for k in value if k not in ("name", "transposed", "joined", "parts", "dim")]
    if unknown or not isinstance(value.get("transposed", False), bool):
        wrong = f"the key {unknown[0]!r}" if unknown else f"transposed: {value['transposed']!r:.40}"
        raise InputError(f"{where}: expected name, transposed (true or false), joined, parts or dim, found {wrong}")
    dim = value.get("dim", 0)
    if isinstance(dim, bool) or not isinstance(dim, int) or not 0 <= dim < 32:
        raise InputError(f"{where}: dim: expected the number of a dimension from 0 on, found {dim!r:.40}")
    match value:
        case {"name": str(name)}:
            return Rule((key,), (name,), value.get("transposed") is True)
        case {"joined": [str(), *_] as names} if all(isinstance(n, str) for n in names):
            return Rule(tuple(names), (key,), dim=dim)
        case {"parts": dict(parts)} if parts and all(type(n) is int and n > 0 for n in parts.values()):
            return Rule((key,), tuple(parts), dim=dim, sizes=tuple(parts.values()))
    raise InputError(f'{where}: expected "name", "joined" or "parts", found {sorted(value)!r:.80}')


def renamed(
    tensors: Mapping[str, Held], said: Mapping[str, Tensor], rules: Iterable[Rule], place: Path
) -> tuple[dict[str, Held], dict[str, Tensor]]:
    """The tensors, and what they are, as rules have it; in the order of the source.

    InputError where a rule fits no tensor, or tensors do not go together.
    """
    held, what = dict(tensors), dict(said)
    slots: dict[str, list[str]] = {}  # parameter → slots that the checkpoint has of it
    names: dict[tuple[str, str], str] = {}  # (parameter, slot) → its name in the files
    for name, t in said.items():
        parameter = t.parameter or name
        slots.setdefault(parameter, []).append(t.slot)
        names[parameter, t.slot] = name
    made: dict[str, tuple[Held, Tensor]] = {}
    for rule in rules:
        fits = _texts(rule.sources[0], slots)
        if not fits:
            raise InputError(f"--map: {rule.sources[0]!r} is no tensor of {place}; it has {listed(slots)}")
        for text in fits:
            parts = [s.replace("*", text, 1) for s in rule.sources]
            into = [t.replace("*", text, 1) for t in rule.targets]
            for slot in slots[parts[0]]:
                found = [names.get((p, slot), "") for p in parts]
                if "" in found:
                    lacks = parts[found.index("")]
                    raise InputError(f"--map: {into[0]!r} needs {lacks!r} ({slot or 'weight'}), which {place} lacks")
                used = next((f for f in found if f not in held), None)
                if used is not None:
                    raise InputError(f"--map: {used!r} fits several entries; leave one that says what becomes of it")
                values = _made(rule, [held[f] for f in found], slot, f"--map: {', '.join(parts)}")
                for f in found:
                    del held[f], what[f]
                for target, value in zip(into, values, strict=True):
                    new = _respelled(said[found[0]], target)
                    if new in made:
                        raise InputError(f"--map: two tensors of {place} become {new!r}; give names that differ")
                    made[new] = value, Tensor(new, target, slot)
    for new, (value, tensor) in made.items():
        if new in held:
            raise InputError(f"--map: two tensors of {place} become {new!r}; give names that differ")
        held[new], what[new] = value, tensor
    return held, what


def _texts(pattern: str, names: Iterable[str]) -> list[str]:
    """What `*` stands for in each name that fits; one empty text where there is no `*`."""
    front, star, back = pattern.partition("*")
    if not star:
        return [""] if pattern in names else []
    return [n[len(front) : len(n) - len(back)] for n in names
            if n.startswith(front) and n.endswith(back) and len(n) >= len(front) + len(back)]  # fmt: skip


def _respelled(tensor: Tensor, target: str) -> str:
    """The name of a parameter or slot with another parameter in it."""
    name, parameter = tensor.name, tensor.parameter
    if not parameter or name == parameter:
        return target
    if name.endswith(f".{parameter}"):
        return name[: -len(parameter)] + target
    front, _, back = name.rpartition(f"{parameter}.")
    return f"{front}{target}.{back}"


def _made(rule: Rule, parts: list[Held], slot: str, where: str) -> list[Held]:
    if not parts[0].shape and slot:
        return [parts[0]] * len(rule.targets)  # a count of steps, which all have
    if rule.transposed:
        return [_transposed(parts[0], where)]
    if rule.sizes:
        return _cut(parts[0], rule, where)
    return [_joined(parts, rule, where)] if len(rule.sources) > 1 else parts


def _transposed(h: Held, where: str) -> Held:
    if len(h.shape) != 2:
        raise InputError(f"{where}: expected a matrix to turn, found the shape {list(h.shape)}")
    p = h.pieces
    turned = Pieces(p.shape[::-1], Boxes(p.boxes.starts[:, ::-1], p.boxes.stops[:, ::-1]), p.holders, p.inside[:, ::-1])
    return Held(turned, h.arrays, h.dtype, (1, 0) if h.order is None else None)


def _check_dim(shape: tuple[int, ...], rule: Rule, where: str) -> None:
    if rule.dim >= len(shape):
        raise InputError(f"{where}: expected a dimension below {len(shape)}, found dim {rule.dim} of {list(shape)}")


def _cut(h: Held, rule: Rule, where: str) -> list[Held]:
    _check_dim(h.shape, rule, where)
    if sum(rule.sizes) != h.shape[rule.dim]:
        raise InputError(f"{where}: expected parts that make {h.shape[rule.dim]}, found {list(rule.sizes)}")
    out, begin = [], 0
    for size in rule.sizes:
        p, d = h.pieces, rule.dim
        starts, stops, inside = p.boxes.starts.copy(), p.boxes.stops.copy(), p.inside.copy()
        low = np.maximum(starts[:, d], begin)
        high = np.minimum(stops[:, d], begin + size)
        inside[:, d] += low - starts[:, d]
        starts[:, d], stops[:, d] = low - begin, high - begin
        kept = high > low
        shape = (*h.shape[:d], size, *h.shape[d + 1 :])
        pieces = Pieces(shape, Boxes(starts[kept], stops[kept]), p.holders[kept], inside[kept])
        out.append(Held(pieces, h.arrays, h.dtype, h.order))
        begin += size
    return out


def _joined(parts: list[Held], rule: Rule, where: str) -> Held:
    first, d = parts[0], rule.dim
    _check_dim(first.shape, rule, where)
    rest = [(*h.shape[:d], *h.shape[d + 1 :]) for h in parts]
    if any(r != rest[0] for r in rest) or any((h.dtype, h.order) != (first.dtype, first.order) for h in parts):
        raise InputError(f"{where}: expected tensors that differ in dimension {d} alone, found "
                         f"{', '.join(f'{h.dtype} {list(h.shape)}' for h in parts)}")  # fmt: skip
    begin, all_pieces = 0, []
    arrays: list[StoredArray] = []
    for h in parts:
        p = h.pieces
        starts, stops = p.boxes.starts.copy(), p.boxes.stops.copy()
        starts[:, d] += begin
        stops[:, d] += begin
        all_pieces.append((starts, stops, p.holders + len(arrays), p.inside))
        arrays += h.arrays
        begin += h.shape[d]
    starts, stops, holders, inside = (np.concatenate(x) for x in zip(*all_pieces, strict=True))
    shape = (*first.shape[:d], begin, *first.shape[d + 1 :])
    return Held(Pieces(shape, Boxes(starts, stops), holders, inside), tuple(arrays), first.dtype, first.order)
