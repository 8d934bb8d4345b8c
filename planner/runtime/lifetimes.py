"""What of a chunk's passes is recorded for its backward, and when values may be let go."""

from __future__ import annotations

from dataclasses import dataclass

from planner.ir import Role
from planner.lowering import Free, Load, Program, Redistribute, Run, Staged
from planner.lowering.program import StageInstruction
from planner.lowering.staged import Phase
from planner.lowering.touched import Key, key_of, reads, writes

__all__ = ["Passing", "chained", "passing"]

Where = tuple[Phase, int]  # a pass, and the number of an instruction in it
_ORDER: tuple[Phase, ...] = ("forward", "backward", "weights")


@dataclass(frozen=True, slots=True)
class Passing:
    """`recorded`: the forward runs whose backward comes before they run again; `again`: gathered parameters, and what
    is made of them, that the forward pass lets go and a later pass makes again (ZeRO 3); `dropped`: values that nothing
    reads behind an instruction; `summed`: gradients of parameters to which a pass adds nothing behind one.  A backward
    reads its record, and of values those that are made again."""

    recorded: frozenset[Where]
    again: frozenset[Key]
    dropped: dict[Where, list[Key]]
    summed: dict[Where, list[Key]]


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
    later = {key for (phase, _), i in listed if phase != "forward" for key in _written(program, i)}
    freed = {(i.tensor, i.layout) for (phase, _), i in listed if phase == "forward" and isinstance(i, Free)}
    again = frozenset(key for key in freed & later if key[0] in staged.weights)
    dropped: dict[Where, list[Key]] = {}
    wanted: set[Key] = set()
    for where, i in reversed(listed):
        if where[0] == "forward" and where[1] == ends - 1:
            wanted |= sent
        read = _read(program, i, again)
        for key in {*read, *_written(program, i)}:
            if key not in wanted and key[0] not in stays:
                dropped.setdefault(where, []).append(key)
        wanted -= set(_written(program, i))
        wanted |= set(read)
    return Passing(frozenset(recorded), again, dropped, _summed(program, listed))


def chained(staged: Staged, chunk: int) -> dict[str, str]:
    """Operators with the one whose backward runs directly behind theirs."""
    found: dict[str, str] = {}
    before: str | None = None
    for i in staged.chunks[chunk].instructions("backward"):
        whole = isinstance(i, Run) and i.backward and not i.part
        if before is not None and isinstance(i, Run) and whole:
            found[before] = i.op
        before = i.op if isinstance(i, Run) and whole else None
    return found


def _summed(program: Program, listed: list[tuple[Where, StageInstruction]]) -> dict[Where, list[Key]]:
    last: dict[tuple[Phase, Key], Where] = {}
    for (phase, n), i in listed:
        if isinstance(i, Run) and i.backward:
            op, strategy = program.graph.op(i.op), program.strategies[i.op]
            for name, layout in zip(op.inputs, strategy.operand_gradients, strict=True):
                if name and program.graph.tensors[name].role is Role.PARAMETER:
                    last[phase, key_of(program, name, layout)] = phase, n
    found: dict[Where, list[Key]] = {}
    for (_, key), where in last.items():
        found.setdefault(where, []).append(key)
    return found


def _read(program: Program, i: StageInstruction, again: frozenset[Key]) -> list[Key]:
    backward = isinstance(i, Run) and i.backward
    return [key for key in reads(program, i) if key in again or not backward]


def _written(program: Program, i: StageInstruction) -> list[Key]:
    return list(writes(program, i)) if isinstance(i, Run | Redistribute | Load) else []
