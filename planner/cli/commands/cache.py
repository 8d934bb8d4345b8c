"""`planner cache info|clear`: the answers kept on disk."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from planner.cache import Store, default_folder
from planner.cli.options import add_json_option
from planner.errors import InputError
from planner.requests.values import cache_size

__all__ = ["add_cache_options", "configure", "run"]


def add_cache_options(parser: argparse.ArgumentParser) -> None:
    """--cache and --no-cache."""
    parser.add_argument(
        "--cache",
        type=Path,
        metavar="DIR",
        help="directory of cached answers; default: PLANNER_CACHE_DIR, else planner in the user's cache directory",
    )
    parser.add_argument("--no-cache", action="store_true", help="neither use a cached answer nor cache this one")


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "action", choices=("info", "clear"), help="what to do; info: show what is cached; clear: remove it"
    )
    parser.add_argument(
        "--cache", type=Path, metavar="DIR", help="directory of cached answers; default: the one of `planner search`"
    )
    add_json_option(parser)


def run(options: argparse.Namespace) -> int:
    store = Store(options.cache or default_folder(), cache_size())
    try:
        found = store.clear() if options.action == "clear" else store.contents()
    except OSError as e:
        raise InputError(f"cache {store.folder}: cannot be cleared ({e.strerror}); check its permissions") from e
    plans = found.entries.get("plans", 0)
    done = "removed" if options.action == "clear" else "kept"
    if options.json:
        document = {"folder": str(store.folder), done: plans, "bytes": found.size, "limit_bytes": store.limit}
        print(json.dumps(document, indent=1))
    else:
        print(f"{store.folder}: {done} {plans} answers, {found.size / 2**20:.1f} MiB (limit {store.limit / 2**20:.0f})")
    return 0
