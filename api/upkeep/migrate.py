"""`planner store migrate`: the tables of a store become those of this program's version."""

from __future__ import annotations

import argparse
import json

from planner.api.settings import add_settings, settings_of
from planner.errors import InputError, UsageError

__all__ = ["HELP", "configure", "run"]

HELP = "change the tables of a store to those of this program, so that it and the program before can both work on them"


def configure(parser: argparse.ArgumentParser) -> None:
    add_settings(parser, "data", "store")


def run(options: argparse.Namespace) -> int:
    from planner.api.jobs.errors import StoreError
    from planner.api.jobs.opening import migrate_postgres
    from planner.api.jobs.sqlite import SqliteDatabase

    settings = settings_of(options)
    path = settings.data / "store.sqlite"
    try:
        if settings.store:
            before, after = migrate_postgres(settings.store)
        elif path.is_file():
            before = SqliteDatabase.version_of(path)
            SqliteDatabase(path)
            after = SqliteDatabase.version_of(path)
        else:
            raise UsageError(f"--data {settings.data}: expected the folder of a service, found no store.sqlite in it")
    except StoreError as e:
        raise InputError(str(e)) from e
    if options.json:
        print(json.dumps({"before": before, "after": after}))
    else:
        print(f"version {after}" + ("" if before == after else f", it was {before}"))
    return 0
