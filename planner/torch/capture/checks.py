"""Checks of values, `assert (x > 0).all()` or `if ids.max() >= n: raise IndexError(…)`, left out of a step.

torch.export has no numbers, and cannot say which way such a branch goes.  Where one way of it does nothing but raise,
warn or print, what a step computes lies on the other way alone, and that is followed.
"""

from __future__ import annotations

import dis
import logging
import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, Final

import torch
from torch._subclasses.fake_tensor import DataDependentOutputException
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode
from torch.overrides import TorchFunctionMode

__all__ = ["checks_left_out"]

_UNKNOWN: Final = (DataDependentOutputException, GuardOnDataDependentSymNode)
_TRUTHS: Final = frozenset({"__bool__", "__contains__", "is_nonzero"})
_EQUAL: Final = frozenset({"allclose", "equal"})  # which torch.export writes down before it stops at them
_HANDS_ON: Final = frozenset({"__bool__", "__contains__", "__torch_function__", "handle_torch_function"})
_OURS: Final = str(Path(__file__).parent) + os.sep
_LOG: Final = "torch.fx.experimental.symbolic_shapes"  # which warns of every truth that has no number
_IDLE: Final = frozenset({"NOP", "NOT_TAKEN", "PUSH_NULL", "RESUME"})
_STEPS: Final = 8  # of conditions that one check may join by `and` and `or`


@contextmanager
def checks_left_out(places: list[str]) -> Iterator[None]:
    """Inside, a branch whose condition has no numbers goes the way that does not raise; `places` gets its lines."""
    log, of_truths = logging.getLogger(_LOG), torch.SymBool.__bool__
    level = log.level

    def truth(number: torch.SymBool) -> bool:
        try:
            return of_truths(number)
        except _UNKNOWN:
            way = _way(places)
            if way is None:
                raise
            return way

    log.setLevel(logging.ERROR)
    torch.SymBool.__bool__ = truth  # type: ignore[method-assign, unused-ignore]
    try:
        with _Truths(places):
            yield
    finally:
        torch.SymBool.__bool__ = of_truths  # type: ignore[method-assign, unused-ignore]
        log.setLevel(level)


class _Truths(TorchFunctionMode):
    """What asks a tensor for a truth."""

    def __init__(self, places: list[str]) -> None:
        super().__init__()
        self.places = places

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        if func is torch._assert:
            return self._asserted(*args, **(kwargs or {}))
        if name in _EQUAL and (way := _way(self.places)) is not None:
            return way
        try:
            return func(*args, **(kwargs or {}))
        except _UNKNOWN:
            if name not in _TRUTHS or (way := _way(self.places)) is None:
                raise
            return way

    def _asserted(self, condition: Any, message: Any) -> None:
        try:
            torch._assert(condition, message)
        except _UNKNOWN:
            frame = _asking(sys._getframe(1))
            while frame is not None and frame.f_code is torch._assert.__code__:
                frame = frame.f_back
            _note(self.places, _asking(frame))


def _way(places: list[str]) -> bool | None:
    """The truth with which the branch that asks for it goes on; None where it is no check."""
    frame = _asking(sys._getframe(1))
    truth = None if frame is None else _passing(frame)
    if truth is not None:
        _note(places, frame)
    return truth


def _note(places: list[str], frame: FrameType | None) -> None:
    if frame is not None and (place := f"{frame.f_code.co_filename}:{frame.f_lineno}") not in places:
        places.append(place)


def _asking(frame: FrameType | None) -> FrameType | None:
    """The frame whose code asks: not ours, nor what hands calls on to the modes of torch."""
    while frame is not None:
        code = frame.f_code
        if not code.co_filename.startswith(_OURS) and code.co_name not in _HANDS_ON:
            return frame
        frame = frame.f_back
    return None


def _passing(frame: FrameType) -> bool | None:
    """The truth with which a frame goes on, where with the other it only raises or speaks; None if it is no check."""
    code = _Code(frame)
    asked = code.at.get(frame.f_lasti)
    jump = None if asked is None else code.condition(asked)
    if jump is None:
        return None
    on, to = jump + 1, code.target(jump)
    taken = "IF_TRUE" in code.instructions[jump].opname
    if code.raises(on, unless=to) or code.speaks(on, to):
        return None if code.raises(to) else taken
    return not taken if code.raises(to) else None


