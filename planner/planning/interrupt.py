"""Work that ends when it is told to, whatever it is busy with.

Solvers look at their control often, but pricing a mesh or a library's own loop may take seconds.  The work runs in a
thread of its own; when it overstays, the thread is interrupted at its next step of Python, and where it is stuck in
compiled code it is left behind, for the process to end.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable

from planner.search.control import Control

__all__ = ["GRACE", "run_until_stopped"]

GRACE = 0.25  # seconds in which work may end by itself
STUCK = 0.25  # and to take notice of an interruption
TICK = 0.02


class _Interrupted(BaseException):
    """Raised in the thread; a BaseException, so that no handler on the way takes it for a failure."""


def run_until_stopped(work: Callable[[], None], control: Control) -> bool:
    """Runs `work` until it ends or `control` says stop; whether it came to its end by itself.

    What `work` raises is raised here.  After False, what it was changing may be half done.
    """
    failure: list[BaseException] = []
    ended = threading.Event()

    def run() -> None:
        try:
            work()
        except _Interrupted as e:
            failure.append(e)
        except BaseException as e:
            failure.append(e)
        finally:
            ended.set()

    thread = threading.Thread(target=run, name="search", daemon=True)
    thread.start()
    while not ended.wait(TICK) and not control.stopped:
        pass  # woken now and then, so that signals are handled
    if not ended.wait(GRACE):
        _interrupt(thread)
        ended.wait(STUCK)
    if ended.is_set():
        if failure and not isinstance(failure[0], _Interrupted):
            raise failure[0]
        return not failure
    return False


def _interrupt(thread: threading.Thread) -> None:
    if thread.ident is not None:
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), ctypes.py_object(_Interrupted))
