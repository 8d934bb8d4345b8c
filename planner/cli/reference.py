"""docs/cli.md, made of the parsers: `python -m planner.cli.reference > docs/cli.md`."""

from __future__ import annotations

import argparse
import importlib
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from planner.cli.main import commands
from planner.cli.parser import Parser

__all__ = ["parsers", "reference", "sentence"]

_HEAD: Final = """\
# The command line, option by option

This page is the reference of every command of `planner`, for those who look up an option: what `planner COMMAND
--help` prints. It is made of the commands themselves (`python -m planner.cli.reference > docs/cli.md`), and a test
compares. [command-line.md](command-line.md) explains what all commands share: exit statuses, files that are there
already, progress and completion.
"""


def parsers() -> dict[str, argparse.ArgumentParser]:
    """The parser of every command of this project, by its words: `search`, `checkpoint transform`."""
    found: dict[str, argparse.ArgumentParser] = {}
    for name, (module, line) in sorted(commands().items()):
        if not module.startswith("planner."):
            continue  # another package's command is its own to describe
        parser = Parser(prog=f"planner {name}", description=sentence(line))
        importlib.import_module(module).configure(parser)
        found |= _with_inner(name, parser)
    return found


def _with_inner(name: str, parser: argparse.ArgumentParser) -> Iterator[tuple[str, argparse.ArgumentParser]]:
    yield name, parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            lines = {choice.dest: choice.help for choice in action._choices_actions}
            for word, inner in action.choices.items():
                inner.description = sentence(lines.get(word) or inner.description or "")
                yield from _with_inner(f"{name} {word}", inner)


def reference() -> str:
    """The page."""
    found = parsers()
    outer = {name: parser for name, parser in found.items() if " " not in name}
    rows = [f"| [`planner {name}`](#planner-{name}) | {p.description} |" for name, p in outer.items()]
    parts = [_HEAD, "\n".join(["| command | what it does |", "|---|---|", *rows]) + "\n"]
    for name, parser in found.items():
        parts += [f"{'#' * (2 + name.count(' '))} planner {name}\n", f"{parser.description}\n", _usage(parser)]
        described = "\n".join(_entry(action) for action in _shown(parser))
        parts += [described + "\n"] if described else []
    return "\n".join(parts)


def sentence(text: str) -> str:
    """With a capital and a full stop."""
    text = " ".join(text.split())
    return text and f"{text[0].upper()}{text[1:]}{'' if text.endswith(('.', '…')) else '.'}"


def _shown(parser: argparse.ArgumentParser) -> list[argparse.Action]:
    """Arguments first, then options in their order; `--help` is everywhere."""
    actions = [a for a in parser._actions if a.help != argparse.SUPPRESS and a.dest != "help"]
    actions = [a for a in actions if not isinstance(a, argparse._SubParsersAction)]
    return sorted(actions, key=lambda a: bool(a.option_strings))


def _usage(parser: argparse.ArgumentParser) -> str:
    """What has to be given, and that there are options."""
    words, optional = [parser.prog], False
    for action in _shown(parser):
        if not action.option_strings:
            words.append(f"[{_value(action)}]" if action.nargs in ("?", "*") else _value(action))
        elif action.required:
            words.append(_name(action))
        else:
            optional = True
    if any(isinstance(a, argparse._SubParsersAction) for a in parser._actions):
        words.append("COMMAND")
    return f"```text\n{' '.join(words)}{' [options]' if optional else ''}\n```\n"


def _entry(action: argparse.Action) -> str:
    needed = " (required)" if action.option_strings and action.required else ""
    return f"- `{_name(action)}`{needed}: {sentence(_help(action))}"


def _name(action: argparse.Action) -> str:
    if not action.option_strings:
        return _value(action)
    names = ", ".join(action.option_strings)
    return names if action.nargs == 0 else f"{names} {_value(action)}"


def _value(action: argparse.Action) -> str:
    if action.metavar is not None:
        word = action.metavar if isinstance(action.metavar, str) else " ".join(action.metavar)
    elif action.choices is not None:
        word = "|".join(map(str, action.choices))
    else:
        word = action.dest.upper()
    return f"{word} …" if action.nargs in ("+", "*") else word


def _help(action: argparse.Action) -> str:
    """With the values of `%(default)s` and the like; what looks like a tag of HTML is none."""
    values: Mapping[str, Any] = vars(action)
    text = re.sub(r"%\((\w+)\)s", lambda m: str(values.get(m[1], m[0])), action.help or "").replace("%%", "%")
    return re.sub(r"(?<![`\w])(\*[\w.*]+)", r"`\1`", text.replace("<", "&lt;"))


if __name__ == "__main__":
    print(reference(), end="")
