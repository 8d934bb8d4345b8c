"""The words of `--map`: what becomes of tensors.

    {"h.*.attn.weight": "layers.*.attention.weight",
     "lm_head.weight": {"name": "head", "transposed": true},
     "wte": {"name": "embedding", "padded": 50304},
     "layers.*.qkv.weight": {"joined": ["h.*.q.weight", "h.*.k.weight", "h.*.v.weight"], "dim": 0, "groups": 8},
     "layers.*.mlp.weight": {"parts": {"h.*.gate.weight": 2048, "h.*.up.weight": 2048}, "dim": 0},
     "decoder.norm": {"stacked": "h.#.norm.weight"},
     "decoder.qkv": {"stacked": {"joined": ["h.#.q", "h.#.k", "h.#.v"], "groups": 8}}}

A key is a name of the source, or with `joined` and `stacked` the name that several become.  `parts` and `unstacked` are
their inverses, `cut` is that of `padded`, `ungrouped` that of `grouped`, and `transposed` is its own.  One `*` stands
for any text, the same in all names; each `#` for a number from 0 on, and is a leading dimension of what is stacked.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from planner.errors import InputError

__all__ = ["Leaf", "Rule", "read_rules", "rules_of", "texts"]

_CHANGES: Final = ("transposed", "padded", "cut", "grouped", "ungrouped")
_MOST: Final = 1 << 40  # of a size


@dataclass(frozen=True, slots=True)
class Leaf:
    """A tensor, or with `#` in its name all that it stands for.

    What is done to it, in this order: `transposed`; `grouped` or `ungrouped`, (sizes, groups); `padded` to, or `cut`
    at, a size, along `dim`.
    """

    name: str
    transposed: bool = False
    dim: int = 0
    padded: int = 0
    cut: int = 0
    grouped: tuple[tuple[int, ...], int] | None = None
    ungrouped: tuple[tuple[int, ...], int] | None = None


@dataclass(frozen=True, slots=True)
class Rule:
    """Several `leaves` become the tensor `whole`, or it becomes them if it is taken `apart`.

    Leaves lie behind each other along `dim`, in `groups`, at `sizes` if it is taken apart; and under as many leading
    dimensions as their names have `#`.
    """

    whole: str
    leaves: tuple[Leaf, ...]
    apart: bool = False
    dim: int = 0
    groups: int = 1
    sizes: tuple[int, ...] = ()

    @property
    def sources(self) -> tuple[str, ...]:
        return (self.whole,) if self.apart else tuple(leaf.name for leaf in self.leaves)

    @property
    def front(self) -> int:
        """Leading dimensions."""
        return self.leaves[0].name.count("#")


def read_rules(file: Path) -> tuple[Rule, ...]:
    """InputError where the file is not as the module describes."""
    try:
        found = json.loads(file.read_text(encoding="utf-8"), object_pairs_hook=_once)
    except OSError as e:
        raise InputError(f"--map {file}: cannot be read: {e.strerror}") from None
    except (ValueError, RecursionError) as e:
        raise InputError(f"--map {file}: expected JSON, found {e}") from None
    return rules_of(found, f"--map {file}")


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object.  ValueError where a key stands in it twice: of two entries one would be passed over."""
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f"the key {key!r:.80} twice")
        found[key] = value
    return found


def rules_of(found: Any, where: str) -> tuple[Rule, ...]:
    """As `read_rules`, of what stands in such a file; `where` stands in messages."""
    if not isinstance(found, Mapping):
        raise InputError(f'{where}: expected an object such as {{"name in SRC": "name in DST"}}, found another')
    return tuple(_with_texts(f"{where}: {key!r}", _rule(f"{where}: {key!r}", str(key), value))
                 for key, value in found.items())  # fmt: skip


def _with_texts(where: str, rule: Rule) -> Rule:
    """The rule.  InputError where `*` stands in some of its names alone, and so for nothing in the others."""
    names = (rule.whole, *(leaf.name for leaf in rule.leaves))
    counts = {n.count("*") for n in names}
    if len(counts) > 1 or max(counts) > 1:
        raise InputError(f"{where}: expected one * in each name, or in none, found {', '.join(map(repr, names))}")
    return rule


def texts(pattern: str, name: str) -> tuple[str, tuple[int, ...]] | None:
    """(what `*` stands for, what each `#` stands for) where a name fits a pattern."""
    found = _compiled(pattern).fullmatch(name)
    if found is None:
        return None
    named = found.groupdict()
    return named.pop("text", ""), tuple(int(n) for n in named.values())


def _compiled(pattern: str) -> re.Pattern[str]:
    front, star, back = pattern.partition("*")
    out, numbers = "", 0
    for part in re.split(r"(#)", front) + (["*"] if star else []) + re.split(r"(#)", back):
        if part == "#":
            out += rf"(?P<n{numbers}>0|[1-9]\d{{0,8}})"
            numbers += 1
        else:
            out += r"(?P<text>.*)" if part == "*" else re.escape(part)
    return re.compile(out, re.DOTALL)


