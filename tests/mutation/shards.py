"""Faults of what a rank holds after an operator, after its backward pass, or after a redistribution.

Each is a change of the shards of one value; the same changes are made to results, to gradients and to what a
redistribution gives.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Final, Literal
from unittest import mock

import numpy as np

from planner.ir import DeviceMesh, Layout, Op
from planner.kernels.shards import Array, Shards
from planner.lowering import Redistribute, Run
from planner.verify.execute import VirtualDevices
from tests.mutation.collectives import shuffled
from tests.mutation.faults import KINDS, Effect, Fault, Kind, Mutant
from tests.mutation.produced import reduced
from tests.mutation.subjects import Subject

__all__: list[str] = []

Phase = Literal["forward", "backward", "redistribute"]
Change = Callable[[list[Array], Layout, DeviceMesh, np.random.Generator], "list[Array] | None"]


def _pair(layout: Layout, mesh: DeviceMesh, rng: np.random.Generator) -> tuple[int, int] | None:
    """Two ranks with other shards."""
    if not any(layout.dims):
        return None
    first = int(rng.integers(mesh.devices))
    shape = layout.counts(mesh)
    plain = Layout(layout.dims)  # of equal parts every rank has as many elements of each
    mine = plain.region(shape, mesh, first)
    others = [r for r in range(mesh.devices) if plain.region(shape, mesh, r) != mine]
    return (first, others[rng.integers(len(others))]) if others else None


def _swapped(s: list[Array], layout: Layout, mesh: DeviceMesh, rng: np.random.Generator) -> list[Array] | None:
    pair = _pair(layout, mesh, rng)
    if pair is None:
        return None
    out = list(s)
    out[pair[0]], out[pair[1]] = s[pair[1]], s[pair[0]]
    return out


def _of_another_rank(s: list[Array], layout: Layout, mesh: DeviceMesh, rng: np.random.Generator) -> list[Array] | None:
    pair = _pair(layout, mesh, rng)
    return None if pair is None else [s[pair[1]] if r == pair[0] else x for r, x in enumerate(s)]


def _shifted(s: list[Array], layout: Layout, mesh: DeviceMesh, rng: np.random.Generator) -> list[Array] | None:
    return [*s[1:], s[0]] if any(layout.dims) else None


def _on_one_rank(s: list[Array], rank: int, change: Callable[[Array], Array]) -> list[Array]:
    return [change(x) if r == rank else x for r, x in enumerate(s)]


def _zero_on_the_last_rank(s: list[Array], *_: object) -> list[Array]:
    return _on_one_rank(s, len(s) - 1, np.zeros_like)


def _zero_everywhere(s: list[Array], *_: object) -> list[Array]:
    return [np.zeros_like(x) for x in s]


def _sign_flipped(s: list[Array], layout: Layout, mesh: DeviceMesh, rng: np.random.Generator) -> list[Array] | None:
    return _on_one_rank(s, int(rng.integers(len(s))), np.negative) if s[0].dtype.kind in "fi" else None


def _doubled(s: list[Array], layout: Layout, mesh: DeviceMesh, rng: np.random.Generator) -> list[Array] | None:
    return _on_one_rank(s, int(rng.integers(len(s))), lambda x: x + x) if s[0].dtype.kind in "fi" else None


def _rolled(s: list[Array], layout: Layout, mesh: DeviceMesh, rng: np.random.Generator) -> list[Array] | None:
    """By one along some dimension, on one rank."""
    long = [d for d, n in enumerate(s[0].shape) if n > 1]
    if not long:
        return None
    return _on_one_rank(s, int(rng.integers(len(s))), lambda x: np.roll(x, 1, axis=long[rng.integers(len(long))]))


def _edge_zeroed(s: list[Array], layout: Layout, mesh: DeviceMesh, rng: np.random.Generator) -> list[Array] | None:
    """The first or last index along a dimension, on one rank."""
    if not s[0].ndim:
        return None
    dim, at = int(rng.integers(s[0].ndim)), int(rng.choice((0, -1)))

    def change(x: Array) -> Array:
        out = np.array(x)
        out[(*(slice(None),) * dim, slice(0, 1) if at == 0 else slice(-1, None))] = 0
        return out

    return _on_one_rank(s, int(rng.integers(len(s))), change)


def _transposed(s: list[Array], layout: Layout, mesh: DeviceMesh, rng: np.random.Generator) -> list[Array] | None:
    """Two dimensions of equal size exchanged, on every rank."""
    shape = s[0].shape
    pairs = [(a, b) for a in range(len(shape)) for b in range(a) if shape[a] == shape[b] > 1]
    return [np.swapaxes(x, *pairs[0]) for x in s] if pairs else None


def _one_element_off(s: list[Array], layout: Layout, mesh: DeviceMesh, rng: np.random.Generator) -> list[Array] | None:
    """By a hundred-thousandth of what is usual."""
    if s[0].dtype.kind != "f" or not s[0].size:
        return None

    def change(x: Array) -> Array:
        out = np.array(x)
        out.reshape(-1)[rng.integers(out.size)] += 1e-5 * (float(np.abs(x[np.isfinite(x)]).mean()) or 1.0)
        return out

    return _on_one_rank(s, int(rng.integers(len(s))), change)


def _rounded(s: list[Array], layout: Layout, mesh: DeviceMesh, rng: np.random.Generator) -> list[Array] | None:
    """To three digits."""
    return [x.astype(np.float16).astype(x.dtype) for x in s] if s[0].dtype.kind == "f" else None


def _not_a_number(s: list[Array], layout: Layout, mesh: DeviceMesh, rng: np.random.Generator) -> list[Array] | None:
    if s[0].dtype.kind != "f":
        return None
    return _on_one_rank(s, int(rng.integers(len(s))), lambda x: np.full_like(x, np.nan))


_CHANGES: Final[dict[str, Change]] = {
    "of two ranks exchanged": _swapped,
    "from another rank": _of_another_rank,
    "shifted by a rank": _shifted,
    "zero on the last rank": _zero_on_the_last_rank,
    "zero everywhere": _zero_everywhere,
    "of the other sign": _sign_flipped,
    "doubled": _doubled,
    "rolled": _rolled,
    "zero along an edge": _edge_zeroed,
    "transposed": _transposed,
    "off in one element": _one_element_off,
    "rounded": _rounded,
    "not a number": _not_a_number,
}


def _mutants(phase: Phase, change: Change, subject: Subject, rng: np.random.Generator) -> Iterator[Mutant]:
    program = subject.program
    if phase == "redistribute":
        moves = program.redistributions()
        for move in shuffled((m for m in dict.fromkeys(moves) if m.steps), rng):
            fault = _at_redistribution(move, change, subject.mesh, int(rng.integers(1 << 30)))
            yield Mutant(f"{move.tensor} {move.source} → {move.target}", program, fault)
        return
    runs = dict.fromkeys(
        i.op for i in program.instructions if isinstance(i, Run) and i.backward == (phase == "backward")
    )
    for name in shuffled(runs, rng):
        op, strategy = subject.graph.op(name), program.strategies[name]
        layouts = strategy.results if phase == "forward" else strategy.operand_gradients
        tensors = op.outputs if phase == "forward" else op.inputs
        there = [k for k, t in enumerate(tensors) if t and layouts[k] is not None]
        if phase == "backward":
            known = program.rules[name].differentiable
            there = [k for k in there if k in known and tensors[k] in program.active]
        for k in shuffled(there, rng)[:1]:
            layout = layouts[k]
            assert layout is not None
            fault = _at_operator(name, phase, k, change, layout, subject.mesh, int(rng.integers(1 << 30)))
            yield Mutant(f"{op.type} {name} ({strategy.text(subject.mesh)}): {tensors[k]} as {layout}", program, fault)


def _applied(shards: Shards, change: Change, layout: Layout, mesh: DeviceMesh, seed: int, effect: Effect) -> Shards:
    if len(layout.dims) != shards[0].ndim:
        return shards
    changed = change(list(shards), layout, mesh, np.random.default_rng(seed))
    if changed is None:
        return shards
    for a, b in zip(reduced(shards, layout, mesh), reduced(changed, layout, mesh), strict=True):
        effect.note(a, b)
    return tuple(changed)


def _at_operator(
    name: str, phase: Phase, place: int, change: Change, layout: Layout, mesh: DeviceMesh, seed: int
) -> Fault:
    @contextmanager
    def fault() -> Iterator[Effect]:
        effect = Effect()
        real: Callable[..., list[Shards | None]] = getattr(VirtualDevices, phase)

        def wrong(self: VirtualDevices, op: Op, *rest: Sequence[Any]) -> list[Shards | None]:
            found = real(self, op, *rest)
            if op.name == name and (shards := found[place]) is not None:
                found[place] = _applied(shards, change, layout, mesh, seed, effect)
            return found

        with mock.patch.object(VirtualDevices, phase, wrong):
            yield effect

    return fault


def _at_redistribution(move: Redistribute, change: Change, mesh: DeviceMesh, seed: int) -> Fault:
    @contextmanager
    def fault() -> Iterator[Effect]:
        effect = Effect()
        real = VirtualDevices.redistribute

        def wrong(self: VirtualDevices, given: Redistribute) -> Shards:
            found = real(self, given)
            return _applied(found, change, given.target, mesh, seed, effect) if given == move else found

        with mock.patch.object(VirtualDevices, "redistribute", wrong):
            yield effect

    return fault


for _name, _change in _CHANGES.items():
    for _what, _phase in (("result", "forward"), ("gradient", "backward"), ("redistributed value", "redistribute")):
        _kind = Kind(f"{_what} {_name}", "device", partial(_mutants, _phase, _change))  # type: ignore[arg-type]
        KINDS[_kind.name] = _kind
