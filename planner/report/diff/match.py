"""Which operator of one plan is which of the other."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from planner.planning import PlanDocument
from planner.planning.document import OperatorDocument

__all__ = ["Matching", "match"]


@dataclass(frozen=True, slots=True)
class Matching:
    """`pairs` in the order of A; `by_name`: how many of them bear the same name, the others correspond by module, type
    and position.  `only_a`, `only_b`: operators without a partner.  `parameters`: parameter of A → of B."""

    pairs: tuple[tuple[str, str], ...]
    by_name: int
    only_a: tuple[str, ...]
    only_b: tuple[str, ...]
    parameters: Mapping[str, str]

    @property
    def other_models(self) -> bool:
        """Whether more operators are without a partner than with one."""
        return max(len(self.only_a), len(self.only_b)) > len(self.pairs)


def match(a: PlanDocument, b: PlanDocument) -> Matching:
    """Operators of one name and type belong together; of the others those of one module and type, in order, where both
    plans have as many of these."""
    partner = {n: n for n, o in a.operators.items() if n in b.operators and b.operators[n].type == o.type}
    by_name = len(partner)
    taken = set(partner)
    here = _alike((n, o) for n, o in a.operators.items() if n not in partner)
    there = _alike((n, o) for n, o in b.operators.items() if n not in taken)
    for kind, names in here.items():
        others = there.get(kind, [])
        if len(others) == len(names):
            partner.update(zip(names, others, strict=True))
    taken = set(partner.values())
    return Matching(
        tuple((n, partner[n]) for n in a.operators if n in partner),
        by_name,
        tuple(n for n in a.operators if n not in partner),
        tuple(n for n in b.operators if n not in taken),
        _parameters(a, b, partner),
    )


def _alike(operators: Iterable[tuple[str, OperatorDocument]]) -> dict[tuple[str, str], list[str]]:
    found: dict[tuple[str, str], list[str]] = defaultdict(list)
    for name, op in operators:
        found[op.module, op.type].append(name)
    return found


def _parameters(a: PlanDocument, b: PlanDocument, partner: Mapping[str, str]) -> dict[str, str]:
    """By name, else by the operand that they are of operators that belong together."""
    found = {n: n for n in a.parameters if n in b.parameters}
    taken = set(found)
    for name, other in partner.items():
        for x, y in zip(a.operators[name].inputs, b.operators[other].inputs, strict=False):
            if x in a.parameters and y in b.parameters and x not in found and y not in taken:
                found[x] = y
                taken.add(y)
    return found
