"""Which way of a branch does nothing but raise, warn or print, as the instructions of its function say."""

from __future__ import annotations

import dis
import logging
import os
import warnings
from pathlib import Path
from types import FrameType
from typing import Final

import torch

__all__ = ["OURS", "TORCH", "may_be_caught", "way_that_goes_on"]

_IDLE: Final = frozenset({"NOP", "NOT_TAKEN", "PUSH_NULL", "RESUME"})
# Errors by which Python itself is answered: there is no next one, or no such attribute.
_ANSWERS: Final = (AttributeError, GeneratorExit, NotImplementedError, StopAsyncIteration, StopIteration)
_CHANGING: Final = frozenset({"add", "append", "extend", "insert", "pop", "remove", "setdefault", "update"})
_SUPPRESSING: Final = frozenset({"raises", "suppress"})  # ways to go on behind an error, where a `with` ends
TORCH: Final = str(Path(torch.__file__).parent) + os.sep
OURS: Final = str(Path(__file__).parent) + os.sep
_STEPS: Final = 8  # of conditions that one check may join by `and` and `or`


def way_that_goes_on(frame: FrameType) -> bool | None:
    """The truth with which a frame goes on, where with the other it only raises or speaks; None if it is no check."""
    code = _Code(frame)
    asked = code.at.get(frame.f_lasti)
    jump = None if asked is None else code.condition(asked)
    if asked is None or jump is None:
        return None
    on, to = jump + 1, code.target(jump)
    taken = ("IF_TRUE" in code.instructions[jump].opname) != code.turns(asked)
    if code.raises(on, unless=to) or code.speaks(on, to):
        return None if code.raises(to) else taken
    return not taken if code.raises(to) else None


def may_be_caught(error: type[BaseException], frame: FrameType | None, until: str) -> bool:
    """Whether a function that runs may go on behind an error that comes to a frame, up to files that begin so."""
    while frame is not None and not frame.f_code.co_filename.startswith(until):
        if not frame.f_code.co_filename.startswith(TORCH) and _Code(frame).is_caught(frame.f_lasti, error):
            return True
        frame = frame.f_back
    return False


class _Code:
    """The instructions of a function, by their places in it."""

    def __init__(self, frame: FrameType) -> None:
        self.frame = frame
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
            if not self.instructions[n].opname.startswith(("CALL", "PRECALL", "CONTAINS_OP", "TO_BOOL")):
                return None
            n += 1
            while n < len(self.instructions) and self.instructions[n].opname == "TO_BOOL":
                n += 1
        return n if n < len(self.instructions) and self.is_condition(n) else None

    def turns(self, n: int) -> bool:
        """Whether what is asked is the opposite of what the jump reads: `x not in y`."""
        return self.instructions[n].opname == "CONTAINS_OP" and self.instructions[n].arg == 1

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
                error = self._error(n)
                caught = self.is_caught(i.offset, error) or may_be_caught(error, self.frame.f_back, OURS)
                return not caught and not issubclass(error, _ANSWERS)
            if self.is_condition(n):
                end = None if stores else unless
                return all(self.raises(s, end, steps - 1) for s in (n + 1, self.target(n)))
            if i.opname == "JUMP_FORWARD":
                n, steps = self.target(n), steps - 1
            elif self._leaves(i):
                return False
            else:
                stores = stores or i.opname == "POP_TOP" or self._changes(i)
                n += 1
        return False

    def _error(self, n: int) -> type[BaseException]:
        """The kind of error that a statement raises: of what it names, the last that is one."""
        for i in reversed(self.instructions[:n]):
            if i.opname == "LOAD_ASSERTION_ERROR":
                return AssertionError
            if i.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
                named = self.names.get(i.argval)
                if isinstance(named, type) and issubclass(named, BaseException):
                    return named
            if self._leaves(i):
                break
        return BaseException

    @staticmethod
    def _changes(i: dis.Instruction) -> bool:
        """Whether an instruction stores something, or names what may change something in its place."""
        if i.opname.startswith(("STORE", "DELETE")):
            return True
        if not i.opname.startswith(("LOAD_METHOD", "LOAD_ATTR")):
            return False
        return i.argval in _CHANGING or (i.argval.endswith("_") and not i.argval.endswith("__"))

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
            if self._leaves(i) or self._changes(i) or i.opname == "RAISE_VARARGS":
                return False
            begins = i.opname == "POP_TOP"
        return begins and start < stop

    def _is_like(self, n: int, other: int) -> bool:
        """Whether two places are one, or the same stands at both up to where they return or jump to the same place."""
        if n == other:
            return True
        for a, b in zip(self.instructions[n:], self.instructions[other:], strict=False):
            if a.opname != b.opname or (type(a.argval), repr(a.argval)) != (type(b.argval), repr(b.argval)):
                return False
            if self._leaves(a):
                return not self.is_condition(self.at[a.offset]) and "IF_NO" not in a.opname and a.opname != "FOR_ITER"
        return False

    def _is_voice(self, name: str) -> bool:
        named = self.names.get(name)
        return any(named is v for v in (print, warnings, warnings.warn, logging)) or isinstance(named, logging.Logger)

    def is_caught(self, offset: int, error: type[BaseException]) -> bool:
        """Whether the function may go on behind such an error at a place: what ends a `with`, or runs finally, raises
        it again."""
        for start, end, handler in self.handlers:
            if start <= offset < end:
                again = self._raised_again(self.at[handler], error)
                return again is None or self.is_caught(again, error)
        return False

    def _raised_again(self, n: int, error: type[BaseException]) -> int | None:
        """Where a handler that does not catch an error raises it again; None where it may catch it."""
        named: object = None
        while n < len(self.instructions):
            i = self.instructions[n]
            if i.opname == "WITH_EXCEPT_START":
                return None if _SUPPRESSING & set(self.frame.f_code.co_names) else i.offset
            if i.opname == "RERAISE":
                return i.offset
            if i.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
                named = self.names.get(i.argval)
            elif i.opname == "CHECK_EXC_MATCH":
                if not isinstance(named, type) or issubclass(error, named) or issubclass(named, error):
                    return None
                named, n = None, self.target(n + 1) - 1  # to the next that is named
            elif i.opname in ("LOAD_ATTR", "BUILD_TUPLE"):
                named = None
            elif self._leaves(i) or (i.opname == "POP_TOP" and self.instructions[n - 1].opname == "PUSH_EXC_INFO"):
                return None  # more than raising it again, or `except:`
            n += 1
        return None

    @staticmethod
    def _leaves(i: dis.Instruction) -> bool:
        """Whether another instruction than the next may follow."""
        jumps = i.opcode in dis.hasjrel or i.opcode in dis.hasjabs
        return jumps or i.opname.startswith(("RETURN", "YIELD"))
