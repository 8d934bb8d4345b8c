"""Options of a request as the command line has them: one parser says what is right.

No option may name a file of this machine: profiles go by the names of packaged ones, constraints come as an input.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, NoReturn

from planner.errors import UsageError

__all__ = ["EVALUATION", "SEARCH", "evaluation_options", "model_file", "search_options"]

SEARCH: Final = frozenset(
    (
        *("devices", "hardware", "nodes", "mesh", "mode", "memory_limit", "optimizer", "precision", "recompute"),
        *("stages", "micro_batches", "pin", "bind", "batch", "strategy", "space", "solver", "time_limit"),
        *("target", "top_k", "reproducible"),
    )
)
EVALUATION: Final = frozenset(
    ("devices", "strategy", "hardware", "bind", "batch", "precision", "optimizer", "memory_limit")
)
CONSTRAINTS: Final = "constraints.yaml"
NAME_BYTES: Final = 120


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UsageError(message)


def search_options(options: Mapping[str, Any], *, constraints: bool = False) -> argparse.Namespace:
    """The options of a plan task, parsed as `planner search` would; `name` is the model's.

    UsageError, in the words of the command line.
    """
    from planner.cli.search import checked, configure

    given = ["--constraints", CONSTRAINTS] if constraints else []
    parsed = _parse(configure, options, SEARCH, [*given, str(model_file(options))])
    if len(checked(parsed)) > 1:
        raise UsageError(f"--devices {parsed.devices}: expected one number of devices; ask for each on its own")
    return parsed


def evaluation_options(options: Mapping[str, Any], *, plan: bool = False) -> argparse.Namespace:
    """The options of an evaluation task, parsed as `planner evaluate` would.  UsageError."""
    from planner.cli.evaluate import configure

    given = ["--plan", "plan.json"] if plan else []
    return _parse(configure, options, EVALUATION, [*given, str(model_file(options))])


def model_file(options: Mapping[str, Any]) -> Path:
    """What the model's file is called while it is worked on: plans have its stem as the model's name.  UsageError."""
    name = str(options.get("name", "model"))
    if not name or len(name.encode("utf-8", "replace")) > NAME_BYTES or any(c in "/\0" for c in name):
        raise UsageError(f"name: expected 1 to {NAME_BYTES} bytes without a slash, found {name[:NAME_BYTES]!r}")
    return Path(f"./{name}.onnx")


def _parse(
    configure: Callable[[argparse.ArgumentParser], None],
    options: Mapping[str, Any],
    known: frozenset[str],
    given: list[str],
) -> argparse.Namespace:
    from cost_models import profile_names

    arguments: list[str] = []
    for name, value in options.items():
        if name == "name" or value is None:
            continue
        if name not in known:
            raise UsageError(f"{name}: no such option; there are {', '.join(sorted(known))}")
        option = f"--{name.replace('_', '-')}"
        if isinstance(value, bool):
            arguments += [option] if value else []
        else:
            arguments += [f"{option}={v}" for v in (value if isinstance(value, list | tuple) else [value])]
    hardware = options.get("hardware")
    if hardware is not None and hardware not in profile_names():
        raise UsageError(f"hardware {hardware!r}: no such profile; there are {', '.join(profile_names())}")
    parser = _Parser(add_help=False, allow_abbrev=False)
    configure(parser)
    # The model's name may begin with a dash; behind "--" everything is a name.
    parsed = parser.parse_args([*arguments, *given[:-1], "--", given[-1]])
    parsed.command = None
    return parsed
