"""`planner hardware [NAME]`: the machines that are known, and where each value comes from."""

from __future__ import annotations

import argparse
import dataclasses
import json
from typing import Any

from planner.cli.options import add_json_option
from planner.requests.values import profile_of

__all__ = ["configure", "run"]


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", nargs="?", metavar="NAME", help="profile or TOML file; without it all are listed")
    add_json_option(parser)


def run(options: argparse.Namespace) -> int:
    from planner.cost_models import load_profile, profile_names

    if options.name is None:
        profiles = [load_profile(n) for n in profile_names()]
        if options.json:
            print(json.dumps([{"name": p.name, "description": p.description} for p in profiles], indent=1))
        else:
            for p in profiles:
                print(f"{p.name:14} {p.description}")
        return 0
    profile = profile_of(options.name)
    values = _plain(dataclasses.asdict(profile))
    sources = values.pop("sources")
    if options.json:
        print(json.dumps({**values, "sources": sources}, indent=1))
        return 0
    print(f"{profile.name}: {profile.description}\n")
    for key, source in sources.items():
        print(f"{key} = {_at(values, key)}\n    {source}")
    return 0


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _plain(v) for k, v in value.items()}
    return [_plain(v) for v in value] if isinstance(value, tuple | list) else value


def _at(values: Any, key: str) -> Any:
    """Value at a dotted key; protocols are listed by position or name in the keys."""
    for part in key.split("."):
        if isinstance(values, list):
            values = next((v for i, v in enumerate(values) if part in (str(i), v.get("name"))), None)
        else:
            values = values.get(part) if isinstance(values, dict) else None
    return values
