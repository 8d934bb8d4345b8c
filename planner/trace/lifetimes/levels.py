"""What one device holds for activations at every instruction, and what every unit of the model adds to it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from planner.lowering import Instruction, Program, Redistribute, Run
from planner.trace.facts import Facts
from planner.trace.lifetimes.engine import storages_of
from planner.trace.lifetimes.storage import Storage
from planner.trace.passes import passes
from planner.trace.placed import Placed
from planner.work.seen import seen

__all__ = ["CAUSES", "Levels", "UnitBytes", "levels_of"]

CAUSES: Final = ("activations", "activation_copies", "activation_gradients", "buffers", "inputs", "weight_copies")
_WAITING: Final = frozenset({"activations", "activation_copies", "inputs"})


@dataclass(frozen=True, slots=True)
class UnitBytes:
    """Of a unit: `saved` bytes wait between its passes, of which those in `core` are made inside the core of an
    attention; `over` is how far, while it runs, the device holds more than what units up to it keep; `constants` are
    those that it alone reads."""

    saved: int
    core: int
    over: int
    constants: int


@dataclass(frozen=True, slots=True, eq=False)
class Levels:
    """`held[c, i]`: bytes on one device for `CAUSES[c]` while instruction i runs; `units`: what they come to;
    `resident` bytes are the same at every step."""

    instructions: tuple[Instruction, ...]
    held: NDArray[np.int64]
    units: tuple[UnitBytes, ...]
    resident: int

    @property
    def levels(self) -> NDArray[np.int64]:
        """Bytes in all, by instruction."""
        return np.asarray(self.held.sum(axis=0))


def levels_of(at: Placed, *, gathered_again: bool) -> Levels:
    """Of one micro-batch; `gathered_again` as of `planner.trace.trace`: what runs again is then left out."""
    program, facts = at.program, at.facts
    instructions: Sequence[Instruction] = program.instructions
    blocks: dict[str, int] = {}
    if gathered_again:
        instructions = _once(program)
    else:
        blocks = _blocks(program)
    what = seen(program.graph, program.rules, program.active, at.fusion, blocks)
    storages, turn = storages_of(at, what, instructions, gathered_again=gathered_again)
    held = _held(storages, len(instructions))
    return Levels(
        tuple(instructions),
        held,
        _units(facts, program, instructions, storages, held.sum(axis=0), turn),
        sum(s.size for s in storages if s.resident),
    )


def _once(program: Program) -> list[Instruction]:
    """The instructions but those that run again."""
    ran = iter(passes(program))
    return [i for i in program.instructions if not (isinstance(i, Run | Redistribute) and next(ran)[1])]


def _blocks(program: Program) -> dict[str, int]:
    """Operator that runs again → number of the block that does."""
    out: dict[str, int] = {}
    begun: set[str] = set()
    number, before = 0, False
    for i in program.instructions:
        if isinstance(i, Run):
            again = not i.backward and i.op in begun
            if again:
                number += not before
                out[i.op] = number
            begun.add(i.op)
            before = again
    return out


def _held(storages: Sequence[Storage], count: int) -> NDArray[np.int64]:
    row = {cause: r for r, cause in enumerate(CAUSES)}
    table = np.array([(row[s.cause], s.begin, s.end + 1, s.size) for s in storages], dtype=np.int64).reshape(-1, 4)
    changes = np.zeros((len(CAUSES), count + 2), dtype=np.int64)
    np.add.at(changes, (table[:, 0], table[:, 1]), table[:, 3])
    np.subtract.at(changes, (table[:, 0], table[:, 2]), table[:, 3])
    return np.asarray(np.cumsum(changes, axis=1)[:, :count])


def _units(
    facts: Facts,
    program: Program,
    instructions: Sequence[Instruction],
    storages: Sequence[Storage],
    levels: NDArray[np.int64],
    turn: int,
) -> tuple[UnitBytes, ...]:
    count = len(facts.repeated)
    stages = facts.stages or (0,) * count
    saved, core, base, constants = ([0] * count for _ in range(4))
    resident = 0
    for s in storages:
        if s.resident:
            resident += s.size
            if len(s.readers) == 1:
                constants[next(iter(s.readers))] += s.size
        elif s.cause in _WAITING and s.begin < turn <= s.end:
            readers = sorted(s.readers) or [count - 1]
            base[readers[0]] += s.size
            first = {stages[u]: u for u in reversed(readers)}
            for u in first.values():
                saved[u] += s.size
                core[u] += s.size * s.core
    below = np.cumsum(base) + resident
    over = np.zeros(count, dtype=np.int64)
    of = np.array(_places(facts, program, instructions), dtype=np.int64)
    if len(of):
        np.maximum.at(over, of, levels - below[of])
    return tuple(UnitBytes(*each) for each in zip(saved, core, over.tolist(), constants, strict=True))


def _places(facts: Facts, program: Program, instructions: Sequence[Instruction]) -> list[int]:
    """The unit that each instruction belongs to: a redistribution to its only reader's, else to that of what ran
    before."""
    out: list[int] = []
    here = 0
    for i in instructions:
        if isinstance(i, Run):
            here = facts.unit[i.op]
            out.append(here)
        elif isinstance(i, Redistribute) and i.reader and not i.gradient:
            out.append(facts.unit[i.reader])
        else:
            out.append(here)
    return out