class _Code:
    """The instructions of a function, by their places in it."""

    def __init__(self, frame: FrameType) -> None:
        self.names = {**frame.f_builtins, **frame.f_globals}
        read = dis.Bytecode(frame.f_code)
        self.instructions: list[dis.Instruction] = []
        self.at: dict[int, int] = {}
        for i in read:
            self.at[i.offset] = len(self.instructions)  # also where it begins by EXTENDED_ARG, to which a jump may lead
            if i.opname != "EXTENDED_ARG":
                self.instructions.append(i)
        self.handlers = [(e.start, e.end, e.target) for e in read.exception_entries]  # type: ignore[attr-defined]

    def condition(self, n: int) -> int | None:
        """The jump that a truth decides that instruction n asks for; None where something else is made of it."""
        if not self.is_condition(n):  # a call, of which the jump behind it reads the result
            n += 1
            while n < len(self.instructions) and self.instructions[n].opname == "TO_BOOL":
                n += 1
        return n if n < len(self.instructions) and self.is_condition(n) else None

    def is_condition(self, n: int) -> bool:
        name = self.instructions[n].opname
        return name.startswith("POP_JUMP") and name.endswith(("IF_TRUE", "IF_FALSE"))

    def target(self, n: int) -> int:
        return self.at[self.instructions[n].argval]

    def raises(self, n: int, unless: int | None = None, steps: int = _STEPS) -> bool:
        """Whether everything from instruction n on leads to an error that leaves the function, or, with nothing done
        but further conditions asked for, to instruction `unless`."""
        if unless is not None and self._is_like(n, unless):
            return True
        stores = False
        while n < len(self.instructions) and steps:
            i = self.instructions[n]
            if n == unless:
                return False
            if i.opname == "RAISE_VARARGS":
                return not self.is_caught(i.offset)
            if self.is_condition(n):
                end = None if stores else unless
                return all(self.raises(s, end, steps - 1) for s in (n + 1, self.target(n)))
            if i.opname == "JUMP_FORWARD":
                n, steps = self.target(n), steps - 1
            elif self._leaves(i):
                return False
            else:
                stores = stores or i.opname.startswith(("STORE", "DELETE"))
                n += 1
        return False

    def speaks(self, start: int, stop: int) -> bool:
        """Whether all from one instruction up to another, or to what ends the function like it, is that something is
        printed, logged or warned of."""
        begins = True  # a statement
        for n, i in enumerate(self.instructions[start:stop], start):
            if i.opname in _IDLE:
                continue
            if begins and n > start and self._is_like(n, stop):
                return True
            if begins and not (i.opname in ("LOAD_GLOBAL", "LOAD_NAME") and self._is_voice(i.argval)):
                return False
            if self._leaves(i) or i.opname.startswith(("STORE", "DELETE", "RAISE")):
                return False
            begins = i.opname == "POP_TOP"
        return begins and start < stop

    def _is_like(self, n: int, other: int) -> bool:
        """Whether two places are one, or the same stands at both up to where they return or jump to the same place."""
        if n == other:
            return True
        for a, b in zip(self.instructions[n:], self.instructions[other:], strict=False):
            if (a.opname, a.argval) != (b.opname, b.argval):
                return False
            if self._leaves(a):
                return True
        return False

    def _is_voice(self, name: str) -> bool:
        named = self.names.get(name)
        return any(named is v for v in (print, warnings, warnings.warn, logging)) or isinstance(named, logging.Logger)

    def is_caught(self, offset: int) -> bool:
        """Whether the function may go on behind an error at a place: what ends a `with`, or runs finally, does not."""
        return any(
            start <= offset < end and not self._passes_on(self.at[handler]) for start, end, handler in self.handlers
        )

    def _passes_on(self, n: int) -> bool:
        for i in self.instructions[n:]:
            if i.opname in ("RERAISE", "WITH_EXCEPT_START"):
                return True
            if i.opname == "CHECK_EXC_MATCH" or self._leaves(i):
                return False
        return False

    @staticmethod
    def _leaves(i: dis.Instruction) -> bool:
        """Whether another instruction than the next may follow."""
        jumps = i.opcode in dis.hasjrel or i.opcode in dis.hasjabs
        return jumps or i.opname.startswith(("RETURN", "YIELD"))
