"""What the verifier says of a mutant, and whether the mutant is a fault at all."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass
from typing import Literal

from planner.errors import PlannerError
from planner.lowering import Program
from planner.lowering.check import check_program
from planner.verify.check import verify_program
from tests.mutation.faults import Effect, Mutant
from tests.mutation.produced import Produced, alike, produced
from tests.mutation.subjects import Subject

__all__ = ["Judgement", "judge", "sound"]

Outcome = Literal["caught", "missed", "equivalent"]
BROKEN = (PlannerError, ArithmeticError, AssertionError, LookupError, TypeError, ValueError)


@dataclass(frozen=True)
class Judgement:
    """`by` says how it was caught: without data, by execution, or by an execution that broke down; `why`, by what."""

    outcome: Outcome
    by: tuple[str, ...] = ()
    why: str = ""


def sound(subject: Subject) -> str:
    """What the verifier has against the subject itself; empty where nothing."""
    wrong = check_program(subject.program)
    if wrong:
        return wrong[0]
    verdict = verify_program(subject.program, seed=subject.seed)
    return "; ".join((*verdict.failures, *verdict.unproved))


def judge(subject: Subject, mutant: Mutant) -> Judgement:
    """Both halves of the verifier are asked, whatever the first says."""
    by, why = [], ""
    effect = Effect(changed=1)
    if mutant.program is not subject.program:
        wrong, broken = _checked(mutant.program)
        if wrong:
            by, why = ["broken check" if broken else "check"], wrong
    with mutant.fault() if mutant.fault is not None else nullcontext(effect) as effect:
        try:
            verdict = verify_program(mutant.program, seed=subject.seed)
        except BROKEN as e:
            by.append("broken execution")
            why = why or f"{type(e).__name__}: {e}"
        else:
            if verdict.failures:
                by.append("execution")
                why = why or verdict.failures[0]
            elif verdict.unproved:
                by.append("no verdict")
                why = why or verdict.unproved[0]
    if by:
        return Judgement("caught", tuple(by), why)
    return Judgement("equivalent" if _equivalent(subject, mutant, effect) else "missed")


def _checked(program: Program) -> tuple[str, bool]:
    try:
        return next(iter(check_program(program)), ""), False
    except BROKEN as e:
        return f"{type(e).__name__}: {e}", True


def _equivalent(subject: Subject, mutant: Mutant, effect: Effect) -> bool:
    if mutant.fault is not None:
        return not effect.changed
    if _stated(mutant.program) != _stated(subject.program):
        return False
    try:
        found: Produced = produced(mutant.program, subject.seed)
    except BROKEN:
        return False
    return alike(found, produced(subject.program, subject.seed))


def _stated(program: Program) -> list[object]:
    """What is priced beside the numbers: the collectives inside operators, of the backward pass where there is one."""
    return [
        c
        for op in program.graph.ops
        for c in program.strategies[op.name].inner
        if not c.backward or any(t in program.active for t in op.outputs)
    ]
