"""Instructions of a program in the passes that they belong to."""

from __future__ import annotations

from collections.abc import Iterator

from planner.lowering import Program, Redistribute, Run

__all__ = ["passes", "runs_again"]


def passes(program: Program) -> Iterator[tuple[Run | Redistribute, bool]]:
    """Runs and redistributions of the program, with whether they are of blocks that run again in the backward pass."""
    begun: set[str] = set()
    backward = False
    for i in program.instructions:
        if isinstance(i, Run):
            backward = backward or i.backward
            yield i, not i.backward and i.op in begun
            begun.add(i.op)
        elif isinstance(i, Redistribute):
            yield i, backward and not i.gradient and program.graph.producers.get(i.tensor) is not None


def runs_again(program: Program) -> set[str]:
    """Operators that run forward twice."""
    begun, again = set[str](), set[str]()
    for i in program.instructions:
        if isinstance(i, Run):
            if not i.backward and i.op in begun:
                again.add(i.op)
            begun.add(i.op)
    return again
