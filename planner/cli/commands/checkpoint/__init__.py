"""`planner checkpoint transform|merge|split|ranks|plan|verify|inspect`: checkpoints that follow the plan.

An action is a module or a function here: its line of help, what adds its arguments, and what runs it.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Final, NamedTuple

from planner.cli.commands.checkpoint import inspecting, moving, needed, transforming, verifying

__all__ = ["configure", "run"]


class _Action(NamedTuple):
    line: str
    add_arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], int]


_ACTIONS: Final = {
    "transform": _Action(
        "write a checkpoint anew, for another plan or in another format",
        transforming.add_arguments,
        transforming.run,
    ),
    "merge": _Action(
        "write the ranks' files of a checkpoint as one file of whole tensors",
        transforming.add_arguments_of_merge,
        transforming.run,
    ),
    "split": _Action(
        "write a file of whole tensors as one file for each rank",
        transforming.add_arguments_of_split,
        transforming.run,
    ),
    "ranks": _Action(
        "say which ranks' files are needed to make those of another plan", needed.add_arguments, needed.run
    ),
    "plan": _Action(
        "say who sends which part to whom when running devices change from a plan to another",
        moving.add_arguments,
        moving.run,
    ),
    "verify": _Action(
        "compare a checkpoint with its checksums, the one that it was made of, or copies among ranks",
        verifying.add_arguments,
        verifying.run,
    ),
    "inspect": _Action("show the tensors of a checkpoint and their layouts", inspecting.add_arguments, inspecting.run),
}


def configure(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    for name, action in _ACTIONS.items():
        line = action.line
        action.add_arguments(actions.add_parser(name, help=line, description=line[0].upper() + line[1:] + "."))


def run(options: argparse.Namespace) -> int:
    return _ACTIONS[options.action].run(options)
