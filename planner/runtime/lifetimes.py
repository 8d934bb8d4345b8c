"""What of a chunk's passes is recorded for its backward, and when values may be let go."""

from __future__ import annotations

from dataclasses import dataclass

from planner.ir import Role
from planner.lowering import Load, Program, Redistribute, Run, Staged
from planner.lowering.program import StageInstruction
from planner.lowering.staged import Phase
from planner.lowering.touched import Key, reads, writes

__all__ = ["Passing", "passing"]

Where = tuple[Phase, int]  # a pass, and the number of an instruction in it
_ORDER: tuple[Phase, ...] = ("forward", "backward", "weights")


@dataclass(frozen=True, slots=True)
class Passing:
    """`recorded`: the forward runs whose backward comes before they run again; `dropped`: values that nothing reads
    behind an instruction.  A backward reads its record, and no values."""

    recorded: frozenset[Where]
    dropped: dict[Where, list[Key]]


def passing(program: Program, staged: Staged, chunk: int) -> Passing:
    """Of one chunk.  Outputs of the graph stay, and so do parameters and constants."""
    own = staged.chunks[chunk]
    listed = [((p, n), i) for p in _ORDER for n, i in enumerate(own.instructions(p))]
    recorded: set[Where] = set()
    last: dict[str, Where] = {}
    for where, i in listed:
        if isinstance(i, Run):
            if not i.backward:
                last[i.op] = where
            elif i.op in last:
                recorded.add(last[i.op])
    stays = {t.name for t in program.graph.tensors.values() if t.role in (Role.PARAMETER, Role.CONSTANT)}
    stays |= {*program.graph.outputs}
    sent = {t.key for t in own.sent("forward")}
    ends = len(own.instructions("forward"))
    dropped: dict[Where, list[Key]] = {}
    wanted: set[Key] = set()
    for where, i in reversed(listed):
        if where[0] == "forward" and where[1] == ends - 1:
            wanted |= sent
        for key in {*_read(program, i), *_written(program, i)}:
            if key not in wanted and key[0] not in stays:
                dropped.setdefault(where, []).append(key)
        wanted -= set(_written(program, i))
        wanted |= set(_read(program, i))
    return Passing(frozenset(recorded), dropped)


def _read(program: Program, i: StageInstruction) -> list[Key]:
    return [] if isinstance(i, Run) and i.backward else list(reads(program, i))


def _written(program: Program, i: StageInstruction) -> list[Key]:
    return list(writes(program, i)) if isinstance(i, Run | Redistribute | Load) else []
