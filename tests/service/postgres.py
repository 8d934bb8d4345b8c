"""A PostgreSQL server of the tests' own: in a folder, on a socket, gone with them."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

__all__ = ["Server", "found", "serving_postgres"]

_FAST = ("fsync=off", "synchronous_commit=on", "full_page_writes=off", "shared_buffers=32MB", "max_connections=100")
_names = count()


def found() -> str | None:
    """The folder of `initdb` and `postgres`; None where they are not installed, or may not run."""
    if os.getuid() == 0 and not any(account.pw_name == "postgres" for account in pwd.getpwall()):
        return None  # they refuse to run as root
    installed = sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"))
    path = shutil.which("postgres") or (str(installed[-1]) if installed else None)
    return None if path is None else str(Path(path).resolve().parent)


@dataclass
class Server:
    folder: Path
    process: subprocess.Popen[bytes]
    commands: str
    account: dict[str, Any]
    listens: str = ""  # address of this machine, beside the socket
    _template: str | None = field(default=None)

    def url(self, database: str) -> str:
        return f"postgresql://planner@/{database}?host={self.folder}"

    def database(self) -> str:
        """The address of an empty store."""
        import psycopg

        from planner.api.jobs.postgres.database import PostgresDatabase

        with psycopg.connect(self.url("postgres"), autocommit=True) as db:
            if self._template is None:
                db.execute("CREATE DATABASE made")
                PostgresDatabase(self.url("made")).close()
                self._template = "made"
            name = f"test_{next(_names)}"
            db.execute(f"CREATE DATABASE {name} TEMPLATE made STRATEGY FILE_COPY")
        return self.url(name)

    def restart(self) -> None:
        """Ends it, connections and all, and starts it again."""
        self.process.send_signal(signal.SIGINT)
        self.process.wait(30)
        self.process = _start(self.commands, self.folder, self.account, self.listens)

    def listen(self, address: str) -> None:
        """From now on whoever reaches an address of this machine may connect to it, port 5432."""
        self.listens = address
        with open(self.folder / "data" / "pg_hba.conf", "a") as rules:
            rules.write("host all all samenet trust\n")
        self.restart()

    def reached(self, url: str) -> str:
        """The address of a database as other hosts say it."""
        return url.replace("@/", f"@{self.listens}/").partition("?")[0]


@contextmanager
def serving_postgres() -> Iterator[Server]:
    commands = found()
    assert commands is not None
    folder = Path(tempfile.mkdtemp(prefix="pg-"))  # short: the path of a socket has at most 107 bytes
    account: dict[str, Any] = {}
    if os.getuid() == 0:
        user = pwd.getpwnam("postgres")
        account = {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
        os.chown(folder, user.pw_uid, user.pw_gid)
    try:
        options = [
            "--no-sync",
            "--no-instructions",
            "-A",
            "trust",
            "-U",
            "planner",
            "-E",
            "UTF8",
            "--locale",
            "C.UTF-8",
        ]
        subprocess.run(
            [f"{commands}/initdb", *options, "-D", f"{folder}/data"],
            check=True,
            capture_output=True,
            cwd=folder,
            **account,
        )
        server = Server(folder, _start(commands, folder, account, ""), commands, account)
        try:
            yield server
        finally:
            server.process.send_signal(signal.SIGQUIT)
            server.process.wait(30)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _start(commands: str, folder: Path, account: dict[str, Any], listens: str) -> subprocess.Popen[bytes]:
    import psycopg

    settings = [
        w for s in (*_FAST, f"listen_addresses={listens}", f"unix_socket_directories={folder}") for w in ("-c", s)
    ]
    with open(folder / "log", "ab") as log:
        process = subprocess.Popen(
            [f"{commands}/postgres", "-D", f"{folder}/data", *settings], stdout=log, stderr=log, cwd=folder, **account
        )
    until = time.monotonic() + 60
    while True:
        try:
            psycopg.connect(f"postgresql://planner@/postgres?host={folder}").close()
            return process
        except psycopg.OperationalError:
            if process.poll() is not None or time.monotonic() > until:
                raise RuntimeError((folder / "log").read_text()) from None
            time.sleep(0.02)
