"""The parser of the command line: no abbreviated options, and of what is wrong one line that says what to do.

It is `argparse`, which packages that offer commands know: what they add to the parser that they are handed, parsers of
sub-commands included, answers in the same way.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Never

from planner.nearest import did_you_mean
from planner.terminal import plain

__all__ = ["Parser"]

_NEGATIVE: Final = re.compile(r"-\d+$|-\d*\.\d+$")
_NUMBERS: Final = {"int": "an integer", "float": "a number"}
# What other tools call it.
_WORDS: Final[Mapping[str, str]] = {
    "plan": "search",
    "optimize": "search",
    "optimise": "search",
    "check-plan": "verify",
    "price": "evaluate",
    "estimate": "evaluate",
    "convert": "emit",
    "import": "read",
    "show": "report",
    "view": "report",
    "compare": "diff",
    "why": "explain",
    "train": "run",
    "benchmark": "calibrate",
    "server": "serve",
    "devices": "hardware",
}


class Parser(argparse.ArgumentParser):
    """`argparse.ArgumentParser` as the commands of `planner` have it."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **{"allow_abbrev": False, **options})

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """As `argparse` has it, but what is unknown is told before what is missing.

        SystemExit with status 2 where an option or an argument is unknown, missing or malformed.
        """
        given: list[str] = sys.argv[1:] if args is None else list(args)
        self._refuse_unknown(given)
        found, rest = super().parse_known_args(given, namespace)
        if rest:
            self.error(f"expected nothing beyond {self._positionals_text()}, found {' '.join(map(repr, rest))}")
        return found, rest

    def error(self, message: str) -> Never:
        """One line on standard error, and the exit status of usage."""
        text = self._in_our_words(message)
        help_is_at = "" if "`" in text else f" (`{self.prog} --help` lists all)"
        self.exit(2, plain(f"{self.prog}: error: {text}{help_is_at}") + "\n")

    def _refuse_unknown(self, given: Sequence[str]) -> None:
        if "-h" in given or "--help" in given:
            return
        known = self._option_string_actions
        commands = self._commands
        if commands is not None and given and not given[0].startswith("-") and given[0] not in commands.choices:
            self._refuse_command(given, commands)
        for text in given:
            if text == "--" or (commands is not None and not text.startswith("-")):
                return  # arguments follow, or a command, whose parser knows its options
            if not text.startswith("-") or text == "-" or " " in text.partition("=")[0] or _NEGATIVE.match(text):
                continue
            name = text.partition("=")[0]
            if name not in known:
                self.error(self._unknown_option(name, commands))

    def _unknown_option(self, name: str, commands: argparse._SubParsersAction[Any] | None) -> str:
        hint = did_you_mean(name, (k for k in self._option_string_actions if k.startswith("--")))
        if not hint and commands is not None:
            hint = f"; options follow the {str(commands.metavar or 'command').lower()}"
        return f"unknown option {name}{hint}"

    def _refuse_command(self, given: Sequence[str], commands: argparse._SubParsersAction[Any]) -> None:
        word, kind = given[0], str(commands.metavar or "COMMAND").lower()
        names = list(commands.choices)
        if "search" in names and (Path(word).suffix == ".onnx" or Path(word).is_file()):
            options = " ".join(given[1:]) or "--devices N"
            self.error(f"{word} is no command: did you mean `{self.prog} search {word} {options}`?")
        if word in ("help", "version"):
            self.error(f"{word} is an option: `{self.prog} --{word}`")
        meant = _WORDS.get(word.lower())
        hint = f"; did you mean {meant}?" if meant in names else did_you_mean(word, names)
        self.error(f"unknown {kind} {word}{hint}" + ("" if hint else f"; there are {', '.join(names)}"))

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is None or value in action.choices:
            return
        known = [str(c) for c in action.choices]
        hint = did_you_mean(str(value), known, before=" ")
        message = f"expected {_either(known)}, found {value!r}" + (f";{hint}" if hint else "")
        raise argparse.ArgumentError(action, message)

    @property
    def _commands(self) -> argparse._SubParsersAction[Any] | None:
        return next((a for a in self._actions if isinstance(a, argparse._SubParsersAction)), None)

    def _in_our_words(self, message: str) -> str:
        """The words of `argparse` as those of our other errors."""
        text = message.removeprefix("argument ")
        if text.startswith("the following arguments are required: "):
            return f"missing {', '.join(map(self._with_value, text.partition(': ')[2].split(', ')))}"
        one = re.fullmatch(r"one of the arguments (.*) is required", text)
        if one is not None:
            return f"missing {_either([self._with_value(name) for name in one[1].split(' ')])}"
        text = re.sub(r": not allowed with argument (.*)$", r" contradicts \1; leave one out", text)
        text = re.sub(r": expected one argument$", ": expected a value, found none", text)
        number = re.fullmatch(r"(.*): invalid (int|float) value: (.*)", text, flags=re.S)
        return text if number is None else f"{number[1]}: expected {_NUMBERS[number[2]]}, found {number[3]}"

    def _with_value(self, name: str) -> str:
        """`--devices` as `--devices N`."""
        action = self._option_string_actions.get(name)
        return name if action is None or action.metavar is None else f"{name} {action.metavar}"

    def _positionals_text(self) -> str:
        names = [str(a.metavar or a.dest) for a in self._actions if not a.option_strings]
        return " ".join(names) or "options"


def _either(words: Sequence[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} or {words[-1]}"
