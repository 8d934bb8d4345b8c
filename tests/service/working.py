"""A worker that a test drives by hand."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from planner.api.jobs.child import main
from planner.api.jobs.forks import Entry
from planner.api.jobs.limits import Limits
from planner.api.jobs.records import TaskState
from planner.api.jobs.store import Store
from planner.api.jobs.tasks import Task
from planner.api.jobs.worker import Worker

__all__ = ["SMALL", "ask", "until", "working"]

SMALL = Limits(memory_bytes=1 << 30, cpu_s=20, wall_s=60.0, grace_s=0.5, file_bytes=1 << 20, result_bytes=1 << 20)


@contextmanager
def working(store: Store, slots: int = 1, limits: Limits = SMALL, entry: Entry = main) -> Iterator[Worker]:
    worker = Worker(store, slots, limits, entry=entry)
    with worker.place():
        try:
            yield worker
        finally:
            worker._leave()


def until(worker: Worker, holds: Callable[[], Any], seconds: float = 60.0) -> None:
    """Lets the worker work until something holds."""
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, "it did not come about"
        worker.turn()


def ask(store: Store, worker: Worker, task: Task) -> TaskState:
    """The end of a task."""
    begun = store.ensure(task, "a")
    until(worker, lambda: store.state(begun.id).ended)
    return store.state(begun.id)
