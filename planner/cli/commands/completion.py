"""`planner completion SHELL`: a script after which the shell completes commands, options and their values.

Shells ask the program itself, through argcomplete, so that what is completed is what the parsers take: choices,
profiles of hardware, and files of the kind that an argument is for.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final

__all__ = ["SHELLS", "complete", "configure", "run", "typed"]

SHELLS: Final = ("bash", "zsh", "fish")
_HARDWARE: Final = ("NAME|FILE", "PROFILE")  # metavars of what names a profile
_ENDS: Final = {"MODEL": ("onnx",), "PLAN": ("json",), "A": ("json",), "B": ("json",), "ROWS.json": ("json",)}


def configure(parser: argparse.ArgumentParser) -> None:
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = (
        'In ~/.bashrc:                  eval "$(planner completion bash)"\n'
        'In ~/.zshrc, after compinit:   eval "$(planner completion zsh)"\n'
        "In ~/.config/fish/config.fish: planner completion fish | source"
    )
    parser.add_argument(
        "shell", choices=SHELLS, metavar="SHELL", help=f"the shell that the script is for: {', '.join(SHELLS)}"
    )


def run(options: argparse.Namespace) -> int:
    from argcomplete.shell_integration import shellcode

    print(shellcode(["planner"], shell=options.shell))
    return 0


def typed() -> list[str]:
    """What stands before the cursor, behind the program's name."""
    line, at = os.environ.get("COMP_LINE", ""), os.environ.get("COMP_POINT", "")
    return (line[: int(at)] if at.isdecimal() else line).split()[1:]


def complete(parser: argparse.ArgumentParser) -> None:
    """Answers the shell that asks, and ends the program."""
    from argcomplete import autocomplete
    from argcomplete.completers import SuppressCompleter

    _equip(parser)
    autocomplete(parser, always_complete_options="long", default_completer=SuppressCompleter())


def _equip(parser: argparse.ArgumentParser) -> None:
    """Says of every argument how its value is completed, where it is not one of some choices."""
    from argcomplete.completers import FilesCompleter

    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for inner in action.choices.values():
                _equip(inner)
        elif action.choices is None:
            completer: Callable[..., Iterable[str]] | None = None
            if action.metavar in _HARDWARE or (action.metavar == "NAME" and parser.prog.endswith(" hardware")):
                completer = _profiles
            elif action.dest == "strategy":
                completer = _schemes
            elif str(action.metavar) in _ENDS:
                completer = FilesCompleter(_ENDS[str(action.metavar)])
            elif action.metavar == "DIR":
                completer = FilesCompleter(("/",), directories=True)
            elif action.type is Path or str(action.metavar).startswith("FILE"):
                completer = FilesCompleter()
            if completer is not None:
                action.completer = completer  # type: ignore[attr-defined]  # where argcomplete looks for it


def _profiles(prefix: str, **_: Any) -> Iterable[str]:
    from argcomplete.completers import FilesCompleter

    from planner.cost_models import profile_names

    return [*(n for n in profile_names() if n.startswith(prefix)), *FilesCompleter(("toml",))(prefix)]


def _schemes(prefix: str, **_: Any) -> Iterable[str]:
    from planner.planning.schemes import SCHEMES

    return [s for s in SCHEMES if s.startswith(prefix)]
