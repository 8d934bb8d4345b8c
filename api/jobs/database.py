"""What the store asks of a database: transactions, the moment, and a sign that something has changed.

Statements are one text for every database: `?` and `:name` stand for values, and `db.locked` goes behind a SELECT of
rows that the same transaction will change.  A database that lets one transaction write at a time has nothing to lock.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from functools import wraps
from typing import Any, Final, ParamSpec, Protocol, TypeVar

from planner.api.jobs.errors import StoreConflict

__all__ = ["Database", "Result", "Row", "Transaction", "repeated"]

TRIES: Final = 8  # of a transaction that others were in the way of
PAUSE_S: Final = 0.01  # before the second, doubled from one to the next

P = ParamSpec("P")
T = TypeVar("T")


class Row(Protocol):
    """Values by the name or the number of their column."""

    def __getitem__(self, column: str | int, /) -> Any: ...


class Result(Protocol):
    def fetchone(self) -> Any: ...
    def fetchall(self) -> list[Any]: ...
    def __iter__(self) -> Iterator[Any]: ...
    @property
    def rowcount(self) -> int: ...


class Transaction(Protocol):
    """A connection inside a transaction."""

    @property
    def now(self) -> float:
        """Seconds since the epoch, by the clock that all hosts of this database go by."""

    @property
    def locked(self) -> str:
        """Behind a SELECT of one table: nobody else changes its rows until this transaction ends."""

    def execute(self, statement: str, values: Any = ..., /) -> Result: ...
    def executemany(self, statement: str, values: Sequence[Any], /) -> Any: ...

    def take_turns(self, what: str, /) -> None:
        """Transactions that name the same wait for each other from here to their ends."""


class Database(Protocol):
    """Several processes and threads share it.  Its methods raise StoreBusy, StoreFull, StoreDamaged, StoreUnusable."""

    @property
    def remote(self) -> bool:
        """Whether asking it may take longer than an event loop should wait."""

    def read(self, *, patient: bool = False) -> AbstractContextManager[Transaction]:
        """All reads see one moment.  `patient`: they may take longer than what a request waits for."""

    def write(self, *, durable: bool = True) -> AbstractContextManager[Transaction]:
        """Kept at the end and dropped by an exception.

        Not `durable`: a power failure may undo it, the end of a process does not.
        """

    def version(self) -> int:
        """A number that differs once anyone has written anything that others wait for; microseconds."""

    def changes(self, since: int) -> frozenset[int] | None:
        """Tasks of which anything was written after `version()` was `since`; None where that is not known."""

    def checkpoint(self) -> None:
        """Does now what would otherwise hold up a request."""

    def check(self) -> None:
        """StoreDamaged where what is kept is torn; reads all of it."""

    def close(self) -> None:
        """Gives connections back; nothing is asked afterwards."""


def repeated(method: Callable[P, T]) -> Callable[P, T]:
    """A method of one transaction, begun again where others were in its way; StoreConflict where they stay there."""

    @wraps(method)
    def run(*args: P.args, **kwargs: P.kwargs) -> T:
        for k in range(TRIES - 1):
            try:
                return method(*args, **kwargs)
            except StoreConflict:
                time.sleep(PAUSE_S * 2**k * random.random())
        return method(*args, **kwargs)

    return run
