"""Hostile code in a child: what it tries, and what of that it could do."""

from __future__ import annotations

import ctypes
import fcntl
import os
import resource
import signal
import socket
import sqlite3
import struct
import subprocess
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection
from pathlib import Path

from planner.api.jobs.child import main
from planner.api.jobs.execute import Tell
from planner.api.jobs.work import JobInput, JobResult

__all__ = ["hostile"]

_libc = ctypes.CDLL(None, use_errno=True)


def hostile(sender: Connection, work: JobInput) -> None:
    """Tries all of it, and says what was done as the summary."""
    main(sender, work, _try_all)


def _try_all(work: JobInput, tell: Tell) -> JobResult:
    done: dict[str, str] = {}
    for name, attempt in _attempts(work).items():
        try:
            done[name] = repr(attempt())
        except Exception as e:
            tell.say(f"{name}: {e!r}")
    return JobResult({}, {"done": done})


def _attempts(work: JobInput) -> Mapping[str, Callable[[], object]]:
    store, other, theirs = (Path(work.options[name]) for name in ("store", "other", "theirs"))
    worker, sibling = work.options["worker"], work.options["sibling"]
    own, priority = work.scratch, os.getpriority(os.PRIO_PROCESS, worker)

    def insert_key() -> None:
        with sqlite3.connect(store / "store.sqlite") as db:
            db.execute("INSERT INTO keys VALUES ('k', 't', 'n', 'hash', 0, NULL)")

    def follow(link: str) -> bytes:
        (os.link if link == "second" else os.symlink)(store / "secret", own / link)
        return (own / link).read_bytes()

    return {
        "files: read the secret": lambda: (store / "secret").read_bytes(),
        "files: read the store": lambda: (store / "store.sqlite").read_bytes()[:1],
        "files: insert a key": insert_key,
        "files: read another's model": lambda: other.read_bytes(),
        "files: find models": lambda: os.listdir(store / "blobs"),
        "files: read another's folder": lambda: (theirs / "note").read_bytes(),
        "files: write another's folder": lambda: (theirs / "work").write_bytes(b"x"),
        "files: read another's cached answers": lambda: os.listdir(store / "cache"),
        "files: read by a link": lambda: follow("link"),
        "files: read by a second name": lambda: follow("second"),
        "files: move the store": lambda: os.rename(store / "store.sqlite", own / "mine"),
        "files: remove the secret": lambda: os.unlink(store / "secret"),
        "files: cut the secret off": lambda: os.truncate(store / "secret", 0),
        "files: write its inputs": lambda: (work.folder / "in" / "model").write_bytes(b"x"),
        "files: write beside": lambda: (work.folder / "more").write_bytes(b"x"),
        "files: write elsewhere": lambda: Path("/tmp", f"escaped-{os.getpid()}").write_bytes(b"x"),
        "files: write code": lambda: (Path(os.__file__).parent / "escaped.py").write_bytes(b"x"),
        "files: read passwords": lambda: Path("/etc/shadow").read_bytes(),
        "files: read the worker's memory": lambda: Path(f"/proc/{worker}/mem").open("rb").fileno(),
        "files: read the worker's variables": lambda: Path(f"/proc/{worker}/environ").read_bytes(),
        "files: run a shell": lambda: subprocess.run(["/bin/sh", "-c", "true"], check=True),
        "signals: end the worker": lambda: os.kill(worker, signal.SIGTERM),
        "signals: end a sibling": lambda: os.kill(sibling, signal.SIGKILL),
        "calls: IPv4": lambda: socket.socket(socket.AF_INET).fileno(),
        "calls: IPv6": lambda: socket.socket(socket.AF_INET6).fileno(),
        "calls: a local socket": lambda: socket.socket(socket.AF_UNIX).fileno(),
        "calls: netlink": lambda: socket.socket(socket.AF_NETLINK, socket.SOCK_RAW).fileno(),
        "calls: a datagram to a local service": lambda: socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)[0].sendto(
            b"x", str(store / "service")
        ),
        "calls: a socket without Python": lambda: _did(_libc.socket(2, 1, 0)),
        "calls: a message to another's queue": lambda: _did(
            _libc.msgsnd(work.options["queue"], struct.pack("l8s", 1, b"x"), 8, 0)
        ),
        "calls: trace the worker": lambda: _did(_libc.ptrace(16, worker, 0, 0)),
        "calls: trace a sibling": lambda: _did(_libc.ptrace(16, sibling, 0, 0)),
        "calls: mount": lambda: _did(_libc.mount(b"none", bytes(own), b"tmpfs", 0, None)),
        "calls: namespaces": lambda: _did(_libc.unshare(0x10000000)),
        "calls: keys": lambda: _did(_libc.syscall(250, 0, -3, 1)),
        "calls: io_uring": lambda: _did(_libc.syscall(425, 1, ctypes.create_string_buffer(120))),
        "calls: leave its group": lambda: _did(_libc.setpgid(0, 0)),
        "calls: signal everything": lambda: os.kill(-1, 0),  # 0: none, so that this harms nobody where it is done
        "calls: limit the worker": lambda: resource.prlimit(worker, resource.RLIMIT_CORE, (0, 0)),
        "calls: lock the store": lambda: os.chmod(store / "store.sqlite", 0),
        "calls: make the secret old": lambda: os.utime(store / "secret", (0, 0)),
        "calls: change what the secret is": lambda: _did(
            _libc.syscall(469, -100, bytes(store / "secret"), ctypes.create_string_buffer(24), 24, 0)
        ),
        "calls: change what its input is": lambda: fcntl.ioctl(
            os.open(work.folder / "in" / "model", os.O_RDONLY), 0x40086602, struct.pack("l", 0)
        ),
        "calls: open a folder as a mount": lambda: _did(_libc.syscall(467, -100, bytes(store), 0, None, 0)),
        "calls: slow the worker": lambda: os.setpriority(os.PRIO_PROCESS, worker, priority),
        "calls: more memory": lambda: resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY,) * 2),
    }


def _did(result: int) -> int:
    if result < 0:
        raise OSError(ctypes.get_errno(), "refused")
    return result
