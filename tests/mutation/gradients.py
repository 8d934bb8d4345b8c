"""Faults of vector-Jacobian products, on which the whole model and the devices rely alike."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from unittest import mock

import numpy as np

from planner.kernels import gradients as registry
from planner.kernels.gradients import Call
from planner.kernels.shards import Array
from planner.lowering import Run
from tests.mutation.collectives import shuffled
from tests.mutation.faults import Effect, Fault, Mutant, kind
from tests.mutation.subjects import Subject

__all__: list[str] = []

Gradients = list["Array | None"]
Change = Callable[[Call, Gradients], Gradients]


def _types(subject: Subject, rng: np.random.Generator) -> list[str]:
    """Types of operators that are differentiated."""
    runs = (i.op for i in subject.program.instructions if isinstance(i, Run) and i.backward)
    found = dict.fromkeys(subject.graph.op(n).type for n in runs)
    return shuffled((t for t in found if t in registry._REGISTRY), rng)


def _each(subject: Subject, rng: np.random.Generator, change: Change) -> Iterator[Mutant]:
    for t in _types(subject, rng):
        yield Mutant(t, subject.program, _wrong(t, change))


def _wrong(type_: str, change: Change) -> Fault:
    @contextmanager
    def fault() -> Iterator[Effect]:
        effect = Effect()
        real = registry._REGISTRY[type_]

        def product(call: Call) -> Sequence[Array | None]:
            found = list(real(call))
            changed = change(call, list(found))
            for i, (a, b) in enumerate(zip(found, changed, strict=True)):
                if call.wants(i):
                    effect.note(a, b)
            return changed

        with mock.patch.dict(registry._REGISTRY, {type_: product}):
            yield effect

    return fault


def _all(change: Callable[[Array], Array]) -> Change:
    return lambda call, found: [None if g is None else np.asarray(change(np.asarray(g))) for g in found]


@kind("gradient")
def product_zero(subject: Subject, rng: np.random.Generator) -> Iterator[Mutant]:
    yield from _each(subject, rng, _all(np.zeros_like))


@kind("gradient")
def product_halved(subject: Subject, rng: np.random.Generator) -> Iterator[Mutant]:
    yield from _each(subject, rng, _all(lambda g: g / 2))


@kind("gradient")
def product_of_the_other_sign(subject: Subject, rng: np.random.Generator) -> Iterator[Mutant]:
    yield from _each(subject, rng, _all(np.negative))


@kind("gradient")
def product_off_by_a_percent(subject: Subject, rng: np.random.Generator) -> Iterator[Mutant]:
    yield from _each(subject, rng, _all(lambda g: g * 1.01))


@kind("gradient")
def product_rolled(subject: Subject, rng: np.random.Generator) -> Iterator[Mutant]:
    """Every gradient by one along its last dimension."""
    yield from _each(subject, rng, _all(lambda g: np.roll(g, 1, axis=-1) if g.ndim else g))


@kind("gradient")
def product_in_reverse(subject: Subject, rng: np.random.Generator) -> Iterator[Mutant]:
    yield from _each(subject, rng, _all(lambda g: np.flip(g)))


@kind("gradient")
def product_averaged(subject: Subject, rng: np.random.Generator) -> Iterator[Mutant]:
    """The same everywhere along the first dimension."""
    yield from _each(
        subject, rng, _all(lambda g: np.broadcast_to(g.mean(axis=0, keepdims=True), g.shape) if g.ndim else g)
    )


@kind("gradient")
def product_of_one_operand_missing(subject: Subject, rng: np.random.Generator) -> Iterator[Mutant]:
    """The last operand that has one gets none."""

    def change(call: Call, found: Gradients) -> Gradients:
        there = [i for i, g in enumerate(found) if g is not None and call.wants(i)]
        if len(there) > 1:
            found[there[-1]] = np.zeros_like(found[there[-1]])
        return found

    yield from _each(subject, rng, change)


@kind("gradient")
def products_of_two_operands_exchanged(subject: Subject, rng: np.random.Generator) -> Iterator[Mutant]:
    def change(call: Call, found: Gradients) -> Gradients:
        there = [i for i, g in enumerate(found) if g is not None and call.wants(i)]
        for a in there:
            for b in there:
                x, y = found[a], found[b]
                if a < b and x is not None and y is not None and x.shape == y.shape:
                    found[a], found[b] = y, x
                    return found
        return found

    yield from _each(subject, rng, change)


@kind("gradient")
def product_transposed(subject: Subject, rng: np.random.Generator) -> Iterator[Mutant]:
    """Where the last two dimensions are of equal size."""

    def change(g: Array) -> Array:
        return np.swapaxes(g, -1, -2) if g.ndim > 1 and g.shape[-1] == g.shape[-2] else g

    yield from _each(subject, rng, _all(change))


@kind("gradient")
def product_takes_the_gradient_as_it_is(subject: Subject, rng: np.random.Generator) -> Iterator[Mutant]:
    """The derivative counts as one."""

    def change(call: Call, found: Gradients) -> Gradients:
        dy = call.dy
        return [dy if g is not None and np.shape(g) == dy.shape else g for g in found]

    yield from _each(subject, rng, change)


@kind("gradient")
def product_of_a_repeated_operand_not_summed(subject: Subject, rng: np.random.Generator) -> Iterator[Mutant]:
    """Of an operand that was repeated along a dimension the gradient of one place is taken for the sum of all."""

    def change(call: Call, found: Gradients) -> Gradients:
        dy = call.dy
        out: Gradients = []
        for g in found:
            repeated = g is not None and g.size < dy.size and g.size and dy.size % g.size == 0
            out.append(g / (dy.size // g.size) if repeated and g is not None else g)
        return out

    yield from _each(subject, rng, change)
