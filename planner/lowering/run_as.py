"""How often and when a stage does what its program says: what memory is saved by, and what it is paid with.

A chunk's passes begin as the program has them: parameters gathered once a step, everything kept.  Here they become what
runs.

- Blocks are run again: what is inside is let go behind the forward pass, and made anew before it is differentiated.
- A backward pass in two parts: gradients of values first, of weights in a pass of their own, which takes what the first
  has left: the products' operands, and gradients of their results.
- ZeRO 3: parameters are gathered where a unit (a block, or what stands between blocks) reads them, let go behind it,
  and gathered again in the backward pass; so is what is made of them.
- ZeRO 2 and 3: every pass brings gradients of parameters to where they are stored, up to the first all-reduce, which
  waits for the end of the step.
- Offloading: what blocks keep goes to the host's memory behind its last reader, and comes back before the next.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from planner.lowering.program import Free, GradientPart, Host, Program, Redistribute, Run, StageInstruction
from planner.lowering.touched import Key, of_gradient, reads, writes
from planner.redistribute import StepKind, scattered
from planner.redistribute.steps import FREE

__all__ = ["RunAs", "again", "by_units", "deferred", "freed", "hosted", "in_two"]


@dataclass(frozen=True, slots=True)
class RunAs:
    """`again`: operator → block that is run again, beside those that the program itself runs again; `saved`: operators
    of such blocks that are not, since their results are kept; `hosted`: operators whose results wait in the host's
    memory; `gathers`, `scatters`: whether every pass gathers parameters, and scatters their gradients; `copies`:
    micro-batches that pass together; `unit`: operator → the unit that it is in."""

    again: Mapping[str, object] = field(default_factory=dict)
    saved: Mapping[str, object] = field(default_factory=dict)
    hosted: frozenset[str] = frozenset()
    gathers: bool = False
    scatters: bool = False
    copies: int = 1
    unit: Mapping[str, object] = field(default_factory=dict)


Listed = list[StageInstruction]


def again(
    program: Program, how: RunAs, forward: Sequence[StageInstruction], backward: Iterable[StageInstruction]
) -> Listed:
    """The backward pass in which each block runs again before the first of its operators is differentiated."""
    inside: dict[object, Listed] = {}
    for i in forward:
        block = how.again.get(_on_behalf(program, how, i))
        if block is not None:
            inside.setdefault(block, []).append(i)
    out: Listed = []
    for i in backward:
        if isinstance(i, Run) and i.backward:
            out += _begun(how, i.op, inside)
        out.append(i)
    return out


def _begun(how: RunAs, op: str, inside: dict[object, Listed]) -> Listed:
    """What runs again before the operator is differentiated: its block, of which it may be a part that is kept."""
    return inside.pop(how.again.get(op, how.saved.get(op)), [])


def _on_behalf(program: Program, how: RunAs, i: StageInstruction) -> str:
    """The operator with which it runs again; empty where there is none.  What is redistributed for one reader does so
    with that, and where the reader's result is kept, with its maker."""
    if isinstance(i, Run):
        return i.op
    if not isinstance(i, Redistribute):
        return ""
    made = program.graph.producers.get(i.tensor)
    maker = "" if made is None else made.name
    if not i.reader or how.saved.get(i.reader, i.reader) == how.again.get(maker):
        return maker
    return i.reader


def freed(
    program: Program, forward: Iterable[StageInstruction], backward: Iterable[StageInstruction], resident: Iterable[Key]
) -> Listed:
    """What the backward pass makes again before it reads it; not of what is `resident`."""
    stays, made = set(resident), set[Key]()
    for i in backward:
        stays.update(k for k in reads(program, i) if k not in made)
        made.update(writes(program, i))
    found = dict.fromkeys(k for i in forward for k in writes(program, i) if k in made and k not in stays)
    return [Free(*key) for key in found]


def in_two(
    program: Program, backward: Iterable[StageInstruction], weights: frozenset[str], heavy: Callable[[str], bool]
) -> tuple[Listed, Listed]:
    """Gradients of values, and of `weights`, in two passes; an operator that is not `heavy` has both in the first."""
    first, second = Listed(), Listed()
    for i in backward:
        if isinstance(i, Run) and i.backward:
            here = _parts(program, i.op, weights, heavy(i.op))
            first += [replace(i, part=p) for p, late in here if not late]
            second += [replace(i, part=p) for p, late in here if late]
        elif isinstance(i, Redistribute) and i.gradient and i.tensor in weights:
            second.append(i)
        else:
            first.append(i)
    return first, second


def _parts(program: Program, name: str, weights: frozenset[str], heavy: bool) -> list[tuple[GradientPart, bool]]:
    """Parts of an operator's backward pass, each with whether it may wait."""
    op, rule = program.graph.op(name), program.rules[name]
    wanted = [op.inputs[i] for i in rule.differentiable if i < len(op.inputs) and op.inputs[i] in program.active]
    of_weights = {t in weights for t in wanted}
    if of_weights == {True} and (heavy or all(t in weights for t in op.outputs)):
        return [("", True)]
    return [("values", False), ("weights", True)] if of_weights == {True, False} and heavy else [("", False)]


