"""`planner store check|backup`: looking after what a service keeps.

An action is a module of this package with `HELP`, `configure(parser)` and `run(options)`: nothing else lists it.  Names
that begin with an underscore are shared by actions.
"""

from __future__ import annotations

import argparse
from importlib import import_module
from pkgutil import iter_modules
from typing import Any

__all__ = ["configure", "run"]


def configure(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    for name in _names():
        module = _action(name)
        action = actions.add_parser(name, help=module.HELP)
        module.configure(action)
        action.add_argument("--json", action="store_true", help="print one JSON document on standard output")


def run(options: argparse.Namespace) -> int:
    return int(_action(options.action).run(options))


def _names() -> list[str]:
    return [found.name for found in iter_modules(__path__) if not found.name.startswith("_")]


def _action(name: str) -> Any:
    return import_module(f"{__name__}.{name}")
