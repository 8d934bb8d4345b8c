"""Faults of a strategy: what one operator is said to read, to write and to do, while everything else stays."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, Literal

import numpy as np

from planner.ir import Layout
from planner.lowering import Instruction, Load, Program, Redistribute, Seed
from planner.rules.strategy import AxisRole, Strategy, bind
from tests.mutation.collectives import shuffled
from tests.mutation.faults import Mutant, kind
from tests.mutation.instructions import other_layout
from tests.mutation.subjects import Subject

__all__: list[str] = []

Field = Literal["operands", "results", "operand_gradients", "result_gradients"]


def _with(program: Program, name: str, strategy: Strategy) -> Program:
    return replace(program, strategies={**program.strategies, name: strategy})


def _each(
    subject: Subject, rng: np.random.Generator, change: Callable[[Strategy], Strategy | None]
) -> Iterator[Mutant]:
    for name in shuffled(subject.program.strategies, rng):
        strategy = subject.program.strategies[name]
        changed = change(strategy)
        if changed is not None and changed != strategy:
            what = f"{subject.graph.op(name).type} {name} ({strategy.text(subject.mesh)})"
            yield Mutant(what, _with(subject.program, name, changed))


def _each_layout(
    subject: Subject,
    rng: np.random.Generator,
    field: Field,
    change: Callable[[Layout], Layout | None],
    *,
    known: bool = False,
) -> Iterator[Mutant]:
    """One layout of a strategy changed; of gradients only those that flow."""
    for name in shuffled(subject.program.strategies, rng):
        strategy, op = subject.program.strategies[name], subject.graph.op(name)
        layouts: tuple[Layout | None, ...] = getattr(strategy, field)
        tensors = op.inputs if field.startswith("operand") else op.outputs
        for k in shuffled(range(len(layouts)), rng):
            layout, t = layouts[k], tensors[k]
            if layout is None or not t or (field.endswith("gradients") and t not in subject.program.active):
                continue
            if field == "operand_gradients" and k not in subject.program.rules[name].differentiable:
                continue
            new = change(layout)
            if new is not None and new != layout:
                fields: dict[str, Any] = {field: (*layouts[:k], new, *layouts[k + 1 :])}
                changed = replace(strategy, **fields)
                yield Mutant(f"{op.type} {name}: {t} {layout} → {new}", _with(subject.program, name, changed))
                break


def _otherwise(subject: Subject) -> Callable[[Layout], Layout | None]:
    return lambda layout: other_layout(layout, subject.mesh.names)


@kind("strategy")
def operator_split_otherwise(subject: Subject, rng: np.random.Generator) -> Iterator[Mutant]:
    """Another factor, with all layouts that follow from it."""
    for name in shuffled(subject.program.strategies, rng):
        strategy, rule = subject.program.strategies[name], subject.program.rules[name]
        for factor in shuffled((f for f, n in rule.factors.items() if n > 1 and f in rule.cuts), rng):
            roles = (AxisRole("split", factor=factor), *strategy.roles[1:])
            changed = bind(rule, subject.mesh, roles)
            if changed is not None and changed != strategy and roles != strategy.roles:
                what = f"{subject.graph.op(name).type} {name} ({strategy.text(subject.mesh)}) by {factor}"
                yield Mutant(what, _with(subject.program, name, changed))
                break


@kind("strategy")
def split_forgotten(subject: Subject, rng: np.random.Generator) -> Iterator[Mutant]:
    """The operator is not told which factors are split; its shards are."""
    yield from _each(subject, rng, lambda s: replace(s, splits=()) if s.splits else None)


@kind("strategy")
def split_over_another_axis(subject: Subject, rng: np.random.Generator) -> Iterator[Mutant]:
    names = subject.mesh.names

    def change(s: Strategy) -> Strategy | None:
        other = dict(zip(names, (*names[1:], names[0]), strict=True))
        return replace(s, splits=tuple((f, tuple(other[a] for a in axes)) for f, axes in s.splits))

    yield from _each(subject, rng, change)


@kind("strategy")
def scale_left_out(subject: Subject, rng: np.random.Generator) -> Iterator[Mutant]:
    yield from _each(subject, rng, lambda s: replace(s, scale=1.0))


@kind("strategy")
def scale_added(subject: Subject, rng: np.random.Generator) -> Iterator[Mutant]:
    yield from _each(subject, rng, lambda s: replace(s, scale=s.scale / subject.mesh.devices))


@kind("strategy")
def operand_read_in_another_layout(subject: Subject, rng: np.random.Generator) -> Iterator[Mutant]:
    yield from _each_layout(subject, rng, "operands", _otherwise(subject))


@kind("strategy")
def result_written_in_another_layout(subject: Subject, rng: np.random.Generator) -> Iterator[Mutant]:
    yield from _each_layout(subject, rng, "results", _otherwise(subject))


@kind("strategy")
def gradient_of_operand_in_another_layout(subject: Subject, rng: np.random.Generator) -> Iterator[Mutant]:
    yield from _each_layout(subject, rng, "operand_gradients", _otherwise(subject))


@kind("strategy")
def gradient_of_result_in_another_layout(subject: Subject, rng: np.random.Generator) -> Iterator[Mutant]:
    yield from _each_layout(subject, rng, "result_gradients", _otherwise(subject))


@kind("strategy")
def result_no_longer_pending(subject: Subject, rng: np.random.Generator) -> Iterator[Mutant]:
    yield from _each_layout(subject, rng, "results", lambda x: Layout(x.dims) if x.partial else None)


@kind("strategy")
def gradient_no_longer_pending(subject: Subject, rng: np.random.Generator) -> Iterator[Mutant]:
    yield from _each_layout(subject, rng, "operand_gradients", lambda x: Layout(x.dims) if x.partial else None)


@kind("strategy")
def operand_no_longer_pending(subject: Subject, rng: np.random.Generator) -> Iterator[Mutant]:
    yield from _each_layout(subject, rng, "operands", lambda x: Layout(x.dims) if x.partial else None)


def _throughout(program: Program, tensor: str, layout: Layout, new: Layout, *, gradient: bool) -> Program:
    """`layout` of one tensor is `new` wherever the program speaks of it; steps that come to nothing fall away."""
    graph = program.graph

    def at(names: tuple[str, ...], layouts: tuple[Layout | None, ...]) -> tuple[Layout | None, ...]:
        return tuple(new if t == tensor and x == layout else x for t, x in zip(names, layouts, strict=True))

    strategies = dict(program.strategies)
    for op in graph.ops:
        s = strategies[op.name]
        if gradient:
            given, taken = at(op.inputs, s.operand_gradients), at(op.outputs, s.result_gradients)
            strategies[op.name] = replace(s, operand_gradients=given, result_gradients=taken)
        else:
            strategies[op.name] = replace(s, operands=at(op.inputs, s.operands), results=at(op.outputs, s.results))
    listed: list[Instruction] = []
    for i in program.instructions:
        if isinstance(i, Redistribute) and i.tensor == tensor and i.gradient == gradient:
            steps = [
                replace(
                    s,
                    source=new if s.source == layout else s.source,
                    target=new if s.target == layout else s.target,
                )
                for s in i.steps
            ]
            source, target = (new if x == layout else x for x in (i.source, i.target))
            kept = tuple(s for s in steps if s.source != s.target)
            if source != target:
                listed.append(replace(i, source=source, target=target, steps=kept))
        elif isinstance(i, Seed if gradient else Load) and i.tensor == tensor and i.layout == layout:
            listed.append(replace(i, layout=new))
        else:
            listed.append(i)
    return replace(program, strategies=strategies, instructions=tuple(listed))


def _each_throughout(
    subject: Subject, rng: np.random.Generator, change: Callable[[Layout], Layout | None], *, gradient: bool
) -> Iterator[Mutant]:
    field: Field = "operand_gradients" if gradient else "results"
    for name in shuffled(subject.program.strategies, rng):
        op, strategy = subject.graph.op(name), subject.program.strategies[name]
        layouts: tuple[Layout | None, ...] = getattr(strategy, field)
        for t, layout in zip(op.inputs if gradient else op.outputs, layouts, strict=True):
            if not t or layout is None or (gradient and t not in subject.program.active):
                continue
            new = change(layout)
            if new is not None and new != layout:
                program = _throughout(subject.program, t, layout, new, gradient=gradient)
                yield Mutant(f"{op.type} {name}: {t} {layout} → {new}", program)
                break


@kind("strategy")
def result_no_longer_pending_throughout(subject: Subject, rng: np.random.Generator) -> Iterator[Mutant]:
    """Its readers take it as it is, and no redistribution reduces it."""
    yield from _each_throughout(subject, rng, lambda x: Layout(x.dims) if x.partial else None, gradient=False)


@kind("strategy")
def gradient_no_longer_pending_throughout(subject: Subject, rng: np.random.Generator) -> Iterator[Mutant]:
    yield from _each_throughout(subject, rng, lambda x: Layout(x.dims) if x.partial else None, gradient=True)


def _turned(layout: Layout) -> Layout | None:
    """Split along other dimensions."""
    return Layout((*layout.dims[1:], layout.dims[0]), layout.partial) if any(layout.dims) else None


@kind("strategy")
def result_split_along_another_dimension_throughout(subject: Subject, rng: np.random.Generator) -> Iterator[Mutant]:
    yield from _each_throughout(subject, rng, _turned, gradient=False)


@kind("strategy")
def gradient_split_along_another_dimension_throughout(subject: Subject, rng: np.random.Generator) -> Iterator[Mutant]:
    yield from _each_throughout(subject, rng, _turned, gradient=True)


def _as_one(layout: Layout) -> Layout | None:
    """Split as one dimension, no longer in each of its equal parts."""
    return Layout(layout.dims, layout.partial) if layout.parts else None


@kind("strategy")
def result_in_parts_split_as_one(subject: Subject, rng: np.random.Generator) -> Iterator[Mutant]:
    yield from _each_layout(subject, rng, "results", _as_one)


@kind("strategy")
def result_in_parts_split_as_one_throughout(subject: Subject, rng: np.random.Generator) -> Iterator[Mutant]:
    yield from _each_throughout(subject, rng, _as_one, gradient=False)


@kind("strategy")
def gradient_in_parts_split_as_one_throughout(subject: Subject, rng: np.random.Generator) -> Iterator[Mutant]:
    yield from _each_throughout(subject, rng, _as_one, gradient=True)