def deferred(scatter: StageInstruction) -> tuple[Redistribute | None, Redistribute | None]:
    """A redistribution of a parameter's gradient: what every pass does of it, and what is left for the end of the step,
    from where on nothing but sums are carried out.  What is summed before it is divided is scattered instead."""
    assert isinstance(scatter, Redistribute)
    steps = scattered(scatter.steps)
    late = len(steps)
    while late and (steps[late - 1].kind is StepKind.ALL_REDUCE or steps[late - 1].kind in FREE):
        late -= 1
    while late < len(steps) and steps[late].kind is not StepKind.ALL_REDUCE:
        late += 1
    now, then = steps[:late], steps[late:]
    between = then[0].source if then else scatter.target
    return (
        replace(scatter, target=between, steps=now) if now else None,
        replace(scatter, source=between, steps=then) if then else None,
    )


def by_units(
    program: Program,
    makers: Mapping[Key, StageInstruction],
    unit: Mapping[str, object],
    listed: Iterable[StageInstruction],
    sent: Iterable[Key],
    outputs: Iterable[Key] = (),
) -> Listed:
    """`listed` with weights made where a unit that reads them begins, and let go behind it; what is `sent` is there in
    the end, and `outputs` stay once they are made.  What is gathered for a unit stands together, before what is made of
    it; constants that weights are made with, as a table is of positions, are there from the beginning."""
    listed = _constants_first(program, makers, list(listed))
    stays = set(outputs)
    out = Listed()
    there: dict[Key, None] = {}

    def needed(key: Key, found: dict[int, tuple[StageInstruction, bool]]) -> bool:
        """Adds what makes it to `found`, with whether operators have to run for it, which is returned."""
        maker = makers.get(key)
        if maker is None or key in there:
            return False
        if id(maker) not in found:
            behind = [needed(read, found) for read in reads(program, maker)]
            found[id(maker)] = maker, isinstance(maker, Run) or any(behind)
        return found[id(maker)][1]

    def make(keys: Iterable[Key]) -> None:
        found: dict[int, tuple[StageInstruction, bool]] = {}
        for key in keys:
            needed(key, found)
        for runs in (False, True):
            made = [maker for maker, has in found.values() if has is runs]
            out.extend(made)
            there.update(dict.fromkeys(k for maker in made for k in writes(program, maker)))

    here: object = None
    for inside in _segments(unit, listed):
        if isinstance(inside[0], Run) and unit.get(inside[0].op) != here:
            out += [Free(*k) for k in there if k not in stays]
            there = {k: None for k in there if k in stays}
            here = unit.get(inside[0].op)
        make(key for i in inside for key in reads(program, i))
        out += inside
    last = [*sent, *stays]
    make(last)
    return [*out, *(Free(*k) for k in there if k not in last)]


def _constants_first(program: Program, makers: Mapping[Key, StageInstruction], listed: Listed) -> Listed:
    """With what makers read that no maker makes before everything else."""
    known = {k: n for n, i in enumerate(listed) if not of_gradient(i) for k in writes(program, i)}
    pending = [k for maker in makers.values() for k in reads(program, maker) if k not in makers]
    first: set[int] = set()
    while pending:
        number = known.get(pending.pop())
        if number is not None and number not in first:
            first.add(number)
            pending += reads(program, listed[number])
    return [listed[n] for n in sorted(first)] + [i for n, i in enumerate(listed) if n not in first]


def _segments(unit: Mapping[str, object], listed: Iterable[StageInstruction]) -> Iterator[Listed]:
    """Instructions from one operator of a unit to the first one of another."""
    segment, here = Listed(), None
    for i in listed:
        if isinstance(i, Run) and unit.get(i.op) != here:
            if segment:
                yield segment
            segment, here = Listed(), unit.get(i.op)
        segment.append(i)
    if segment:
        yield segment


def hosted(
    program: Program, operators: frozenset[str], forward: Listed, later: Sequence[Listed], resident: Iterable[Key]
) -> tuple[Listed, list[Listed]]:
    """The passes, in which results of these operators wait elsewhere between the first and the one that reads them."""
    stays = set(resident)
    made = {k for i in forward if isinstance(i, Run) and i.op in operators for k in writes(program, i)} - stays
    made -= {(i.tensor, i.layout) for i in forward if isinstance(i, Free)}
    out: list[Listed] = []
    waiting: set[Key] = set()
    for listed in later:
        passed = Listed()
        for i in listed:
            if not of_gradient(i):
                wanted = [k for k in dict.fromkeys(reads(program, i)) if k in made and k not in waiting]
                passed += [Host(*k, back=True) for k in wanted]
                waiting.update(wanted)
            passed.append(i)
        out.append(passed)
    return [*forward, *(Host(*k) for k in sorted(waiting, key=str))], out
