"""Assignment -> Program.

Forward, in graph order: what an operator reads is loaded or converted before it, what it writes is converted
for all its readers behind it.  Backward, in reverse: a gradient is converted as soon as its last contribution
is there, so that the collectives of parameter gradients can overlap the operators that remain.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from planner.ir import DeviceMesh, Graph, Layout, Op, Role
from planner.lowering.program import Instruction, Load, Program, Redistribute, Run, Seed
from planner.pricing.assignment import Assignment, Redistribution
from planner.redistribute import RedistributionStep, StepKind
from planner.rules.rule import Rule
from planner.work.activity import gradient_sources

__all__ = ["lower"]


def lower(
    graph: Graph, mesh: DeviceMesh, rules: Mapping[str, Rule], active: frozenset[str], assignment: Assignment
) -> Program:
    """The program that does precisely what the assignment says.

    `rules` maps operator names to rules; `active` holds the tensors that carry a gradient.
    """
    return _Lowering(graph, mesh, rules, active, assignment).program()


class _Lowering:
    def __init__(
        self,
        graph: Graph,
        mesh: DeviceMesh,
        rules: Mapping[str, Rule],
        active: frozenset[str],
        assignment: Assignment,
    ) -> None:
        self.graph, self.mesh, self.rules, self.active = graph, mesh, rules, active
        self.assignment = assignment
        self.out: list[Instruction] = []
        self.loaded: set[tuple[str, Layout]] = set()
        self.final: dict[str, Layout] = {}
        self.again: dict[int, list[Op]] = {}  # blocks still to be run again
        for op in graph.ops:
            if op.name in assignment.blocks:
                self.again.setdefault(assignment.blocks[op.name], []).append(op)

    def program(self) -> Program:
        for op in self.graph.ops:
            self._forward(op)
        if self.active:
            self._backward()
        return Program(
            self.graph,
            self.mesh,
            self.rules,
            self.assignment.strategies,
            tuple(self.out),
            self.active,
            self.final,
        )

    def _redistribute(self, tensor: str, moves: Iterable[Redistribution]) -> None:
        self.out += [Redistribute(tensor, m.gradient, m.source, m.target, m.steps, m.reader) for m in moves]

    def _forward(self, op: Op) -> None:
        for slot, name in enumerate(op.inputs):
            if name:
                self._provide(op, slot, name)
        self.out.append(Run(op.name))
        for name in op.outputs:
            if name in self.assignment.redistributions:
                self._redistribute(name, self.assignment.redistributions[name].shared(gradient=False))

    def _provide(self, op: Op, slot: int, name: str) -> None:
        redistribution = self.assignment.redistributions.get(name)
        if redistribution is None:
            if name not in self.graph.producers:
                layout = self.assignment.strategies[op.name].operands[slot]
                self._load(name, layout or Layout.replicated(self.graph.tensors[name].rank))
            return
        if self.graph.tensors[name].role is Role.PARAMETER and (name, redistribution.produced) not in self.loaded:
            self.loaded.add((name, redistribution.produced))
            self.out.append(Load(name, redistribution.produced))
            self._redistribute(name, redistribution.shared(gradient=False))
        if slot == op.inputs.index(name):
            self._redistribute(name, redistribution.of_reader(op.name, gradient=False))

    def _load(self, name: str, layout: Layout) -> None:
        """Inputs and constants come in any layout; a pending sum is made from them for free."""
        bare = Layout(layout.dims, (), layout.parts)
        if (name, bare) not in self.loaded:
            self.loaded.add((name, bare))
            self.out.append(Load(name, bare))
        if (name, layout) not in self.loaded:
            self.loaded.add((name, layout))
            steps = []
            here = bare
            for axis, reduction in layout.partial:
                there = Layout(bare.dims, (*here.partial, (axis, reduction)), bare.parts)
                steps.append(RedistributionStep(StepKind.TO_PARTIAL, (axis,), here, there))
                here = there
            self.out.append(Redistribute(name, False, bare, layout, tuple(steps)))

    def _run_again(self, op: Op) -> None:
        """Recomputes the block of `op` before the first of its operators is differentiated."""
        for inside in self.again.pop(self.assignment.blocks.get(op.name, -1), ()):
            self._forward(inside)

    def _backward(self) -> None:
        redistributions = self.assignment.redistributions
        for name in gradient_sources(self.graph):
            wanted = redistributions[name].wanted if name in redistributions else None
            if wanted is not None:
                self.out.append(Seed(name, wanted))
        differentiated = [op for op in self.graph.ops if any(t in self.active for t in op.outputs)]
        first_reader = {t: op.name for op in reversed(differentiated) for t in op.inputs}
        for op in reversed(differentiated):
            self._run_again(op)
            for name in op.outputs:
                if name in self.active and name in redistributions:  # nothing is moved whose shape nobody knows
                    self._redistribute(name, redistributions[name].shared(gradient=True))
            self.out.append(Run(op.name, backward=True))
            for name in dict.fromkeys(op.inputs):
                if name not in self.active or name not in redistributions:
                    continue
                self._redistribute(name, redistributions[name].of_reader(op.name, gradient=True))
                if name in self.assignment.stored and first_reader[name] == op.name:
                    self._redistribute(name, redistributions[name].shared(gradient=True))
                    self.final[name] = self.assignment.stored[name]
