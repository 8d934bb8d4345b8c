"""Faults of redistributions: steps that are missing, repeated, in another order, over other axes, of another kind."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import TypeVar

import numpy as np

from planner.ir import Layout, Reduction
from planner.lowering import Instruction, Program, Redistribute
from planner.redistribute import RedistributionStep, StepKind
from planner.redistribute.steps import FREE
from tests.mutation.faults import Mutant, kind
from tests.mutation.subjects import Subject

__all__ = ["shuffled", "with_instructions"]

T = TypeVar("T")
Change = Callable[[Redistribute], "Iterable[Instruction] | None"]


def shuffled(items: Iterable[T], rng: np.random.Generator) -> list[T]:
    """In an order drawn at random."""
    found = list(items)
    return [found[k] for k in rng.permutation(len(found))]


def with_instructions(program: Program, instructions: Iterable[Instruction]) -> Program:
    return replace(program, instructions=tuple(instructions))


def _each(
    subject: Subject, rng: np.random.Generator, change: Change, *, gradient: bool | None = None
) -> Iterator[Mutant]:
    """The program with one redistribution replaced."""
    listed = subject.program.instructions
    for k in shuffled(range(len(listed)), rng):
        move = listed[k]
        if not isinstance(move, Redistribute) or gradient not in (None, move.gradient):
            continue
        new = change(move)
        if new is not None:
            what = f"{'gradient of ' if move.gradient else ''}{move.tensor} {move.source} → {move.target}"
            yield Mutant(
                f"{what}: {' '.join(map(str, move.steps))}",
                with_instructions(subject.program, [*listed[:k], *new, *listed[k + 1 :]]),
            )


def _of_step(change: Callable[[RedistributionStep], RedistributionStep | None], rng: np.random.Generator) -> Change:
    """One step replaced; those behind it follow."""

    def apply(move: Redistribute) -> Iterable[Instruction] | None:
        for j in shuffled(range(len(move.steps)), rng):
            new = change(move.steps[j])
            if new is not None:
                return [replace(move, steps=(*move.steps[:j], new, *move.steps[j + 1 :]))]
        return None

    return apply


def _communicates(move: Redistribute) -> bool:
    return any(s.kind not in FREE for s in move.steps)


@kind("program")
def redistribution_dropped(subject: Subject, rng: np.random.Generator) -> Iterator[Mutant]:
    yield from _each(subject, rng, lambda m: [])


@kind("program")
def gradient_redistribution_dropped(subject: Subject, rng: np.random.Generator) -> Iterator[Mutant]:
    yield from _each(subject, rng, lambda m: [] if _communicates(m) else None, gradient=True)


@kind("program")
def redistribution_repeated(subject: Subject, rng: np.random.Generator) -> Iterator[Mutant]:
    yield from _each(subject, rng, lambda m: [m, m])


@kind("program")
def redistribution_without_steps(subject: Subject, rng: np.random.Generator) -> Iterator[Mutant]:
    yield from _each(subject, rng, lambda m: [replace(m, steps=())] if m.steps else None)


@kind("program")
def redistribution_goes_back(subject: Subject, rng: np.random.Generator) -> Iterator[Mutant]:
    yield from _each(subject, rng, lambda m: [replace(m, source=m.target, target=m.source)])


@kind("program")
def redistribution_of_the_value_for_the_gradient(subject: Subject, rng: np.random.Generator) -> Iterator[Mutant]:
    yield from _each(subject, rng, lambda m: [replace(m, gradient=not m.gradient)])


@kind("program")
def redistribution_too_early(subject: Subject, rng: np.random.Generator) -> Iterator[Mutant]:
    """It changes places with the instruction before it."""
    yield from _swapped(subject, rng, Redistribute)


@kind("program")
def first_step_dropped(subject: Subject, rng: np.random.Generator) -> Iterator[Mutant]:
    yield from _each(subject, rng, lambda m: [replace(m, steps=m.steps[1:])] if len(m.steps) > 1 else None)


@kind("program")
def last_step_dropped(subject: Subject, rng: np.random.Generator) -> Iterator[Mutant]:
    yield from _each(subject, rng, lambda m: [replace(m, steps=m.steps[:-1])] if m.steps else None)


@kind("program")
def step_repeated(subject: Subject, rng: np.random.Generator) -> Iterator[Mutant]:
    yield from _each(subject, rng, lambda m: [replace(m, steps=(*m.steps[:1], *m.steps))] if m.steps else None)


@kind("program")
def steps_in_reverse(subject: Subject, rng: np.random.Generator) -> Iterator[Mutant]:
    yield from _each(subject, rng, lambda m: [replace(m, steps=m.steps[::-1])] if len(m.steps) > 1 else None)


@kind("program")
def collective_over_another_axis(subject: Subject, rng: np.random.Generator) -> Iterator[Mutant]:
    names = subject.mesh.names

    def change(step: RedistributionStep) -> RedistributionStep | None:
        others = [n for n in names if n not in step.axes]
        return replace(step, axes=(*step.axes[:-1], others[0])) if others else None

    yield from _each(subject, rng, _of_step(change, rng))


@kind("program")
def collective_over_fewer_axes(subject: Subject, rng: np.random.Generator) -> Iterator[Mutant]:
    yield from _each(subject, rng, _of_step(lambda s: replace(s, axes=s.axes[:-1]), rng))


@kind("program")
def collective_over_more_axes(subject: Subject, rng: np.random.Generator) -> Iterator[Mutant]:
    names = subject.mesh.names

    def change(step: RedistributionStep) -> RedistributionStep | None:
        others = tuple(n for n in names if n not in step.axes)
        return replace(step, axes=(*step.axes, *others)) if others else None

    yield from _each(subject, rng, _of_step(change, rng))


@kind("program")
def collective_with_axes_in_reverse(subject: Subject, rng: np.random.Generator) -> Iterator[Mutant]:
    yield from _each(subject, rng, _of_step(lambda s: replace(s, axes=s.axes[::-1]) if len(s.axes) > 1 else None, rng))


@kind("program")
def collective_along_another_dimension(subject: Subject, rng: np.random.Generator) -> Iterator[Mutant]:
    def change(step: RedistributionStep) -> RedistributionStep | None:
        rank = len(step.source.dims)
        return replace(step, dim=(step.dim + 1) % rank) if step.dim >= 0 and rank > 1 else None

    yield from _each(subject, rng, _of_step(change, rng))


@kind("program")
def all_to_all_towards_another_dimension(subject: Subject, rng: np.random.Generator) -> Iterator[Mutant]:
    def change(step: RedistributionStep) -> RedistributionStep | None:
        rank = len(step.source.dims)
        return replace(step, to_dim=(step.to_dim + 1) % rank) if step.to_dim >= 0 and rank > 1 else None

    yield from _each(subject, rng, _of_step(change, rng))


@kind("program")
def collective_of_another_kind(subject: Subject, rng: np.random.Generator) -> Iterator[Mutant]:
    def change(step: RedistributionStep) -> RedistributionStep | None:
        kinds = [k for k in StepKind if k is not step.kind]
        return replace(step, kind=kinds[rng.integers(len(kinds))])

    yield from _each(subject, rng, _of_step(change, rng))


@kind("program")
def reduction_of_another_kind(subject: Subject, rng: np.random.Generator) -> Iterator[Mutant]:
    """A maximum in place of a sum, in the redistribution alone."""

    def other(layout: Layout) -> Layout:
        swap = {Reduction.SUM: Reduction.MAX, Reduction.MAX: Reduction.SUM, Reduction.MIN: Reduction.MAX}
        return Layout(layout.dims, tuple((a, swap[r]) for a, r in layout.partial))

    def change(step: RedistributionStep) -> RedistributionStep | None:
        reduces = step.kind in (StepKind.ALL_REDUCE, StepKind.REDUCE_SCATTER)
        return replace(step, source=other(step.source)) if reduces else None

    yield from _each(subject, rng, _of_step(change, rng))


@kind("program")
def reduction_of_another_kind_throughout(subject: Subject, rng: np.random.Generator) -> Iterator[Mutant]:
    """A maximum in place of a sum, in the redistribution and in the strategy of who writes the value."""
    listed = subject.program.instructions
    for name in shuffled(subject.program.strategies, rng):
        strategy = subject.program.strategies[name]
        for j, layout in enumerate(strategy.results):
            if layout is None or not layout.partial or layout.partial[0][1] is not Reduction.SUM:
                continue
            most = Layout(layout.dims, tuple((a, Reduction.MAX) for a in layout.partial_axes))
            t = subject.graph.op(name).outputs[j]
            moves = [m for m in listed if isinstance(m, Redistribute) and m.tensor == t and not m.gradient]
            if not moves or any(m.source != layout or len(m.steps) != 1 or m.target.partial for m in moves):
                continue
            changed = replace(strategy, results=(*strategy.results[:j], most, *strategy.results[j + 1 :]))

            def renamed(i: Instruction, most: Layout = most, moves: list[Redistribute] = moves) -> Instruction:
                if i not in moves or not isinstance(i, Redistribute):
                    return i
                return replace(i, source=most, steps=(replace(i.steps[0], source=most),))

            program = replace(
                subject.program,
                strategies={**subject.program.strategies, name: changed},
                instructions=tuple(map(renamed, listed)),
            )
            yield Mutant(f"{t} as {layout}", program)


def _swapped(subject: Subject, rng: np.random.Generator, what: type) -> Iterator[Mutant]:
    listed = subject.program.instructions
    for k in shuffled(range(1, len(listed)), rng):
        if isinstance(listed[k], what):
            order = [*listed[: k - 1], listed[k], listed[k - 1], *listed[k + 1 :]]
            yield Mutant(f"{listed[k]} before {listed[k - 1]}", with_instructions(subject.program, order))
