"""The store that settings name: in a folder of this host, or in a database and a bucket that several hosts share."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import TYPE_CHECKING

from planner.api.jobs.blobs import Blobs
from planner.api.jobs.sqlite import SqliteDatabase
from planner.api.jobs.store import QUEUE, Store
from planner.errors import UsageError

if TYPE_CHECKING:
    from planner.api.jobs.blob_store import BlobStore
    from planner.api.jobs.database import Database
    from planner.api.jobs.postgres.database import PostgresDatabase

__all__ = ["migrate_postgres", "open_blobs", "open_database", "open_postgres", "open_store"]

_POSTGRES = ("postgresql://", "postgres://")


def open_store(folder: Path, store: str = "", blobs: str = "", *, queue: int = QUEUE) -> Store:
    """`folder`: of this host; `store`, `blobs`: as `--store` and `--blobs` say, empty for what lies in the folder.

    UsageError where they are malformed or need what is not installed; StoreError as of the store.
    """
    if store and not blobs:
        raise UsageError(
            "--store without --blobs: models and plans have to lie where all hosts reach them; add --blobs"
        )
    database = open_database(folder, store)
    return Store(folder, queue=queue, database=database, blobs=open_blobs(folder, blobs, database))


def open_database(folder: Path, store: str) -> Database:
    """As of `open_store`."""
    if not store:
        return SqliteDatabase(folder / "store.sqlite")
    return open_postgres(store)


def open_postgres(store: str) -> PostgresDatabase:
    """As of `open_store`."""
    _refuse_other_than_postgres(store)
    from planner.api.jobs.postgres.database import PostgresDatabase

    return PostgresDatabase(store)


def migrate_postgres(store: str) -> tuple[int, int]:
    """Changes the tables to those of this program; their versions before and after.  As of `open_store`."""
    _refuse_other_than_postgres(store)
    from planner.api.jobs.postgres.database import PostgresDatabase

    return PostgresDatabase.migrate(store)


def _refuse_other_than_postgres(store: str) -> None:
    if not store.startswith(_POSTGRES):
        raise UsageError("--store: expected postgresql://HOST/DATABASE")  # not repeated: it may hold a password
    try:
        importlib.import_module("psycopg")
        importlib.import_module("psycopg_pool")
    except ImportError as e:
        raise UsageError(f"--store needs the extra `server` ({e.name} is not installed)") from e


def open_blobs(folder: Path, blobs: str, database: Database) -> BlobStore:
    """As of `open_store`."""
    if not blobs:
        return Blobs(folder / "blobs")
    if "://" not in blobs:
        path = Path(blobs).expanduser()
        if not path.is_absolute():
            raise UsageError(f"--blobs {blobs}: expected s3://BUCKET/PREFIX, or the absolute path of a shared folder")
        return Blobs(path, remote=True)
    try:
        from planner.api.jobs.s3.blobs import S3Blobs
        from planner.api.jobs.s3.bucket import bucket_of
    except ImportError as e:
        raise UsageError(f"--blobs s3://… needs the extra `server` ({e.name} is not installed)") from e
    bucket = bucket_of(blobs)
    bucket.check()
    return S3Blobs(database, bucket)
