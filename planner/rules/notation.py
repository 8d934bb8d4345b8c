"""The notation in which sharding rules are written.

    b... m k, b... k n -> b... m n          MatMul
    n (g i) *..., (g o) i *..., +(g o) -> n (g o) *...   Conv

Grammar (white space separates the dimensions of a tensor, commas the tensors):

    rule      = tensors "->" tensors
    tensors   = tensor { "," tensor }
    tensor    = "-"                        takes no part in sharding (axes, a target shape)
              | [ "+" ] { dimension }      "+": added to the result (a bias); no dimension: a scalar
    dimension = factor                     a named index dimension
              | name "..." [ "!" ]         any number of them, aligned to the right as numpy broadcasts;
                                           at most one ellipsis per tensor; they are named name0, name1, …
              | "(" factor factor … ")"    composite: row-major, the first factor is the most major
              | "1"                        a dimension of size one
              | "*" | "*..."               one or any number of unnamed dimensions that are never split
    factor    = name [ "!" ]               "!": may never be split (one mark is enough for the whole rule)
    name      = letter { letter | digit | "_" }

A factor that no result has is contracted.  An operand's dimension of size one, where the factor is
larger, is broadcast: it carries no factor.  Tensors that the operator lacks (absent optionals) are
skipped; operands beyond those written take no part.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from planner.rules.rule import Dims, Rule

__all__ = ["Expansion", "MismatchError", "NotationError", "Shape", "describe", "expand", "labels", "parse"]

Shape = tuple[int, ...]

_TOKEN = re.compile(r"\s*(?:(?P<name>[A-Za-z][A-Za-z0-9_]*)|(?P<mark>->|\.\.\.|[-+,()!*1]))")


class NotationError(ValueError):
    """A rule's text does not follow the grammar."""


class MismatchError(ValueError):
    """The shapes of an operator do not fit its rule."""


@dataclass(frozen=True, slots=True)
class _Dimension:
    """`factors` from major to minor; none of them for an unnamed dimension or one of size one."""

    factors: tuple[str, ...] = ()
    ellipsis: bool = False
    one: bool = False


@dataclass(frozen=True, slots=True)
class _Tensor:
    dimensions: tuple[_Dimension, ...]
    absent: bool = False
    additive: bool = False


@dataclass(frozen=True, slots=True)
class Notation:
    """A parsed rule.  `whole` holds factor and ellipsis names that carry the mark `!`."""

    text: str
    operands: tuple[_Tensor, ...]
    results: tuple[_Tensor, ...]
    whole: frozenset[str]


@dataclass(frozen=True, slots=True)
class Expansion:
    """A notation bound to shapes: see `Rule` for the meaning of the fields."""

    factors: dict[str, int]
    operands: tuple[Dims | None, ...]
    results: tuple[Dims | None, ...]
    whole: frozenset[str]
    additive: frozenset[int]


