"""Asking a vendor's program, which may be missing, broken, slow or endless."""

from __future__ import annotations

import contextlib
import os
import selectors
import shutil
import signal
import subprocess
import time
from dataclasses import dataclass
from typing import Final

__all__ = ["LIMIT_S", "Answer", "ask", "note_on_visible"]

LIMIT_S: Final = 20.0  # the first call after a boot loads the driver, which takes seconds on servers of eight devices
_MOST_BYTES: Final = 1 << 20  # a server of 16 devices answers with some 10 KB


@dataclass(frozen=True, slots=True)
class Answer:
    """What a program has printed.

    Attributes:
        installed: whether there is such a program on the PATH.
        text: its standard output, empty where there is a problem.
        problem: why the text is of no use, as the end of a sentence that begins with the program's name.
    """

    installed: bool
    text: str = ""
    problem: str = ""


def ask(program: str, *arguments: str, limit_s: float = LIMIT_S) -> Answer:
    """What `program` prints.  It is killed with its children after `limit_s`, or beyond a megabyte."""
    path = shutil.which(program)
    if path is None:
        return Answer(False, problem="is not on the PATH")
    environment = {**os.environ, "LC_ALL": "C"}
    try:
        process = subprocess.Popen(
            [path, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,  # where nvidia-smi writes what is wrong differs between drivers
            env=environment,
            start_new_session=True,
        )
    except OSError as e:
        return Answer(True, problem=f"cannot be run: {e.strerror}")
    try:
        printed, problem = _printed(process, limit_s)
    finally:
        _kill(process)
    text = printed.decode("utf-8", "replace")
    if not problem and process.returncode:
        said = next((line.strip() for line in text.splitlines() if line.strip()), "nothing")
        problem = f"ended with status {process.returncode} and said: {said[:200]}"
    return Answer(True, problem=problem) if problem else Answer(True, text)


def note_on_visible(variable: str, devices: int) -> list[str]:
    """That a job scheduler or the user gives programs fewer devices than the vendor's program shows."""
    given = os.environ.get(variable)
    count = len([word for word in (given or "").split(",") if word.strip()])
    if given is None or count >= devices:
        return []
    return [f"{variable} gives programs {count} of the {devices} devices: plan with --devices {count}"]


def _printed(process: subprocess.Popen[bytes], limit_s: float) -> tuple[bytes, str]:
    """All that the process prints, and what went wrong."""
    assert process.stdout is not None
    end, found = time.monotonic() + limit_s, bytearray()
    late = f"did not answer within {limit_s:g} s"
    with selectors.DefaultSelector() as ready:
        ready.register(process.stdout, selectors.EVENT_READ)
        while True:
            if not ready.select(max(0.0, end - time.monotonic())):
                return b"", late
            part = os.read(process.stdout.fileno(), 1 << 16)
            if not part:
                break
            found += part
            if len(found) > _MOST_BYTES:
                return b"", f"printed more than {_MOST_BYTES >> 20} MiB"
    try:
        process.wait(max(0.0, end - time.monotonic()))
    except subprocess.TimeoutExpired:
        return b"", late
    return bytes(found), ""


def _kill(process: subprocess.Popen[bytes]) -> None:
    """The process, and whatever it has started, which may hold its output open."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    if process.stdout is not None:
        process.stdout.close()
