"""`planner store check`: whether what a service keeps is whole."""

from __future__ import annotations

import argparse
import json

from planner.api.settings import Settings, add_settings, settings_of
from planner.api.upkeep._folder import Findings, examine, refuse_no_store
from planner.errors import InputError

__all__ = ["HELP", "configure", "run"]

HELP = "read the database and every blob, and say what is damaged or missing"


def configure(parser: argparse.ArgumentParser) -> None:
    add_settings(parser, "data", "store", "blobs")


def run(options: argparse.Namespace) -> int:
    """1 where something is damaged or missing."""
    settings = settings_of(options)
    data = settings.data
    if settings.store:
        found = _examine_shared(settings)
    else:
        refuse_no_store(data)
        found = examine(data)
    if options.json:
        print(json.dumps({"data": None if settings.store else str(data), **found.document()}, indent=1))
        return 0 if found.sound else 1
    for line in found.database:
        print(f"database: {line}; restore a backup")
    for digest in found.damaged:
        print(f"blob {digest}: its file has other content; a result is computed again when it is asked for")
    for digest in found.missing:
        print(f"blob {digest}: a row names it, and it is gone; a result is computed again when it is asked for")
    where = "the shared store" if settings.store else data
    state = "ok" if found.sound else "FAILED"
    print(f"{state}: {found.jobs:,} jobs, {found.blobs:,} blobs, {found.bytes / 1e6:,.1f} MB in {where}")
    return 0 if found.sound else 1


def _examine_shared(settings: Settings) -> Findings:
    from planner.api.jobs.errors import StoreError
    from planner.api.jobs.opening import open_store
    from planner.api.upkeep._shared import examine_shared

    try:
        store = open_store(settings.data, settings.store, settings.blobs)
        try:
            return examine_shared(store.database, store.blobs)
        finally:
            store.database.close()
    except StoreError as e:
        raise InputError(str(e)) from e
