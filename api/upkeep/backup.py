"""`planner store backup DIR`: a copy of what a service keeps, taken while it works."""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import json
import os
import shutil
import sqlite3
import tempfile
from collections.abc import Iterator
from pathlib import Path

from planner.api.jobs.blobs import Blobs
from planner.api.settings import add_settings, settings_of
from planner.api.upkeep._folder import DATABASE, Findings, examine, named_blobs, reading, refuse_no_store
from planner.errors import InputError, UsageError

__all__ = ["HELP", "backup", "configure", "run"]

HELP = "copy the store into a new folder while the service works; `planner serve --data DIR` opens it"


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "folder", type=Path, metavar="DIR", help="folder to be made; it holds the whole store, or is not there"
    )
    add_settings(parser, "data")


def run(options: argparse.Namespace) -> int:
    data, target = settings_of(options).data, options.folder
    refuse_no_store(data)
    if target.exists():
        raise UsageError(f"{target}: it is there already; name a folder that is not, or move it away")
    try:
        found = backup(data, target)
    except sqlite3.Error as e:
        raise InputError(f"--data {data}: its database cannot be read ({e}); see `planner store check`") from e
    except OSError as e:
        raise InputError(f"{target}: the backup cannot be written ({e.strerror}); nothing of it was kept") from e
    if options.json:
        print(json.dumps({"data": str(data), "backup": str(target), **found.document()}, indent=1))
    else:
        print(f"{found.jobs:,} jobs and {found.blobs:,} blobs, {found.bytes / 1e6:,.1f} MB, are in {target}")
    return 0


def backup(data: Path, target: Path) -> Findings:
    """The store of one moment, whole or not at all, and looked through once it is written.

    InputError where the store itself is not whole; OSError, sqlite3.Error.
    """
    target.absolute().parent.mkdir(parents=True, exist_ok=True)
    made = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.absolute().parent))
    try:
        with _unpurged(data):
            _copy_database(data, made)
            _copy_blobs(data, made)
        if (data / "secret").is_file():  # cookies and cursors that were given out stay good
            shutil.copy(data / "secret", made / "secret")
        found = examine(made)
        if not found.sound:
            wrong = (*found.database, *(f"blob {digest}" for digest in (*found.damaged, *found.missing)))
            raise InputError(
                f"--data {data}: not whole ({len(wrong)} faults, first {wrong[0]}), so that no backup was made; "
                "`planner store check` lists them"
            )
        os.rename(made, target)
        _sync(target.absolute().parent)
        return found
    except BaseException:
        shutil.rmtree(made, ignore_errors=True)
        raise


@contextlib.contextmanager
def _unpurged(data: Path) -> Iterator[None]:
    """While this holds nothing removes a blob: purging waits, and writers do not."""
    lock = os.open(data / "blobs" / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_SH)
        yield
    finally:
        os.close(lock)


def _copy_database(data: Path, made: Path) -> None:
    with reading(data) as source, contextlib.closing(sqlite3.connect(made / DATABASE)) as copy:
        source.backup(copy)  # of one moment, also while others write
    os.chmod(made / DATABASE, 0o600)
    _sync(made / DATABASE)


def _copy_blobs(data: Path, made: Path) -> None:
    """Those that a row of the copy names; what was uploaded since belongs to requests that it does not know."""
    blobs, copies = Blobs(data / "blobs"), Blobs(made / "blobs")
    copies.folder.mkdir()
    with reading(made) as db:
        named = named_blobs(db)
    for digest in sorted(named):
        place = copies.path(digest)
        place.parent.mkdir(exist_ok=True)
        with contextlib.suppress(FileNotFoundError):  # said by the look through the copy
            shutil.copyfile(blobs.path(digest), place)
            _sync(place)
    for folder in (*copies.folder.iterdir(), copies.folder, made):
        _sync(folder)


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
