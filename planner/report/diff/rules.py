"""Changes by rule: operators of whatever module and layer that change in the same way, in words of the field.

What a rule costs is time that a device works or sends in a step, before anything is hidden behind computing: passes of
all micro-batches, shared out among the stages, and what happens once a step.
"""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from planner.planning.document import PlanDocument
from planner.redistribute.steps import FREE
from planner.report.degrees import Degrees
from planner.report.diff.groups import Group
from planner.report.diff.ledger import total
from planner.report.diff.model import Diff
from planner.report.diff.traits import Side
from planner.report.diff.work import Work

__all__ = ["Rule", "role", "rules"]

_RANKS = re.compile(r" over \d+")
_NUMBERED = re.compile(r"^(?:.*[./_])?\d+[./]")


@dataclass(frozen=True, slots=True)
class Rule:
    """`changes`: what changes, from what, to what; `roles`: module roles with how many operators each, those that cost
    most first; `units`: picoseconds of a step by which B is dearer, `moved`: bytes of which it sends more."""

    changes: tuple[tuple[str, str, str], ...]
    roles: tuple[tuple[str, int], ...]
    operators: int
    units: Fraction
    numbers: tuple[int, ...]

    @property
    def text(self) -> str:
        """`TP: DP 64 -> DP 8 x TP 8; weights: whole -> 64 shards`."""
        return "; ".join(f"{f'{what} ' if what else ''}{a} -> {b}" for what, a, b in self.changes)


def rules(d: Diff) -> list[Rule]:
    """Largest effect first."""
    sides = tuple(Side.of(p, f, x) for p, f, x in zip((d.a, d.b), d.forms, d.ledgers, strict=True))
    words = tuple(_Words(s) for s in sides)
    work = tuple(Work(p, d.unit_s) for p in (d.a, d.b))
    found: dict[tuple[tuple[str, str, str], ...], list[int]] = defaultdict(list)
    for i, g in enumerate(d.groups):
        first = g.operators[0]
        before, after = (w.of(n) for w, n in zip(words, first, strict=True))
        found[_told(before, after) or ((_traits(g), "one layout", "another"),)].append(i)
    out = []
    for told, numbers in found.items():
        roles: Counter[str] = Counter()
        units: dict[str, Fraction] = defaultdict(Fraction)
        for i in numbers:
            g = d.groups[i]
            named: dict[str, list[tuple[str, str]]] = defaultdict(list)
            for pair in g.operators:
                named[role(d.a, pair[0])].append(pair)
            for name, pairs in named.items():
                bills = (total(x.bills[p[k]] for p in pairs) for k, x in enumerate(d.ledgers))
                here, there = (w.of(b) for w, b in zip(work, bills, strict=True))
                roles[name] += len(pairs)
                units[name] += there - here
        ranked = sorted(roles, key=lambda r: -abs(units[r]))
        out.append(
            Rule(
                told,
                tuple((r, roles[r]) for r in ranked),
                sum(roles.values()),
                sum(units.values(), Fraction()),
                tuple(numbers),
            )
        )
    return sorted(out, key=lambda r: -abs(r.units))


def role(plan: PlanDocument, name: str) -> str:
    """What an operator is in its block, whichever block: its module behind the last number of the path."""
    module = plan.operators[name].module.replace("/", ".").strip(".")
    path = module or name.replace("/", ".").strip(".")
    short = _NUMBERED.sub("", f"{path}.").strip(".")
    return short or "block"


def _told(before: dict[str, str], after: dict[str, str]) -> tuple[tuple[str, str, str], ...]:
    """The aspects that are not the same; among how many ranks collectives run follows from the rest, and is told where
    nothing else is."""
    rough = [{k: _joined(_RANKS.sub("", v).split(" + ")) for k, v in x.items()} for x in (before, after)]
    told = tuple((k, rough[0][k], rough[1][k]) for k in before if rough[0][k] != rough[1][k] and k != "reads")
    return told or tuple((k, before[k], after[k]) for k in before if before[k] != after[k])


def _traits(g: Group) -> str:
    return " and ".join(c.trait for c in g.changes) or "results"


class _Words:
    """What an operator does in one of the plans, aspect by aspect."""

    def __init__(self, side: Side) -> None:
        self.side, self.plan = side, side.plan
        self.degrees = Degrees(side.plan)

    def of(self, name: str) -> dict[str, str]:
        op = self.plan.operators[name]
        moved: dict[str, list[str]] = {"all": [], "weights": [], "gradients": [], "activations": []}
        for r in self.side.ledger.redistributions(name):
            kind = "activations"
            if r.tensor in self.plan.parameters:
                kind = "gradients" if r.direction == "gradient" else "weights"
            moved[kind] += [self._collective(s.kind, s.axes) for s in r.steps if s.kind not in FREE]
        held = [self.plan.parameters[p] for p in self.side.ledger.parameters(name)]
        stored = [p.stored.layout().shards(self.plan.mesh) for p in held]
        read = [p.compute[0].layout().shards(self.plan.mesh) for p in held if p.compute]
        return {
            "": self.degrees.text(op),
            "weights": _shards(stored),
            "reads": _shards(read),
            "gathers": _joined(moved["weights"]),
            "gradient sums": _joined(moved["gradients"]),
            "activations": _joined(moved["activations"]),
            "inside": _joined([self._collective(c.kind, c.axes) for c in op.inner]),
            "recomputed": "yes" if name in self.side.recomputed else "no",
        }

    def _collective(self, kind: str, axes: Sequence[str]) -> str:
        return f"{kind.replace('_', '-')} over {math.prod(self.plan.mesh.sizes.get(a, 1) for a in axes)}"


def _shards(counts: Sequence[int]) -> str:
    most = max(counts, default=0)
    return "none" if not most else "whole" if most == 1 else f"in {most} shards"


def _joined(names: Sequence[str]) -> str:
    return " + ".join(sorted(set(names))) or "none"
