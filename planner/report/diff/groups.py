"""Changes of operators, equal ones together."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from planner.planning import PlanDocument
from planner.report.diff.ledger import Bill, total
from planner.report.diff.match import Matching
from planner.report.diff.traits import TRAITS, Side, Word

__all__ = ["Change", "Group", "Places", "Same", "compared", "moved", "pattern"]

_NUMBER = re.compile(r"(\d+)")


@dataclass(frozen=True, slots=True)
class Change:
    """One trait of an operator in both plans, a word for each thing."""

    trait: str
    before: tuple[Word, ...]
    after: tuple[Word, ...]


@dataclass(frozen=True, slots=True)
class Group:
    """Operators of one type at corresponding places that change alike.  `operators`: names in A and in B; `parameters`:
    those that they read first, by their names in B; `a`, `b`: what all of them answer for."""

    type: str
    place: str
    operators: tuple[tuple[str, str], ...]
    changes: tuple[Change, ...]
    parameters: tuple[str, ...]
    a: Bill
    b: Bill

    @property
    def delta(self) -> Bill:
        return self.b - self.a


@dataclass(frozen=True, slots=True)
class Same:
    """Operators of one type that do the same in both plans at another cost."""

    type: str
    operators: tuple[tuple[str, str], ...]
    a: Bill
    b: Bill


class Places:
    """Where an operator stands: its run of repeated blocks and its position in the block.

    A plan that does not tell its blocks has names that differ in their numbers alone stand at one place.
    """

    def __init__(self, plan: PlanDocument) -> None:
        self.repeated: list[list[list[str]]] = plan.model.repeated
        self._of = {
            n: (r, i) for r, blocks in enumerate(self.repeated) for block in blocks for i, n in enumerate(block)
        }

    def of(self, name: str) -> Hashable:
        if self.repeated:
            return self._of.get(name)
        return _NUMBER.sub("#", name)

    def run(self, name: str) -> int | None:
        """The run's number; None outside of all."""
        found = self._of.get(name)
        return None if found is None else found[0]


def compared(
    a: Side, b: Side, matching: Matching, unlike: Sequence[str] = ()
) -> tuple[list[Group], list[Same], list[Same]]:
    """Groups, largest effect on the objective first; what does the same at another cost, likewise; and what does the
    same at the same cost another number of times in a step, as it does with the parts `unlike` of the objective."""
    places = Places(a.plan)
    groups: dict[Hashable, list[tuple[str, str]]] = defaultdict(list)
    changed: dict[Hashable, list[str]] = {}
    same: dict[str, list[tuple[str, str]]] = defaultdict(list)
    often: dict[str, list[tuple[str, str]]] = defaultdict(list)
    for here, there in matching.pairs:
        before, after = a.keys(here), b.keys(there)
        kind = a.plan.operators[here].type
        if before == after:
            if a.ledger.bills[here] != b.ledger.bills[there]:
                same[kind].append((here, there))
            elif any(getattr(a.ledger.bills[here], p) for p in unlike):
                often[kind].append((here, there))
            continue
        key = kind, places.of(here), before, after
        groups[key].append((here, there))
        changed.setdefault(key, [t for t, x, y in zip(TRAITS, before, after, strict=True) if x != y])
    found = [_group(a, b, pairs, changed[key]) for key, pairs in groups.items()]
    others, equal = (
        [Same(kind, tuple(pairs), *_bills(a, b, pairs)) for kind, pairs in x.items()] for x in (same, often)
    )
    return (
        sorted(found, key=lambda g: -abs(g.delta.units)),
        sorted(others, key=lambda s: -abs((s.b - s.a).units)),
        equal,
    )


def _group(a: Side, b: Side, pairs: Sequence[tuple[str, str]], traits: Sequence[str]) -> Group:
    here, there = pairs[0]
    changes = tuple(Change(t, a.words(here, t), b.words(there, t)) for t in traits)
    held = dict.fromkeys(p for _, n in pairs for p in b.ledger.parameters(n))
    kind = a.plan.operators[here].type
    return Group(kind, _place(a, pairs), tuple(pairs), changes, tuple(held), *_bills(a, b, pairs))


def _place(a: Side, pairs: Sequence[tuple[str, str]]) -> str:
    """The operators' names, behind their modules where names do not say these."""
    names = [n for n, _ in pairs]
    modules = [a.plan.operators[n].module for n in names]
    names_text = pattern(names)
    return names_text if not modules[0] or modules[0] in names[0] else f"{pattern(modules)}: {names_text}"


def moved(groups: Sequence[Group]) -> dict[int, int]:
    """Numbers of groups that cancel each other in every part: the same redistributions, on another operator."""
    waiting: dict[tuple[int, tuple[int, ...]], list[int]] = defaultdict(list)
    found: dict[int, int] = {}
    for i, g in enumerate(groups):
        if not g.delta.units:
            continue
        opposite = waiting[len(g.operators), tuple(-v for v in g.delta.values())]
        if opposite:
            j = opposite.pop(0)
            found |= {i: j, j: i}
        else:
            waiting[len(g.operators), g.delta.values()].append(i)
    return found


def _bills(a: Side, b: Side, pairs: Sequence[tuple[str, str]]) -> tuple[Bill, Bill]:
    return total(a.ledger.bills[n] for n, _ in pairs), total(b.ledger.bills[n] for _, n in pairs)


def pattern(names: Sequence[str]) -> str:
    """One text for names that differ in numbers, `h.{0..11}.attn`; else the first and how many more."""
    if len(names) == 1:
        return names[0]
    parts = [_NUMBER.split(n) for n in names]
    if len({len(p) for p in parts}) > 1:
        return f"{names[0]} and {len(names) - 1} more"
    out = []
    for i, column in enumerate(zip(*parts, strict=True)):
        values = list(dict.fromkeys(column))
        if len(values) == 1:
            out.append(values[0])
        elif i % 2 == 0:
            return f"{names[0]} and {len(names) - 1} more"
        else:
            out.append("{" + _range([int(v) for v in values]) + "}")
    return "".join(out)


def _range(values: Sequence[int]) -> str:
    """`0..3,5`."""
    ordered = sorted(set(values))
    spans: list[list[int]] = []
    for v in ordered:
        if spans and v == spans[-1][1] + 1:
            spans[-1][1] = v
        else:
            spans.append([v, v])
    ranges = [f"{a}" if a == b else f"{a}..{b}" for a, b in spans]
    return ",".join(ranges[:4]) + (",…" if len(ranges) > 4 else "")
