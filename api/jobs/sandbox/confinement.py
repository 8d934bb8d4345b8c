"""A child's sandbox: what is asked for, what the kernel grants of it, and putting a process inside."""

from __future__ import annotations

import functools
import logging
import os
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final, Literal, get_args

from planner.api.jobs.sandbox import landlock, seccomp
from planner.api.jobs.sandbox.kernel import MACHINE
from planner.api.jobs.sandbox.privileges import drop_capabilities, gain_none
from planner.api.jobs.sandbox.readable import DEVICES, SYSTEM, programs, without
from planner.errors import UsageError

__all__ = ["MODES", "Confinement", "Granted", "Mode", "Unconfined", "announce", "granted"]

_log = logging.getLogger("planner.sandbox")

Mode = Literal["require", "auto", "off"]
MODES: Final[tuple[Mode, ...]] = get_args(Mode)


class Unconfined(Exception):
    """A sandbox was required, and the kernel does not grant all of it."""


@dataclass(frozen=True, slots=True)
class Granted:
    """What this kernel grants: the version of Landlock, 0 for none, and whether it filters system calls."""

    landlock: int
    calls: bool

    @property
    def missing(self) -> tuple[str, ...]:
        """What a child could reach for want of it."""
        lacks = (
            (self.landlock < landlock.FILES_ABI, "files of other tenants (Landlock, Linux 6.2)"),
            (self.landlock < landlock.SIGNALS_ABI, "signals to other processes (Landlock, Linux 6.12)"),
            (not self.calls, "the network and the kernel's interfaces (seccomp, on x86_64 and aarch64)"),
        )
        return tuple(what for lacking, what in lacks if lacking)


@dataclass(frozen=True, slots=True)
class Confinement:
    """`granted`: by the kernel, found out once; `programs`: folders of code that a child reads and runs."""

    mode: Mode
    granted: Granted
    programs: tuple[Path, ...] = ()

    @classmethod
    def of(cls, mode: Mode, store: Iterable[Path], given: Iterable[str] = ()) -> Confinement:
        """For children of a store, of whose folders they see no file; `given`: folders of PYTHONPATH."""
        if mode == "off":
            return cls(mode, Granted(0, False))
        seen = programs(given)
        for folder in store:
            seen = tuple(without(seen, folder))
        return cls(mode, granted(), seen)

    def enter(self, *, read: Iterable[Path] = (), write: Iterable[Path] = ()) -> None:
        """Puts this process inside, for good; it must have a single thread.  Unconfined where all is required and
        something is not granted."""
        if self.mode == "off":
            return
        found = self.granted
        if self.mode == "require" and found.missing:
            raise Unconfined(f"the kernel does not keep children from {'; '.join(found.missing)}")
        try:
            _confine(found, self.programs, (*SYSTEM, *read), (*DEVICES, *write))
        except OSError as e:
            if self.mode == "require":
                raise Unconfined(f"the kernel refused a part of the sandbox ({e.strerror})") from e
            print(f"the kernel refused a part of the sandbox: {e.strerror}", file=sys.stderr)


@functools.cache
def granted() -> Granted:
    """What this kernel grants, as it says itself and as a process that tries it finds."""
    version, calls = landlock.abi(), seccomp.available()
    parts = (Granted(version, calls), Granted(version, False), Granted(0, calls))
    return next((part for part in parts if _holds(part)), Granted(0, False))


@functools.cache
def _program() -> bytes:
    return seccomp.program()


def announce(mode: Mode) -> None:
    """One line of the log on what of the sandbox there is.  UsageError where all is required and something is not
    there."""
    found = granted()
    fields = {"sandbox": mode, "landlock": found.landlock, "seccomp": found.calls, "not_kept_from": list(found.missing)}
    if mode == "require" and found.missing:
        raise UsageError(
            "--sandbox require: this kernel does not keep the processes that read models from "
            f"{'; '.join(found.missing)}; run on one that does, or take `auto`, which does what there is"
        )
    if mode == "off" or found.missing:
        _log.warning("models are read without a whole sandbox", extra={"fields": fields})
    else:
        _log.info("models are read in a sandbox", extra={"fields": fields})


def _holds(found: Granted) -> bool:
    """Whether a process can be put inside, tried with one that ends at once."""
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            _confine(found, (), (), ())
            status = 0
        finally:
            os._exit(status)
    return os.waitpid(pid, 0)[1] == 0


def _confine(found: Granted, run: Iterable[Path], read: Iterable[Path], write: Iterable[Path]) -> None:
    """Each part that there is, also where another is refused.  OSError."""
    if not MACHINE:
        return  # no Linux, or one that the calls below are not known of
    parts: list[Callable[[], object]] = [gain_none]
    if found.landlock:
        parts.append(partial(landlock.restrict, run=run, read=read, write=write))
    parts.append(partial(drop_capabilities, MACHINE))
    if found.calls:
        parts.append(partial(seccomp.forbid, _program()))
    refused: list[OSError] = []
    for part in parts:
        try:
            part()
        except OSError as e:
            refused.append(e)
    if refused:
        raise refused[0]
