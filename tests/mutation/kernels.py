"""Faults within operators that communicate, and within collectives: halos, statistics, places, groups."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from planner.ir import DeviceMesh, Op
from planner.kernels import AllGather, AllReduce, Exchange, ShardContext, spmd_backward, spmd_forward
from planner.kernels.session import NoKernelError
from planner.kernels.shards import Array, Shards
from planner.lowering import Run
from planner.redistribute import RedistributionStep, StepKind
from planner.rules.localize import local_op
from tests.mutation.collectives import shuffled
from tests.mutation.faults import Mutant, kind
from tests.mutation.patches import Patch, during, during_redistribution
from tests.mutation.subjects import Subject

__all__: list[str] = []

_MEET = "planner.kernels.spmd._meet"
_COMBINE = "planner.verify.collectives.combine"
_APPLY = "planner.verify.execute.apply"


def _communicating(subject: Subject, rng: np.random.Generator) -> Iterator[tuple[Op, bool]]:
    """Operators that run a kernel of their own, and whether backward."""
    runs = dict.fromkeys(i for i in subject.program.instructions if isinstance(i, Run))
    for run in shuffled(runs, rng):
        op = subject.graph.op(run.op)
        rule, split = subject.program.rules[run.op], subject.program.strategies[run.op].split
        try:
            found = (spmd_backward if run.backward else spmd_forward)(op, rule, split)
        except NoKernelError:
            continue
        if found is not None:
            yield op, run.backward


def _in_kernels(subject: Subject, rng: np.random.Generator, target: str, patch: Patch) -> Iterator[Mutant]:
    for op, backward in _communicating(subject, rng):
        strategy = subject.program.strategies[op.name]
        what = f"{'backward of ' if backward else ''}{op.type} {op.name} ({strategy.text(subject.mesh)})"
        yield Mutant(what, subject.program, during(op.name, target, patch, backward=backward))


Received = list[Any]


def _met(of: type, change: Callable[[list[Any], Received], Received]) -> Patch:
    """What the ranks of a group receive from a collective of one make, changed."""

    def patch(real: Callable[..., Received]) -> Callable[..., Received]:
        def wrong(calls: list[Any]) -> Received:
            found = real(calls)
            if not isinstance(calls[0], of):
                return found
            return change(calls, found)

        return wrong

    return patch


@kind("device")
def halo_zero(subject: Subject, rng: np.random.Generator) -> Iterator[Mutant]:
    """What other ranks send counts as zero."""

    def change(calls: list[Any], found: Received) -> Received:
        return [
            tuple(p if p is None or j == k else np.zeros_like(p) for j, p in enumerate(pieces))
            for k, pieces in enumerate(found)
        ]

    yield from _in_kernels(subject, rng, _MEET, _met(Exchange, change))


@kind("device")
def halo_of_the_other_side(subject: Subject, rng: np.random.Generator) -> Iterator[Mutant]:
    """What came from the ranks before and behind is exchanged, where it has the same shape."""

    def change(calls: list[Any], found: Received) -> Received:
        out = []
        for k, pieces in enumerate(found):
            others = [j for j, p in enumerate(pieces) if p is not None and j != k]
            new = list(pieces)
            if len(others) > 1 and pieces[others[0]].shape == pieces[others[-1]].shape:
                new[others[0]], new[others[-1]] = pieces[others[-1]], pieces[others[0]]
            out.append(tuple(new))
        return out

    yield from _in_kernels(subject, rng, _MEET, _met(Exchange, change))


@kind("device")
def halo_in_reverse(subject: Subject, rng: np.random.Generator) -> Iterator[Mutant]:
    """The elements of each piece in reverse along its longest dimension."""

    def change(calls: list[Any], found: Received) -> Received:
        def turned(p: Array | None) -> Array | None:
            return p if p is None or not p.ndim else np.flip(p, axis=int(np.argmax(p.shape)))

        return [tuple(p if j == k else turned(p) for j, p in enumerate(ps)) for k, ps in enumerate(found)]

    yield from _in_kernels(subject, rng, _MEET, _met(Exchange, change))


@kind("device")
def statistic_not_reduced(subject: Subject, rng: np.random.Generator) -> Iterator[Mutant]:
    """Every rank goes on with its own sum."""

    def change(calls: list[Any], found: Received) -> Received:
        return [c.value for c in calls] if calls[0].reduction == "sum" else found

    yield from _in_kernels(subject, rng, _MEET, _met(AllReduce, change))


@kind("device")
def maximum_not_reduced(subject: Subject, rng: np.random.Generator) -> Iterator[Mutant]:
    def change(calls: list[Any], found: Received) -> Received:
        return [c.value for c in calls] if calls[0].reduction != "sum" else found

    yield from _in_kernels(subject, rng, _MEET, _met(AllReduce, change))


@kind("device")
def statistic_without_the_last_rank(subject: Subject, rng: np.random.Generator) -> Iterator[Mutant]:
    def change(calls: list[Any], found: Received) -> Received:
        return [np.asarray(f - calls[-1].value) for f in found] if calls[0].reduction == "sum" else found

    yield from _in_kernels(subject, rng, _MEET, _met(AllReduce, change))


@kind("device")
def statistic_averaged(subject: Subject, rng: np.random.Generator) -> Iterator[Mutant]:
    def change(calls: list[Any], found: Received) -> Received:
        floats = calls[0].reduction == "sum" and np.asarray(found[0]).dtype.kind == "f"
        return [f / len(calls) for f in found] if floats else found

    yield from _in_kernels(subject, rng, _MEET, _met(AllReduce, change))


@kind("device")
def gathered_in_reverse(subject: Subject, rng: np.random.Generator) -> Iterator[Mutant]:
    yield from _in_kernels(subject, rng, _MEET, _met(AllGather, lambda calls, found: [f[::-1] for f in found]))


@kind("device")
def gathered_from_one_rank(subject: Subject, rng: np.random.Generator) -> Iterator[Mutant]:
    yield from _in_kernels(subject, rng, _MEET, _met(AllGather, lambda calls, found: [(f[0],) * len(f) for f in found]))


def _places(change: Callable[[ShardContext], ShardContext]) -> Patch:
    def patch(real: Callable[..., list[ShardContext]]) -> Callable[..., list[ShardContext]]:
        def wrong(*args: Any) -> list[ShardContext]:
            return [change(c) for c in real(*args)]

        return wrong

    return patch


_PLACES = "planner.verify.execute.VirtualDevices._contexts"


@kind("device")
def offset_off_by_one(subject: Subject, rng: np.random.Generator) -> Iterator[Mutant]:
    """The first index of a shard, as in the lookup of a masked table."""

    def change(c: ShardContext) -> ShardContext:
        return replace(c, offset={f: n + 1 for f, n in c.offset.items()})

    yield from _in_kernels(subject, rng, _PLACES, _places(change))


@kind("device")
def place_of_the_next_rank(subject: Subject, rng: np.random.Generator) -> Iterator[Mutant]:
    def change(c: ShardContext) -> ShardContext:
        index = {f: (i + 1) % c.shards[f] for f, i in c.index.items()}
        each = {f: c.rule.factors[f] // c.shards[f] for f in c.offset} if c.rule is not None else {}
        return replace(c, index=index, offset={f: index[f] * n for f, n in each.items()})

    yield from _in_kernels(subject, rng, _PLACES, _places(change))


# Collectives of redistributions


def _redistributed(
    subject: Subject, rng: np.random.Generator, target: str, patch: Patch, *kinds: StepKind
) -> Iterator[Mutant]:
    for move in shuffled(dict.fromkeys(subject.program.redistributions()), rng):
        if any(s.kind in kinds for s in move.steps):
            what = f"{'gradient of ' if move.gradient else ''}{move.tensor} {move.source} → {move.target}"
            fault = during_redistribution(move, target, patch)
            yield Mutant(f"{what}: {' '.join(map(str, move.steps))}", subject.program, fault)


_COLLECTIVES = (StepKind.ALL_GATHER, StepKind.ALL_REDUCE, StepKind.REDUCE_SCATTER, StepKind.ALL_TO_ALL)


def _applied(change: Callable[[Callable[..., Shards], RedistributionStep, Shards, DeviceMesh], Shards]) -> Patch:
    def patch(real: Callable[..., Shards]) -> Callable[..., Shards]:
        def wrong(step: RedistributionStep, shards: Shards, mesh: DeviceMesh) -> Shards:
            return change(real, step, shards, mesh)

        return wrong

    return patch


@kind("device")
def collective_in_other_groups(subject: Subject, rng: np.random.Generator) -> Iterator[Mutant]:
    """As if ranks were numbered in another order: groups are made of other ranks."""

    def change(real: Callable[..., Shards], step: RedistributionStep, shards: Shards, mesh: DeviceMesh) -> Shards:
        order = [(r * 3 + 1) % mesh.devices for r in range(mesh.devices)]
        order = order if len(set(order)) == mesh.devices else [*range(1, mesh.devices), 0]
        order[0], order[1] = order[1], order[0]
        found = real(step, tuple(shards[k] for k in order), mesh)
        return tuple(found[order.index(r)] for r in range(mesh.devices))

    yield from _redistributed(subject, rng, _APPLY, _applied(change), *_COLLECTIVES)


@kind("device")
def collective_with_ranks_in_reverse(subject: Subject, rng: np.random.Generator) -> Iterator[Mutant]:
    """Every group in the opposite order: parts are joined, and dealt out, from the last to the first."""

    def change(real: Callable[..., Shards], step: RedistributionStep, shards: Shards, mesh: DeviceMesh) -> Shards:
        turned = list(shards)
        for group in mesh.groups(step.axes):
            for a, b in zip(group, reversed(group), strict=True):
                turned[a] = shards[b]
        return real(step, tuple(turned), mesh)

    kinds = (StepKind.ALL_GATHER, StepKind.ALL_TO_ALL)
    yield from _redistributed(subject, rng, _APPLY, _applied(change), *kinds)


@kind("device")
def scattered_to_ranks_in_reverse(subject: Subject, rng: np.random.Generator) -> Iterator[Mutant]:
    def change(real: Callable[..., Shards], step: RedistributionStep, shards: Shards, mesh: DeviceMesh) -> Shards:
        found = real(step, shards, mesh)
        turned = list(found)
        for group in mesh.groups(step.axes):
            for a, b in zip(group, reversed(group), strict=True):
                turned[a] = found[b]
        return tuple(turned)

    kinds = (StepKind.REDUCE_SCATTER, StepKind.ALL_TO_ALL, StepKind.SLICE, StepKind.PERMUTE)
    yield from _redistributed(subject, rng, _APPLY, _applied(change), *kinds)


@kind("device")
def sum_averaged(subject: Subject, rng: np.random.Generator) -> Iterator[Mutant]:
    """A mean in place of a sum."""

    def patch(real: Callable[..., Array]) -> Callable[..., Array]:
        def wrong(values: list[Array], reduction: object) -> Array:
            found = real(values, reduction)
            return np.asarray(found / len(values) if found.dtype.kind == "f" else found)

        return wrong

    yield from _redistributed(subject, rng, _COMBINE, patch, StepKind.ALL_REDUCE, StepKind.REDUCE_SCATTER)


@kind("device")
def sum_without_the_last_rank(subject: Subject, rng: np.random.Generator) -> Iterator[Mutant]:
    def patch(real: Callable[..., Array]) -> Callable[..., Array]:
        def wrong(values: list[Array], reduction: object) -> Array:
            return real(values[:-1], reduction)

        return wrong

    yield from _redistributed(subject, rng, _COMBINE, patch, StepKind.ALL_REDUCE, StepKind.REDUCE_SCATTER)


@kind("device")
def pending_on_every_rank(subject: Subject, rng: np.random.Generator) -> Iterator[Mutant]:
    """A replica counts as a term of a sum on all ranks, where one alone is to keep it."""

    def patch(real: Callable[..., Shards]) -> Callable[..., Shards]:
        def wrong(step: RedistributionStep, shards: Shards, mesh: DeviceMesh) -> Shards:
            if step.kind is not StepKind.TO_PARTIAL:
                return real(step, shards, mesh)
            return shards

        return wrong

    yield from _redistributed(subject, rng, _APPLY, patch, StepKind.TO_PARTIAL)


# What a rank is told of its part


@kind("device")
def counts_of_the_whole(subject: Subject, rng: np.random.Generator) -> Iterator[Mutant]:
    """Attributes that count what is split (heads, groups) are those of the whole operator."""

    def patch(real: Callable[..., Op]) -> Callable[..., Op]:
        return lambda op, *rest: op

    program = subject.program
    for name in shuffled(program.strategies, rng):
        op, strategy = subject.graph.op(name), program.strategies[name]
        if local_op(op, program.rules[name], strategy, subject.mesh) != op:
            what = f"{op.type} {name} ({strategy.text(subject.mesh)})"
            yield Mutant(what, program, during(name, "planner.verify.execute.local_op", patch))


@kind("device")
def shape_of_the_whole(subject: Subject, rng: np.random.Generator) -> Iterator[Mutant]:
    """A reshape is given the whole result's shape, not the shard's."""
    program = subject.program
    shaped = [n for n, r in program.rules.items() if r.shape_operand is not None]
    for name in shuffled(shaped, rng):
        layout = program.strategies[name].results[0]
        if layout is not None and any(layout.dims):
            rules = {**program.rules, name: replace(program.rules[name], shape_operand=None)}
            yield Mutant(f"{subject.graph.op(name).type} {name} as {layout}", replace(program, rules=rules))
