"""`planner store check`: whether what a service keeps is whole."""

from __future__ import annotations

import argparse
import json

from planner.api.settings import add_settings, settings_of
from planner.api.upkeep._folder import examine, refuse_no_store

__all__ = ["HELP", "configure", "run"]

HELP = "read the database and every blob, and say what is damaged or missing"


def configure(parser: argparse.ArgumentParser) -> None:
    add_settings(parser, "data")


def run(options: argparse.Namespace) -> int:
    """1 where something is damaged or missing."""
    data = settings_of(options).data
    refuse_no_store(data)
    found = examine(data)
    if options.json:
        print(json.dumps({"data": str(data), **found.document()}, indent=1))
        return 0 if found.sound else 1
    for line in found.database:
        print(f"database: {line}; restore a backup")
    for digest in found.damaged:
        print(f"blob {digest}: its file has other content; a result is computed again when it is asked for")
    for digest in found.missing:
        print(f"blob {digest}: a row names it, and it is gone; a result is computed again when it is asked for")
    state = "ok" if found.sound else "FAILED"
    print(f"{state}: {found.jobs:,} jobs, {found.blobs:,} blobs, {found.bytes / 1e6:,.1f} MB in {data}")
    return 0 if found.sound else 1