def _rule(where: str, key: str, value: Any) -> Rule:
    if isinstance(value, (str, list)):
        value = {"name": value}
    if not isinstance(value, Mapping):
        raise InputError(f"{where}: expected a name or an object, found {value!r:.60}")
    kinds = [k for k in ("stacked", "unstacked") if k in value]
    if kinds:
        _only(where, value, kinds)
        inner = value[kinds[0]]
        rule = _flat(where, key, {"name": inner} if isinstance(inner, str) else inner, kinds[0])
        fronts = {leaf.name.count("#") for leaf in rule.leaves}
        if len(fronts) != 1 or 0 in fronts or "#" in rule.whole:
            raise InputError(f"{where}: {kinds[0]}: expected as many # in each of its names and none in the key, found "
                             f"{', '.join(leaf.name for leaf in rule.leaves)}")  # fmt: skip
        return rule
    rule = _flat(where, key, value, "")
    if any("#" in n for n in (rule.whole, *(leaf.name for leaf in rule.leaves))):
        raise InputError(f"{where}: expected # in names of stacked or unstacked alone")
    return rule


def _flat(where: str, key: str, value: Any, stack: str) -> Rule:
    """A rule without the stack around it; in one, `stack` says which side the key is on."""
    if not isinstance(value, Mapping):
        raise InputError(f"{where}: expected a name or an object, found {value!r:.60}")
    dim = _number(where, value, "dim", 0, least=0, most=31)
    groups = _number(where, value, "groups", 1, least=1)
    if "joined" in value and stack != "unstacked":
        _only(where, value, ["joined", "dim", "groups"])
        names = value["joined"]
        if not isinstance(names, list) or not names:
            raise InputError(f'{where}: expected "name", "joined" or "parts", found {sorted(value)!r:.80}')
        return Rule(key, tuple(_leaf(where, n) for n in names), False, dim, groups)
    if "parts" in value and stack != "stacked":
        _only(where, value, ["parts", "dim", "groups"])
        parts = value["parts"]
        if (
            not isinstance(parts, Mapping)
            or not parts
            or not all(type(n) is int and 0 < n < _MOST for n in parts.values())
        ):
            raise InputError(f'{where}: expected "name", "joined" or "parts", found {sorted(value)!r:.80}')
        return Rule(key, tuple(Leaf(str(n)) for n in parts), True, dim, groups, tuple(parts.values()))
    if "name" not in value:
        raise InputError(f'{where}: expected "name", "joined" or "parts", found {sorted(map(str, value))!r:.80}')
    if "groups" in value:
        raise InputError(f"{where}: groups: expected it beside joined or parts, found it beside name")
    leaf = _leaf(where, value)
    if stack:
        return Rule(key, (leaf,), stack == "unstacked")
    return Rule(leaf.name, (_named(leaf, key),))  # the key is the source


def _named(leaf: Leaf, name: str) -> Leaf:
    return Leaf(name, leaf.transposed, leaf.dim, leaf.padded, leaf.cut, leaf.grouped, leaf.ungrouped)


def _leaf(where: str, value: Any) -> Leaf:
    if isinstance(value, str):
        return Leaf(value)
    if not isinstance(value, Mapping) or not isinstance(value.get("name"), str):
        raise InputError(f'{where}: expected a name, or an object with a "name", found {value!r:.60}')
    _only(where, value, ["name", "dim", *_CHANGES])
    transposed = value.get("transposed", False)
    if not isinstance(transposed, bool):
        raise InputError(f"{where}: expected true or false, found transposed: {transposed!r:.40}")
    pairs = {"padded", "cut"} <= value.keys(), {"grouped", "ungrouped"} <= value.keys()
    if any(pairs):
        both = "padded and cut" if pairs[0] else "grouped and ungrouped"
        raise InputError(f"{where}: {both}: expected one of them, found both")
    return Leaf(
        value["name"], transposed, _number(where, value, "dim", 0, least=0, most=31),
        _number(where, value, "padded", 0, least=1), _number(where, value, "cut", 0, least=1),
        _groups(where, value, "grouped"), _groups(where, value, "ungrouped"),
    )  # fmt: skip


def _groups(where: str, value: Mapping[str, Any], word: str) -> tuple[tuple[int, ...], int] | None:
    match value.get(word):
        case None:
            return None
        case {"sizes": [int(), *_] as sizes, "groups": int(groups), **rest} if not rest:
            if all(type(n) is int and 0 < n < _MOST for n in (*sizes, groups)):
                return tuple(sizes), groups
    raise InputError(f'{where}: {word}: expected {{"sizes": [...], "groups": N}}, found {value[word]!r:.60}')


def _number(where: str, value: Mapping[str, Any], word: str, default: int, *, least: int, most: int = _MOST) -> int:
    found = value.get(word, default)
    if type(found) is not int or (word in value and not least <= found <= most):
        what = "the number of a dimension from 0 on" if word == "dim" else f"a number from {least} on"
        raise InputError(f"{where}: {word}: expected {what}, found {found!r:.40}")
    return found


def _only(where: str, value: Mapping[str, Any], known: list[str]) -> None:
    unknown = next((k for k in value if k not in known), None)
    if unknown is not None:
        raise InputError(f"{where}: expected {', '.join(known)} alone, found the key {unknown!r}")
