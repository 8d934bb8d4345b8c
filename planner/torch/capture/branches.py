"""Which way of a branch does nothing but raise, warn or print, as the instructions of its function say."""

from __future__ import annotations

import dis
import logging
import warnings
from types import FrameType
from typing import Final

__all__ = ["way_that_goes_on"]

_IDLE: Final = frozenset({"NOP", "NOT_TAKEN", "PUSH_NULL", "RESUME"})
_STEPS: Final = 8  # of conditions that one check may join by `and` and `or`


def way_that_goes_on(frame: FrameType) -> bool | None:
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
