"""Faults of everything in a program that is no redistribution: loads, runs, seeds, and where gradients end up."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

import numpy as np

from planner.ir import Layout, Reduction
from planner.lowering import Instruction, Load, Redistribute, Run, Seed
from tests.mutation.collectives import shuffled, with_instructions
from tests.mutation.faults import Mutant, kind
from tests.mutation.subjects import Subject

__all__: list[str] = []

Change = Callable[[Instruction], "Iterable[Instruction] | None"]


def _each(subject: Subject, rng: np.random.Generator, change: Change) -> Iterator[Mutant]:
    listed = subject.program.instructions
    for k in shuffled(range(len(listed)), rng):
        new = change(listed[k])
        if new is not None:
            changed = with_instructions(subject.program, [*listed[:k], *new, *listed[k + 1 :]])
            yield Mutant(f"instruction {k}, {str(listed[k])[:120]}", changed)


def other_layout(layout: Layout, mesh_names: tuple[str, ...]) -> Layout:
    """Split otherwise: what was split is whole, and what was whole is split along its first dimension."""
    if any(layout.dims):
        return Layout(((),) * len(layout.dims), layout.partial)
    free = [n for n in mesh_names if n not in layout.partial_axes]
    if not layout.dims or not free:
        return Layout(layout.dims)
    return Layout(((free[0],), *layout.dims[1:]), layout.partial)


@kind("program")
def load_dropped(subject: Subject, rng: np.random.Generator) -> Iterator[Mutant]:
    yield from _each(subject, rng, lambda i: [] if isinstance(i, Load) else None)


@kind("program")
def load_in_another_layout(subject: Subject, rng: np.random.Generator) -> Iterator[Mutant]:
    names = subject.mesh.names
    yield from _each(
        subject, rng, lambda i: [replace(i, layout=other_layout(i.layout, names))] if isinstance(i, Load) else None
    )


@kind("program")
def load_repeated(subject: Subject, rng: np.random.Generator) -> Iterator[Mutant]:
    yield from _each(subject, rng, lambda i: [i, i] if isinstance(i, Load) else None)


@kind("program")
def operator_dropped(subject: Subject, rng: np.random.Generator) -> Iterator[Mutant]:
    yield from _each(subject, rng, lambda i: [] if isinstance(i, Run) and not i.backward else None)


@kind("program")
def operator_run_twice(subject: Subject, rng: np.random.Generator) -> Iterator[Mutant]:
    yield from _each(subject, rng, lambda i: [i, i] if isinstance(i, Run) and not i.backward else None)


@kind("program")
def operator_too_early(subject: Subject, rng: np.random.Generator) -> Iterator[Mutant]:
    listed = subject.program.instructions
    for k in shuffled(range(1, len(listed)), rng):
        if isinstance(listed[k], Run):
            order = [*listed[: k - 1], listed[k], listed[k - 1], *listed[k + 1 :]]
            yield Mutant(f"{listed[k]} before {listed[k - 1]}", with_instructions(subject.program, order))


@kind("program")
def backward_dropped(subject: Subject, rng: np.random.Generator) -> Iterator[Mutant]:
    yield from _each(subject, rng, lambda i: [] if isinstance(i, Run) and i.backward else None)


@kind("program")
def backward_run_twice(subject: Subject, rng: np.random.Generator) -> Iterator[Mutant]:
    yield from _each(subject, rng, lambda i: [i, i] if isinstance(i, Run) and i.backward else None)


@kind("program")
def backward_before_forward(subject: Subject, rng: np.random.Generator) -> Iterator[Mutant]:
    yield from _each(subject, rng, lambda i: [replace(i, backward=not i.backward)] if isinstance(i, Run) else None)


@kind("program")
def seed_dropped(subject: Subject, rng: np.random.Generator) -> Iterator[Mutant]:
    yield from _each(subject, rng, lambda i: [] if isinstance(i, Seed) else None)


@kind("program")
def seed_repeated(subject: Subject, rng: np.random.Generator) -> Iterator[Mutant]:
    yield from _each(subject, rng, lambda i: [i, i] if isinstance(i, Seed) else None)


@kind("program")
def seed_in_another_layout(subject: Subject, rng: np.random.Generator) -> Iterator[Mutant]:
    first = subject.mesh.names[0]

    def change(i: Instruction) -> Iterable[Instruction] | None:
        if not isinstance(i, Seed):
            return None
        partial = () if i.layout.partial else ((first, Reduction.SUM),)
        return [replace(i, layout=Layout(tuple(() for _ in i.layout.dims), partial))]

    yield from _each(subject, rng, change)


@kind("program")
def seed_at_another_tensor(subject: Subject, rng: np.random.Generator) -> Iterator[Mutant]:
    active = sorted(subject.program.active - set(subject.graph.outputs))

    def change(i: Instruction) -> Iterable[Instruction] | None:
        same = [t for t in active if isinstance(i, Seed) and subject.graph.tensors[t].rank == len(i.layout.dims)]
        return [replace(i, tensor=same[rng.integers(len(same))])] if same else None  # type: ignore[call-arg]

    yield from _each(subject, rng, change)


@kind("program")
def final_gradient_left_out(subject: Subject, rng: np.random.Generator) -> Iterator[Mutant]:
    final = subject.program.final_gradients
    for name in shuffled(final, rng):
        rest = {n: x for n, x in final.items() if n != name}
        yield Mutant(name, replace(subject.program, final_gradients=rest))


@kind("program")
def final_gradient_in_another_layout(subject: Subject, rng: np.random.Generator) -> Iterator[Mutant]:
    final = subject.program.final_gradients
    for name in shuffled(final, rng):
        changed = {**final, name: other_layout(final[name], subject.mesh.names)}
        yield Mutant(f"{name} as {final[name]}", replace(subject.program, final_gradients=changed))


@kind("program")
def final_gradient_left_pending(subject: Subject, rng: np.random.Generator) -> Iterator[Mutant]:
    """Its last redistribution is left out, and what is there before counts as the end."""
    listed = subject.program.instructions
    for name, layout in shuffled(subject.program.final_gradients.items(), rng):
        last = [
            i for i in listed if isinstance(i, Redistribute) and i.gradient and (i.tensor, i.target) == (name, layout)
        ]
        if len(last) == 1 and last[0].source.partial:
            final = {**subject.program.final_gradients, name: last[0].source}
            changed = with_instructions(subject.program, [i for i in listed if i is not last[0]])
            yield Mutant(f"{name} as {last[0].source}", replace(changed, final_gradients=final))


@kind("program")
def parameter_frozen(subject: Subject, rng: np.random.Generator) -> Iterator[Mutant]:
    """Nothing of its gradient is left: neither its redistributions nor its place, nor that it is trained."""
    program = subject.program
    for name in shuffled(program.final_gradients, rng):
        listed = [
            i for i in program.instructions if not (isinstance(i, Redistribute) and i.gradient and i.tensor == name)
        ]
        final = {n: x for n, x in program.final_gradients.items() if n != name}
        changed = replace(program, active=program.active - {name}, final_gradients=final)
        yield Mutant(name, with_instructions(changed, listed))


@kind("program")
def recomputation_dropped(subject: Subject, rng: np.random.Generator) -> Iterator[Mutant]:
    """An operator that is to run again in the backward pass does not."""
    listed, seen = subject.program.instructions, set[str]()
    again = []
    for k, i in enumerate(listed):
        if isinstance(i, Run) and not i.backward:
            if i.op in seen:
                again.append(k)
            seen.add(i.op)
    for k in shuffled(again, rng):
        yield Mutant(f"{listed[k]}", with_instructions(subject.program, [*listed[:k], *listed[k + 1 :]]))
