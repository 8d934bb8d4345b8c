"""The operators of a plan as a tree that a reader opens step by step: stages, modules or repeated blocks, operators.

Modules are taken where the exporter kept them, repeated blocks of the plan elsewhere.  Neighbouring blocks whose
operators have equal shapes, strategies, layouts and redistributions stand together as one pile ("x 11, alike").
What is left in long rows is cut into segments of the program.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from planner.planning.document import LayoutDocument, PlanDocument
from planner.report.figures import Figures

__all__ = ["Node", "Tree", "alike", "grow"]

MANY = 48  # more members of a level are cut into segments
SEGMENT = 24  # operators of a segment
_FEW = 2  # operators of a module that stand for themselves
_NUMBERED = re.compile(r"^(.*?)(\d+)$", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Node:
    """`kind`: root, stage, module, block, pile, segment, operator or input.  `operators`: numbers of all below it, in
    program order.  `alike`: how many equal members a pile has."""

    kind: str
    title: str
    detail: str
    parent: int
    children: tuple[int, ...]
    operators: tuple[int, ...]
    alike: int = 0


@dataclass(frozen=True, slots=True)
class Tree:
    """`nodes`: operators first, in program order; then inputs; then groups, `root` the last.  `number`: operator or
    input name → node."""

    nodes: tuple[Node, ...]
    root: int
    operators: tuple[str, ...]
    number: Mapping[str, int]

    def path(self, node: int) -> list[int]:
        """From the node up to the root, both included."""
        out = [node]
        while self.nodes[out[-1]].parent >= 0:
            out.append(self.nodes[out[-1]].parent)
        return out


@dataclass(slots=True)
class _Draft:
    kind: str
    title: str
    members: list[_Draft | int] = field(default_factory=list)
    family: str = ""
    number: int = -1

    def operators(self) -> Iterator[int]:
        for m in self.members:
            if isinstance(m, int):
                yield m
            else:
                yield from m.operators()


@dataclass(slots=True)
class _Grower:
    plan: PlanDocument
    names: list[str]
    equal: list[int]  # operator → number of what it does, shapes, layouts and redistributions included

    def grow(self) -> list[_Draft | int]:
        everything = list(range(len(self.names)))
        stages = len(self.plan.stages)
        if stages == 1:
            return self._level(everything)
        stage = [self.plan.operators[n].stage for n in self.names]
        drafts = [
            _Draft("stage", f"stage {s}", self._level([i for i in everything if stage[i] == s])) for s in range(stages)
        ]
        return [d for d in drafts if d.members]

    def _level(self, items: Sequence[int]) -> list[_Draft | int]:
        named = sum(bool(self.plan.operators[self.names[i]].module) for i in items)
        members = self._modules(items) if 2 * named >= len(items) else self._blocks(items)
        return self._finished(members)

    def _modules(self, items: Sequence[int]) -> list[_Draft | int]:
        root = _Draft("module", "")
        known: dict[tuple[str, ...], _Draft] = {(): root}
        for i in items:
            parts = tuple(p for p in re.split(r"[./]", self.plan.operators[self.names[i]].module) if p)[:24]
            for depth in range(1, len(parts) + 1):
                if parts[:depth] not in known:
                    here = parts[depth - 1]
                    title = f"{parts[depth - 2]}.{here}" if here.isdigit() and depth > 1 else here
                    draft = _Draft("module", title)
                    known[parts[:depth]] = draft
                    known[parts[: depth - 1]].members.append(draft)
            known[parts].members.append(i)
        return self._joined(root).members

    def _joined(self, draft: _Draft) -> _Draft:
        """Chains of modules with one member are one; small modules are their operators."""
        members: list[_Draft | int] = []
        for m in draft.members:
            if isinstance(m, int):
                members.append(m)
                continue
            m = self._joined(m)
            if len(list(m.operators())) <= _FEW:
                members.extend(m.operators())
            else:
                members.append(m)
        if draft.title and len(members) == 1 and isinstance(members[0], _Draft):
            only = members[0]
            return _Draft(only.kind, _under(draft.title, only.title), only.members)
        draft.members = members
        return draft

    def _blocks(self, items: Sequence[int]) -> list[_Draft | int]:
        number = {self.names[i]: i for i in items}
        runs = self.plan.model.repeated
        inside: set[int] = set()
        members: list[_Draft | int] = []
        for r, run in enumerate(runs):
            family = f"block {_letters(r)}" if len(runs) > 1 else "block "
            for k, block in enumerate(run):
                here = [number[n] for n in block if n in number and number[n] not in inside]
                if here:
                    inside.update(here)
                    members.append(_Draft("block", f"{family}{k}", list(here), family, k))
        members.extend(i for i in items if i not in inside)
        return members

    def _finished(self, members: list[_Draft | int]) -> list[_Draft | int]:
        """Below as here: members in program order, equal neighbours piled, long rows cut."""
        for m in members:
            if isinstance(m, _Draft):
                found = _NUMBERED.match(m.title)
                if m.number < 0 and found is not None and len(found[2]) < 7:
                    m.family, m.number = found[1] or "*", int(found[2])
                m.members = self._finished(m.members)
                if len(m.members) == 1 and isinstance(m.members[0], _Draft) and m.kind == "module":
                    only = m.members[0]
                    m.kind, m.title, m.members = only.kind, _under(m.title, only.title), only.members
        members = sorted(self._piled(members), key=_first)
        return self._cut(members) if len(members) > MANY else members

    def _piled(self, members: list[_Draft | int]) -> list[_Draft | int]:
        families: dict[str, list[_Draft]] = {}
        for m in members:
            if isinstance(m, _Draft) and m.family and m.kind in ("module", "block"):
                families.setdefault(m.family, []).append(m)
        piled: dict[int, _Draft] = {}
        for drafts in families.values():
            drafts.sort(key=lambda d: d.number)
            stretch: list[_Draft] = []
            last: tuple[object, ...] = ()
            for d in [*drafts, None]:
                key = () if d is None else tuple(self.equal[i] for i in d.operators())
                if d is None or key != last or d.number != stretch[-1].number + 1:
                    if len(stretch) > 1:
                        pile = _pile(stretch)
                        piled.update({id(s): pile for s in stretch})
                    stretch = []
                if d is not None:
                    stretch.append(d)
                last = key
        out: dict[int, _Draft | int] = {}
        for m in members:
            chosen = m if isinstance(m, int) else piled.get(id(m), m)
            out[id(chosen) if isinstance(chosen, _Draft) else -1 - chosen] = chosen
        return list(out.values())

    def _cut(self, members: list[_Draft | int]) -> list[_Draft | int]:
        """Stretches of members as segments of the program; of very long ones again."""
        out: list[_Draft | int] = []
        pieces = -(-len(members) // SEGMENT)
        size = -(-len(members) // pieces)
        for start in range(0, len(members), size):
            piece = members[start : start + size]
            if len(piece) <= 3:
                out.extend(piece)
            else:
                out.append(_Draft("segment", self._types(piece), piece))
        return self._cut(out) if len(out) > MANY else out

    def _types(self, members: Sequence[_Draft | int]) -> str:
        numbers = [i for m in members for i in ((m,) if isinstance(m, int) else m.operators())]
        return kinds_of(self.plan, [self.names[i] for i in numbers])


def kinds_of(plan: PlanDocument, names: Sequence[str], most: int = 2) -> str:
    """The most frequent operator types, for a title."""
    count = Counter(plan.operators[n].type.rpartition("::")[2] for n in names)
    text = ", ".join(t for t, _ in count.most_common(most))
    return f"{text}, …" if len(count) > most else text


def grow(plan: PlanDocument, costs: Figures, also: Mapping[str, int] | None = None) -> Tree:
    """The tree of a plan's operators and of the inputs that they read.  `also`: numbers of operators that must be equal
    too for blocks to stand together."""
    names = list(plan.operators)
    read = {t for o in plan.operators.values() for t in o.inputs}
    inputs = [n for n in plan.inputs if n not in plan.parameters and n in read]
    equal = alike(plan, costs)
    if also is not None:
        known: dict[tuple[int, int], int] = {}
        equal = [known.setdefault((k, also.get(n, -1)), len(known)) for n, k in zip(names, equal, strict=True)]
    drafts = _Grower(plan, names, equal).grow()
    number = {n: len(names) + k for k, n in enumerate(inputs)}
    number.update({n: i for i, n in enumerate(names)})
    nodes: list[Node | None] = [None] * (len(names) + len(inputs))
    parents: dict[int, int] = {}

    def add(draft: _Draft, extra: Sequence[int] = ()) -> int:
        children = [m if isinstance(m, int) else add(m) for m in draft.members]
        nodes.append(None)
        here = len(nodes) - 1
        children = [*extra, *children]
        parents.update(dict.fromkeys(children, here))
        below = tuple(sorted(draft.operators()))
        alike = len(children) if draft.kind == "pile" else 0
        count = f"{len(below)} operator{'s' if len(below) != 1 else ''}"
        nodes[here] = Node(draft.kind, draft.title, count, -1, tuple(children), below, alike)
        return here

    root = add(_Draft("root", plan.model.name, drafts), [number[n] for n in inputs])
    for name, i in number.items():
        if i < len(names):
            o = plan.operators[name]
            place = [p for p in re.split(r"[./]", o.module) if p]
            detail = ".".join(place[-2:] if place[-1].isdigit() else place[-1:]) if place else name
            nodes[i] = Node("operator", o.type.rpartition("::")[2], detail, -1, (), (i,))
        else:
            nodes[i] = Node("input", name, "input", -1, (), ())
    finished = [
        Node(n.kind, n.title, n.detail, parents.get(i, -1), n.children, n.operators, n.alike)
        for i, n in enumerate(nodes)
        if n is not None
    ]
    return Tree(tuple(finished), root, tuple(names), number)


def _under(outer: str, inner: str) -> str:
    """`h` and `h.0` are `h.0`; `transformer` and `h` are `transformer.h`."""
    last = outer.rpartition(".")[2]
    return f"{outer}{inner[len(last) :]}" if inner.startswith(f"{last}.") else f"{outer}.{inner}"


def _letters(number: int) -> str:
    """A, B, …, Z, AA, AB, …: the names of runs."""
    text = ""
    number += 1
    while number:
        number, rest = divmod(number - 1, 26)
        text = chr(65 + rest) + text
    return text


def _first(member: _Draft | int) -> int:
    return member if isinstance(member, int) else min(member.operators())


def _pile(drafts: Sequence[_Draft]) -> _Draft:
    first, last = drafts[0], drafts[-1]
    found = _NUMBERED.match(first.title)
    stem = found[1] if found is not None else first.title + " "
    return _Draft("pile", f"{stem.replace('block ', 'blocks ')}{first.number} – {last.number}", list(drafts))


def alike(plan: PlanDocument, costs: Figures) -> list[int]:
    """Operators with equal numbers do the same on equal shapes in equal layouts, redistributions included."""
    moves: dict[str, list[object]] = {}
    for i, r in enumerate(plan.redistributions):
        steps = tuple((s.kind, tuple(s.axes), s.bytes) for s in r.steps)
        moves.setdefault(costs.owner[i], []).append((r.direction, _key(r.source), _key(r.target), steps))
    numbers: dict[object, int] = {}
    out = []
    for name, o in plan.operators.items():
        shapes = tuple(tuple(plan.tensors[t].shape or ()) if t in plan.tensors else () for t in (*o.inputs, *o.outputs))
        layouts = tuple(_key(x) for x in (*o.operands, *o.results))
        inner = tuple((c.kind, tuple(c.axes), c.bytes, c.backward, c.count) for c in o.inner)
        again = tuple(r.phase for r in o.runs)
        what = (o.type, tuple(o.strategy.items()), shapes, layouts, inner, again, tuple(moves.get(name, ())))
        out.append(numbers.setdefault(what, len(numbers)))
    return out


def _key(layout: LayoutDocument | None) -> object:
    if layout is None:
        return None
    return tuple(tuple(d) for d in layout.dims), tuple(layout.partial.items()), tuple(layout.parts)
