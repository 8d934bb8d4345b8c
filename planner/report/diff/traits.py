"""What an operator does in a plan: in a form to compare, and in words."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Final

from planner.ir import DeviceMesh
from planner.planning import PlanDocument
from planner.planning.compare import Form
from planner.planning.document import InnerDocument, LayoutDocument, OperatorDocument, RedistributionDocument
from planner.redistribute.steps import FREE
from planner.report.diff.ledger import Ledger

__all__ = ["TRAITS", "Side", "Word", "layout_text", "strategy_text"]

TRAITS: Final = (
    "strategy",
    "operands",
    "results",
    "gradients",
    "inner",
    "redistributions",
    "parameters",
    "recompute",
)


@dataclass(frozen=True, slots=True, order=True)
class Word:
    """One thing that an operator does; `detail` is left out where there is little room."""

    text: str
    detail: str = ""

    def __str__(self) -> str:
        return f"{self.text} {self.detail}" if self.detail else self.text


@dataclass(frozen=True, slots=True)
class Side:
    """One of the two plans.  `recomputed`: operators that run again in the backward pass."""

    plan: PlanDocument
    form: Form
    ledger: Ledger
    recomputed: frozenset[str]

    @classmethod
    def of(cls, plan: PlanDocument, form: Form, ledger: Ledger) -> Side:
        return cls(plan, form, ledger, frozenset(n for block in plan.schedule.recompute for n in block))

    @property
    def _mesh(self) -> DeviceMesh | None:
        """For words with sizes, which those of equal meshes need not have."""
        return None if self.form.place is not None else self.plan.mesh

    def keys(self, name: str) -> tuple[Hashable, ...]:
        """Equal to those of the other plan's operator, trait by trait, where both do the same."""
        op, form = self.plan.operators[name], self.form
        return (
            form.strategy(op),
            tuple(map(form.layout, op.operands)),
            tuple(map(form.layout, op.results)),
            tuple(form.layout(x) for x in self._gradients(op)),
            tuple((c.kind, form.axes(c.axes), c.backward, c.count) for c in op.inner),
            tuple(self._move(op, r) for r in self.ledger.redistributions(name)),
            tuple(self._stored(op, p) for p in self.ledger.parameters(name)),
            name in self.recomputed,
        )

    def words(self, name: str, trait: str) -> tuple[Word, ...]:
        """The trait, a word for each thing; none where there is nothing."""
        op, mesh = self.plan.operators[name], self._mesh
        if trait == "strategy":
            return (Word(strategy_text(op, self.plan.mesh, mesh is not None)),)
        if trait == "inner":
            return tuple(self._inner_word(c) for c in op.inner)
        if trait == "redistributions":
            return tuple(self._move_word(op, r) for r in self.ledger.redistributions(name))
        if trait == "parameters":
            stored = [(p, self.plan.parameters[p].stored) for p in self.ledger.parameters(name)]
            return tuple(Word(f"{_place(op, p)} {layout_text(x, mesh)}") for p, x in stored)
        if trait == "recompute":
            return (Word("run again in the backward pass"),) if name in self.recomputed else ()
        lies = {"operands": op.operands, "results": op.results, "gradients": self._gradients(op)}[trait]
        return tuple(Word(layout_text(x, mesh)) for x in lies)

    def _gradients(self, op: OperatorDocument) -> list[LayoutDocument | None]:
        """As the producer wants them, of what it makes."""
        tensors = self.plan.tensors
        return [tensors[t].gradient if t in tensors else None for t in op.outputs]

    def _move(self, op: OperatorDocument, r: RedistributionDocument) -> Hashable:
        form = self.form
        return (
            _place(op, r.tensor),
            r.direction,
            form.layout(r.source),
            form.layout(r.target),
            tuple((s.kind, form.axes(s.axes)) for s in r.steps),
        )

    def _move_word(self, op: OperatorDocument, r: RedistributionDocument) -> Word:
        paid = [s for s in r.steps if s.kind not in FREE] or r.steps
        how = ", ".join(f"{s.kind}({_axes(s.axes, self._mesh)})" for s in paid) or "nothing"
        what = f"{'gradient of ' if r.direction == 'gradient' else ''}{_place(op, r.tensor)}"
        return Word(f"{how} of {what}", f"{layout_text(r.source, self._mesh)} to {layout_text(r.target, self._mesh)}")

    def _stored(self, op: OperatorDocument, parameter: str) -> Hashable:
        p, form = self.plan.parameters[parameter], self.form
        lies = [form.layout(x) for x in (p.stored, p.gradient, p.optimizer)]
        return _place(op, parameter), *lies, tuple(map(form.layout, p.compute))

    def _inner_word(self, c: InnerDocument) -> Word:
        times = f" x {c.count}" if c.count > 1 else ""
        return Word(f"{c.kind}({_axes(c.axes, self._mesh)}){times}{' backward' if c.backward else ''}")


def strategy_text(op: OperatorDocument, mesh: DeviceMesh, sized: bool = False) -> str:
    """`m=x k=y`, as `planner search` prints it; `_` where every axis replicates; `m=x(4)` with sizes."""
    parts = []
    for axis, role in op.strategy.items():
        if role != "replicate" and mesh.sizes.get(axis, 1) > 1:
            factor = role.removeprefix("split:")
            parts.append(f"{factor}={_axes([axis], mesh if sized else None)}")
    return " ".join(parts) or "_"


def layout_text(x: LayoutDocument | None, mesh: DeviceMesh | None = None) -> str:
    """`[_,x.y]+z`; with sizes where a mesh is given; `-` for none."""
    if x is None:
        return "-"
    parts = x.parts or [1] * len(x.dims)
    dims = ",".join(
        (_axes(d, mesh) if d else "_") + (f":{n}" if n > 1 else "") for d, n in zip(x.dims, parts, strict=True)
    )
    tail = "".join(f"+{_axes([a], mesh)}" + ("" if op == "sum" else f"({op})") for a, op in x.partial.items())
    return f"[{dims}]{tail}"


def _axes(names: Sequence[str], mesh: DeviceMesh | None) -> str:
    text = ".".join(names)
    if mesh is None:
        return text
    size = 1
    for n in names:
        size *= mesh.sizes.get(n, 1)
    return f"{text}({size})"


def _place(op: OperatorDocument, tensor: str) -> str:
    """What the tensor is to the operator."""
    if tensor in op.outputs:
        i = op.outputs.index(tensor)
        return "result" if i == 0 else f"result {i}"
    if tensor in op.inputs:
        return f"operand {op.inputs.index(tensor)}"
    return "another"
