"""`planner store copy`: a service that outgrew its folder goes on in a database and a bucket."""

from __future__ import annotations

import argparse
import json
import sys

from planner.api.settings import add_settings, settings_of
from planner.errors import InputError, UsageError

__all__ = ["HELP", "configure", "run"]

HELP = "copy the store of a folder into an empty PostgreSQL database and a bucket, to be served from there"


def configure(parser: argparse.ArgumentParser) -> None:
    add_settings(parser, "data", "store", "blobs")


def run(options: argparse.Namespace) -> int:
    from planner.api.jobs.errors import StoreError
    from planner.api.jobs.moving import move
    from planner.api.jobs.opening import open_blobs, open_postgres

    settings = settings_of(options)
    data = settings.data
    if not (data / "store.sqlite").is_file():
        raise UsageError(f"--data {data}: expected the folder of a service, found no store.sqlite in it")
    if not settings.store or not settings.blobs:
        raise UsageError("expected --store postgresql://… and --blobs s3://… (or the folder that all hosts share)")
    try:
        database = open_postgres(settings.store)
        try:
            blobs = open_blobs(data, settings.blobs, database)
            moved = move(data, database, blobs, lambda line: print(line, file=sys.stderr))
        finally:
            database.close()
    except StoreError as e:
        raise InputError(str(e)) from e
    if options.json:
        document = {
            "data": str(data),
            "rows": moved.rows,
            "blobs": moved.blobs,
            "there": moved.there,
            "bytes": moved.bytes,
            "lost": moved.lost,
        }
        print(json.dumps(document, indent=1))
        return 0
    for digest in moved.lost:
        print(f"blob {digest}: damaged or gone in the folder; a result is computed again when it is asked for")
    print(
        f"{moved.rows['jobs']:,} jobs, {moved.rows['plans']:,} plans and {moved.blobs:,} blobs"
        f" ({moved.bytes / 1e6:,.1f} MB) copied; {moved.there:,} blobs were there"
    )
    return 0
