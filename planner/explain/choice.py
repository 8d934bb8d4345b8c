"""An operator as planned, and what that costs by the plan's own figures: its runs, what it moves, the parameters it
reads."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from functools import cached_property

from planner.explain.document import ChoiceDocument, MoveDocument, ParameterCostDocument
from planner.planning import PlanDocument
from planner.planning.document import LayoutDocument, RedistributionDocument
from planner.planning.roles import role_from_text
from planner.report.figures import figures
from planner.rules.rule import Rule

__all__ = ["Costs"]


class Costs:
    """The objective of a plan, operator by operator and redistribution by redistribution; in seconds, with sums that
    are exact in units of the price resolution."""

    def __init__(self, plan: PlanDocument, rules: Mapping[str, Rule]) -> None:
        self.plan, self.rules = plan, rules
        self.unit_s = plan.cost.price_resolution_s

    @cached_property
    def _readers(self) -> Mapping[str, set[str]]:
        found: dict[str, set[str]] = defaultdict(set)
        for name, op in self.plan.operators.items():
            for tensor in op.inputs:
                found[tensor].add(name)
        return found

    @cached_property
    def _moves(self) -> Mapping[str, list[RedistributionDocument]]:
        """Those that take time, by tensor, in program order."""
        found: dict[str, list[RedistributionDocument]] = defaultdict(list)
        for r in self.plan.redistributions:
            if r.seconds > 0:
                found[r.tensor].append(r)
        return found

    def _sum(self, *seconds: float) -> float:
        return sum(round(s / self.unit_s) for s in seconds) * self.unit_s

    def _of(self, tensor: str, operator: str) -> list[RedistributionDocument]:
        return [r for r in self._moves.get(tensor, ()) if r.reader in ("", operator)]

    def _shared(self, r: RedistributionDocument) -> bool:
        return not r.reader and len(self._readers[r.tensor]) > 1

    @cached_property
    def _account(self) -> Mapping[str, Mapping[str, int]]:
        return figures(self.plan).of_operators()

    def own_s(self, operator: str) -> float:
        """What stands on its account in reports: runs, what it makes moved, its parameters.  The sum over operators is
        the objective."""
        return sum(self._account.get(operator, {}).values()) * self.unit_s

    def choice(self, operator: str, alike: int = 1) -> ChoiceDocument:
        plan, op, rule = self.plan, self.plan.operators[operator], self.rules[operator]
        reads = [t for t in dict.fromkeys(op.inputs) if t]
        phases = dict.fromkeys(r.phase for r in op.runs)
        return ChoiceDocument(
            operator=operator,
            type=op.type,
            source=op.source,
            module=op.module,
            strategy=op.strategy,
            split=split_of_roles(op.strategy, plan),
            rule=rule.text,
            factors=dict(rule.factors),
            operands=[layout_text(x) for x in op.operands],
            results=[layout_text(x) for x in op.results],
            runs_s={p: self._sum(*(r.seconds for r in op.runs if r.phase == p)) for p in phases},
            inside_s=self._sum(*(r.inside_s for r in op.runs)),
            inner=[
                f"{c.kind} over {'.'.join(c.axes)}{' in the backward pass' if c.backward else ''}"
                f"{f' x {c.count}' if c.count > 1 else ''}"
                for c in op.inner
            ],
            reads=[self.move(r) for t in reads if t not in plan.parameters for r in self._of(t, operator)],
            writes=[self.move(r) for t in op.outputs for r in self._moves.get(t, ())],
            parameters=[self._parameter(t, operator) for t in reads if t in plan.parameters],
            own_s=self.own_s(operator),
            alike=alike,
        )

    def _parameter(self, name: str, operator: str) -> ParameterCostDocument:
        moved = self._of(name, operator)
        return ParameterCostDocument(
            name=name,
            stored=layout_text(self.plan.parameters[name].stored) or "",
            gathered_s=self._sum(*(r.seconds for r in moved if r.direction == "forward")),
            synchronised_s=self._sum(*(r.seconds for r in moved if r.direction == "gradient")),
            optimizer_s=self.plan.parameters[name].optimizer_s,
            shared=len(self._readers[name]) > 1,
        )

    def move(self, r: RedistributionDocument) -> MoveDocument:
        return MoveDocument(
            tensor=r.tensor,
            direction=r.direction,
            reader=r.reader,
            source=layout_text(r.source) or "",
            target=layout_text(r.target) or "",
            collectives=[f"{s.kind} over {'.'.join(s.axes)}" for s in r.steps],
            seconds=r.seconds,
            shared=self._shared(r),
        )

    def dearest_moves(self, most: int) -> list[MoveDocument]:
        everything = [r for moved in self._moves.values() for r in moved]
        return [self.move(r) for r in sorted(everything, key=lambda r: -r.seconds)[:most]]


def layout_text(layout: LayoutDocument | None) -> str | None:
    return None if layout is None else str(layout.layout())


def split_of_roles(strategy: Mapping[str, str], plan: PlanDocument) -> dict[str, int]:
    """Factor → shards."""
    sizes = plan.mesh.sizes
    found: dict[str, int] = {}
    for axis, text in strategy.items():
        role = role_from_text(text)
        if role.kind == "split" and sizes[axis] > 1:
            found[role.factor] = found.get(role.factor, 1) * sizes[axis]
    return dict(sorted(found.items()))
