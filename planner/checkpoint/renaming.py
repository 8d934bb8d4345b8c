"""Tensors under other names, turned, joined, cut apart, stacked and padded: what rules make of a checkpoint.

Slots of an optimizer go with their parameter, and whatever is done to it is done to them.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from planner.checkpoint.naming import Tensor
from planner.checkpoint.rules import Leaf, Rule, read_rules, rules_of, texts
from planner.checkpoint.wording import listed
from planner.errors import InputError
from planner.stored import shaping
from planner.stored.arrays import Files
from planner.stored.moves import Held

__all__ = ["Renamed", "Rule", "read_rules", "renamed", "rules_of"]


@dataclass(frozen=True, slots=True)
class Renamed:
    """`cut`: what of tensors is left out, each in words."""

    tensors: dict[str, Held]
    said: dict[str, Tensor]
    cut: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Case:
    """A rule, of one text that `*` stands for: `sources` are parameters, leaf by leaf under each index of a stack with
    these `counts`."""

    rule: Rule
    text: str
    sources: tuple[str, ...]
    counts: tuple[int, ...] = ()


def renamed(tensors: Mapping[str, Held], said: Mapping[str, Tensor], rules: Iterable[Rule], place: Path) -> Renamed:
    """The tensors, and what they are, as rules have it; in the order of the source.

    InputError where a rule fits no tensor, or tensors do not go together.
    """
    held, what = dict(tensors), dict(said)
    slots: dict[str, dict[str, str]] = {}  # parameter → slot → its name in the files
    for name, t in said.items():
        slots.setdefault(t.parameter or name, {})[t.slot] = name
    made: dict[str, tuple[Held, Tensor]] = {}
    left_out: dict[str, None] = {}
    for case in (c for rule in rules for c in _cases(rule, slots, place)):
        where = f"--map: {listed(case.sources)}"
        for slot in dict.fromkeys(s for p in case.sources for s in slots.get(p, ())):
            found = [slots.get(p, {}).get(slot, "") for p in case.sources]
            if "" in found:
                lacks = case.sources[found.index("")]
                raise InputError(f"--map: {_put(case.rule.whole, case.text)!r} needs {lacks!r} ({slot or 'weight'}), "
                                 f"which {place} lacks")  # fmt: skip
            twice = next((f for f in found if found.count(f) > 1), None)
            if twice is not None:
                raise InputError(
                    f"{where}: {twice!r} stands there twice; each tensor becomes a part of one other, once"
                )
            used = next((f for f in found if f not in held), None)
            if used is not None:
                raise InputError(f"--map: {used!r} fits several entries; leave one that says what becomes of it")
            weight = tensors.get(slots[case.sources[0]].get("", ""))
            try:
                values = _made(case, [held[f] for f in found], slot, held[found[0]] if weight is None else weight)
            except ValueError as e:
                raise InputError(f"{where}: {e}") from None
            left_out |= dict.fromkeys(_left_out(case, found, tensors))
            for f in found:
                del held[f], what[f]
            for target, value in values:
                new = _respelled(said[found[0]], target)
                if new in made:
                    raise InputError(f"--map: two tensors of {place} become {new!r}; give names that differ")
                made[new] = value, Tensor(new, target, slot)
    for new, (value, tensor) in made.items():
        if new in held:
            raise InputError(f"--map: two tensors of {place} become {new!r}; give names that differ")
        held[new], what[new] = value, tensor
    return Renamed(held, what, tuple(left_out))


def _cases(rule: Rule, parameters: Mapping[str, object], place: Path) -> Iterator[_Case]:
    """InputError where the rule fits no parameter, or a stack has a gap."""
    first = rule.sources[0]
    fits: dict[str, list[tuple[int, ...]]] = {}  # text that * stands for → numbers that each # does
    if "*" not in first and "#" not in first:
        fits[""] = [()] if first in parameters else []
    else:
        for name in parameters:
            found = texts(first, name)
            if found is not None:
                fits.setdefault(found[0], []).append(found[1])
    if not any(fits.values()):
        raise InputError(f"--map: {first!r} is no tensor of {place}; it has {listed(parameters)}")
    for text, numbers in fits.items():
        if rule.apart:
            yield _Case(rule, text, (_put(rule.whole, text),))
            continue
        counts = tuple(max(n) + 1 for n in zip(*numbers, strict=True))
        if np.prod(counts, dtype=object) != len(numbers):
            gap = next(i for i in itertools.product(*map(range, counts)) if i not in set(numbers))
            raise InputError(f"--map: {_put(rule.whole, text)!r} needs {_put(first, text, gap)!r}, which {place} lacks")
        indices = np.ndindex(*counts)
        sources = tuple(_put(leaf.name, text, i) for i in indices for leaf in rule.leaves)
        yield _Case(rule, text, sources, counts)


def _put(pattern: str, text: str, numbers: Sequence[int] = ()) -> str:
    """A pattern with what `*` and each `#` stand for."""
    front, star, back = pattern.partition("*")
    for n in numbers:
        if "#" in front:
            front = front.replace("#", str(n), 1)
        else:
            back = back.replace("#", str(n), 1)
    return front + (text if star else "") + back


def _respelled(tensor: Tensor, target: str) -> str:
    """The name of a parameter or slot with another parameter in it."""
    name, parameter = tensor.name, tensor.parameter
    if not parameter or name == parameter:
        return target
    if name.endswith(f".{parameter}"):
        return name[: -len(parameter)] + target
    front, _, back = name.rpartition(f"{parameter}.")
    return f"{front}{target}.{back}"


def _made(case: _Case, parts: Sequence[Held], slot: str, weight: Held) -> list[tuple[str, Held]]:
    """(parameter, its tensor) that the rule makes; `weight`: of the first source, whose slot the first part may be.

    ValueError where parts do not go together.
    """
    rule, width = case.rule, len(case.rule.leaves)
    count = bool(slot) and all(not h.shape for h in parts)  # of steps, which all have
    if not rule.apart:
        whole = _put(rule.whole, case.text)
        if count:
            return [(whole, _alike(parts))]
        changed = [_changed(h, rule.leaves[i % width]) for i, h in enumerate(parts)]
        rows = [changed[i : i + width] for i in range(0, len(changed), width)]
        joined = [shaping.interleaved(row, rule.dim, rule.groups) if width > 1 else row[0] for row in rows]
        return [(whole, shaping.stacked(joined, case.counts) if rule.front else joined[0])]
    if rule.front > len(weight.shape):
        raise ValueError(f"expected at least {rule.front} dimensions to take apart, found {list(weight.shape)}")
    indices = list(np.ndindex(*weight.shape[: rule.front]))
    names = [[_put(leaf.name, case.text, i) for leaf in rule.leaves] for i in indices]
    if count:
        return [(n, parts[0]) for row in names for n in row]
    out = []
    for row, h in zip(names, shaping.unstacked(parts[0], rule.front) if rule.front else parts, strict=True):
        split = shaping.parted(h, rule.dim, rule.sizes, rule.groups) if rule.sizes else [h]
        out += [(n, _changed(s, leaf)) for n, s, leaf in zip(row, split, rule.leaves, strict=True)]
    return out


def _changed(h: Held, leaf: Leaf) -> Held:
    if leaf.transposed:
        h = shaping.turned(h)
    if leaf.grouped is not None:
        h = shaping.grouped(h, leaf.dim, *leaf.grouped)
    if leaf.ungrouped is not None:
        h = shaping.ungrouped(h, leaf.dim, *leaf.ungrouped)
    if leaf.padded:
        h = shaping.padded(h, leaf.dim, leaf.padded)
    return shaping.cut(h, leaf.dim, leaf.cut) if leaf.cut else h


def _left_out(case: _Case, names: Sequence[str], tensors: Mapping[str, Held]) -> Iterator[str]:
    """What the rule's cuts leave out."""
    leaves = case.rule.leaves
    for i, name in enumerate(names):
        shape = tensors[name].shape
        for leaf in leaves if case.rule.apart else leaves[i % len(leaves) : i % len(leaves) + 1]:
            sizes = shape[case.rule.front :] if case.rule.apart else shape
            sizes = sizes[::-1] if leaf.transposed else sizes
            if leaf.cut and leaf.dim < len(sizes) and sizes[leaf.dim] > leaf.cut and not case.rule.sizes:
                yield f"{name} ({leaf.cut}:{sizes[leaf.dim]} of dimension {leaf.dim})"


def _alike(parts: Sequence[Held]) -> Held:
    """A count that all have.  ValueError where they differ: one number could not say them."""
    with Files() as files:
        found = {files.read(h.arrays[int(h.pieces.holders[0])], ()).item() for h in parts}
    if len(found) > 1:
        raise ValueError(
            f"expected one count of steps, found {listed(map(str, sorted(found)))}; leave them out with --skip"
        )
    return parts[0]