class _Parser:
    def __init__(self, text: str) -> None:
        self.text = text
        self.tokens = list(self._scan())
        self.at = 0
        self.whole: set[str] = set()

    def _scan(self) -> Iterator[tuple[str, int]]:
        position, end = 0, len(self.text.rstrip())
        while position < end:
            match = _TOKEN.match(self.text, position)
            if match is None:
                gap = len(self.text[position:]) - len(self.text[position:].lstrip())
                raise self._error("a name or one of -> ... - + , ( ) ! * 1", position + gap)
            token = match.group("name") or match.group("mark")
            yield token, match.end() - len(token)
            position = match.end()

    def _error(self, expected: str, position: int) -> NotationError:
        found = self.text[position : position + 8].split(" ")[0] or "the end"
        return NotationError(
            f"rule {self.text!r}, position {position}: expected {expected}, found {found!r}; see planner.rules.notation"
        )

    def fail(self, expected: str) -> NotationError:
        return self._error(expected, self.tokens[self.at][1] if self.at < len(self.tokens) else len(self.text))

    def peek(self) -> str:
        return self.tokens[self.at][0] if self.at < len(self.tokens) else ""

    def take(self, *expected: str) -> bool:
        if self.peek() in expected and self.peek():
            self.at += 1
            return True
        return False

    def parse(self) -> Notation:
        operands = self.tensors()
        if not self.take("->"):
            raise self.fail("'->'")
        results = self.tensors()
        if self.peek():
            raise self.fail("the end")
        return Notation(self.text, operands, results, frozenset(self.whole))

    def tensors(self) -> tuple[_Tensor, ...]:
        found = [self.tensor()]
        while self.take(","):
            found.append(self.tensor())
        return tuple(found)

    def tensor(self) -> _Tensor:
        if self.take("-"):
            return _Tensor((), absent=True)
        additive = self.take("+")
        dimensions: list[_Dimension] = []
        while self.peek() not in ("", ",", "->"):
            start = self.at
            dimensions.append(self.dimension())
            if sum(d.ellipsis for d in dimensions) > 1:
                self.at = start
                raise self.fail("at most one ellipsis in a tensor")
        return _Tensor(tuple(dimensions), additive=additive)

    def dimension(self) -> _Dimension:
        if self.take("1"):
            return _Dimension(one=True)
        if self.take("*"):
            return _Dimension(ellipsis=self.take("..."))
        if self.take("("):
            factors = [self.factor()]
            while not self.take(")"):
                factors.append(self.factor())
            return _Dimension(tuple(factors))
        name = self.name()
        ellipsis = self.take("...")
        if self.take("!"):
            self.whole.add(name)
        return _Dimension((name,), ellipsis)

    def factor(self) -> str:
        name = self.name()
        if self.take("!"):
            self.whole.add(name)
        return name

    def name(self) -> str:
        token = self.peek()
        if not token[:1].isalpha():
            raise self.fail("a factor")
        self.at += 1
        return token


@lru_cache(maxsize=4096)
def parse(text: str) -> Notation:
    """The notation of a rule.  NotationError, with text and position, where it breaks the grammar."""
    return _Parser(text).parse()


def labels(prefix: str, count: int, *, whole: bool = False) -> str:
    """`count` factors in notation: `d0 d1 d2`."""
    return " ".join(f"{prefix}{i}{'!' if whole else ''}" for i in range(count))


def expand(
    text: str,
    operands: Sequence[Shape | None],
    results: Sequence[Shape | None],
    sizes: Mapping[str, int] | None = None,
) -> Expansion:
    """Bind a rule to the shapes of an operator (None: absent tensors).

    `sizes` states factors of composite dimensions that no plain dimension reveals; of one composite
    at most one factor may remain to be inferred.  MismatchError where shapes and rule disagree.
    """
    notation = parse(text)
    written = [*_pair(notation.operands, operands), *_pair(notation.results, results)]
    depth: dict[str, int] = {}  # ellipsis → the largest number of dimensions that it stands for
    for tensor, shape in written:
        for d in tensor.dimensions if tensor is not None and shape is not None else ():
            if d.ellipsis and tensor is not None and shape is not None:
                count = len(shape) - len(tensor.dimensions) + 1
                if d.factors:
                    depth[d.factors[0]] = max(depth.get(d.factors[0], 0), count)
    spelled = [None if t is None or s is None else _spell(notation, t, s, depth) for t, s in written]
    factors = _sizes(text, spelled, [s for _, s in written], dict(sizes or {}))
    bound: list[Dims | None] = []
    for i, ((_, shape), dims) in enumerate(zip(written, spelled, strict=True)):
        bound.append(
            None
            if dims is None or shape is None
            else tuple(
                _carried(text, d, s, factors, result=i >= len(operands)) for d, s in zip(dims, shape, strict=True)
            )
        )
    whole = frozenset(
        f for f in factors if f in notation.whole or f.rstrip("0123456789") in notation.whole & set(depth)
    )
    additive = frozenset(
        i for i, t in enumerate(notation.operands) if t.additive and i < len(operands) and operands[i] is not None
    )
    return Expansion(factors, tuple(bound[: len(operands)]), tuple(bound[len(operands) :]), whole, additive)


def _pair(tensors: tuple[_Tensor, ...], shapes: Sequence[Shape | None]) -> list[tuple[_Tensor | None, Shape | None]]:
    present = [None if t.absent else t for t in tensors[: len(shapes)]]
    return list(zip([*present, *[None] * (len(shapes) - len(present))], shapes, strict=True))


def _spell(notation: Notation, tensor: _Tensor, shape: Shape, depth: Mapping[str, int]) -> list[_Dimension]:
    """The tensor's dimensions, ellipses written out."""
    fixed = sum(not d.ellipsis for d in tensor.dimensions)
    spare = len(shape) - fixed
    if spare < 0 or (spare > 0 and fixed == len(tensor.dimensions)):
        raise MismatchError(f"rule {notation.text!r} does not fit a tensor of shape {shape}")
    out: list[_Dimension] = []
    for d in tensor.dimensions:
        if not d.ellipsis:
            out.append(d)
        elif d.factors:
            longest = depth[d.factors[0]]
            out += [_Dimension((f"{d.factors[0]}{i}",)) for i in range(longest - spare, longest)]
        else:
            out += [_Dimension()] * spare
    return out


def _sizes(
    text: str, tensors: Sequence[list[_Dimension] | None], shapes: Sequence[Shape | None], known: dict[str, int]
) -> dict[str, int]:
    """Factor → size, in order of appearance: from plain dimensions first, then from composites."""
    order: dict[str, None] = {}
    composites: list[tuple[tuple[str, ...], int]] = []
    for dims, shape in zip(tensors, shapes, strict=True):
        if dims is None or shape is None:
            continue
        for d, size in zip(dims, shape, strict=True):
            order.update(dict.fromkeys(d.factors))
            if len(d.factors) == 1 and size >= 0:
                f = d.factors[0]
                if known.get(f, 1) == 1:
                    known[f] = size
                elif size not in (1, known[f]):
                    raise MismatchError(f"rule {text!r}: factor {f} has sizes {known[f]} and {size}")
            elif d.factors:
                composites.append((d.factors, size))
    for factors, size in sorted(composites, key=lambda c: -c[1]):  # broadcast ones reveal nothing: last
        unknown = [f for f in factors if f not in known]
        if len(unknown) == 1:
            rest = math.prod(known[f] for f in factors if f in known)
            if rest == 0 or size % rest:
                raise MismatchError(f"rule {text!r}: ({' '.join(factors)}) of size {size} is no multiple of {rest}")
            known[unknown[0]] = size // rest
        elif unknown:
            raise MismatchError(f"rule {text!r}: ({' '.join(factors)}) leaves the sizes of {unknown} open")
    return {f: known[f] for f in order}


def _carried(text: str, d: _Dimension, size: int, factors: Mapping[str, int], *, result: bool) -> tuple[str, ...]:
    if d.one and size != 1:
        raise MismatchError(f"rule {text!r}: expected a dimension of size 1, found {size}")
    expected = math.prod(factors[f] for f in d.factors)
    if d.factors and size != expected and (size != 1 or result):
        raise MismatchError(f"rule {text!r}: ({' '.join(d.factors)}) is {expected}, a dimension has {size}")
    return tuple(f for f in d.factors if factors[f] != 1) if size == expected else ()


def describe(rule: Rule) -> str:
    """A bound rule on one line: sizes, tensors, and what becomes of contracted factors.

    `m=4 k!=8: m k, k -> m | k sum | linear 0; 1`; factors marked `!` are never split.
    """

    def tensor(dims: Dims | None) -> str:
        if dims is None:
            return "-"
        words = ["_" if not d else d[0] if len(d) == 1 else f"({' '.join(d)})" for d in dims]
        return " ".join(words) or "scalar"

    sizes = " ".join(f"{f}{'!' if f not in rule.cuts else ''}={n}" for f, n in rule.factors.items() if n > 1)
    operands = ", ".join(("+" if i in rule.additive else "") + tensor(d) for i, d in enumerate(rule.operands))
    results = ", ".join(map(tensor, rule.results))
    lacking = [
        f
        for f, n in rule.factors.items()
        if n > 1 and f in rule.cuts and any(d is not None and all(f not in part for part in d) for d in rule.results)
    ]
    parts = [f"{sizes or 'whole'}: {operands} -> {results}"]
    if lacking:
        parts.append(", ".join(f"{f} {rule.combine(f)}" for f in lacking))
    if rule.linear:
        parts.append("linear " + "; ".join(" ".join(map(str, sorted(g))) for g in rule.linear))
    if rule.differentiable:
        parts.append("d " + " ".join(map(str, sorted(rule.differentiable))))
    return " | ".join(parts)
