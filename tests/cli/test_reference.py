"""docs/cli.md is what the commands say of themselves, and every option says what it is."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from planner.cli.reference import parsers, reference

PAGE = Path(__file__).resolve().parents[2] / "docs" / "cli.md"
# A text that begins so leaves its subject out: it says when, for whom or by default, and not what.
HANGING = re.compile(
    r"(default|of|with|between|after|in|on|to|as|and|or|by|from|at|for|yes|no|auto)\b(?!-)", re.IGNORECASE
)


@cache
def helps() -> tuple[tuple[str, str, str], ...]:
    return tuple(_helps())


def _helps() -> Iterator[tuple[str, str, str]]:
    for command, parser in parsers().items():
        for action in parser._actions:
            if action.help != argparse.SUPPRESS and not isinstance(action, argparse._SubParsersAction):
                yield command, "/".join(action.option_strings) or str(action.metavar), action.help or ""


def test_the_page_is_that_of_the_commands() -> None:
    assert PAGE.read_text(encoding="utf-8") == reference(), "python -m planner.cli.reference > docs/cli.md"


def test_every_option_is_described() -> None:
    assert [(c, o) for c, o, text in helps() if not text] == []


def test_a_description_says_what_the_option_is() -> None:
    hanging = [(c, o, text) for c, o, text in helps() if HANGING.match(text)]
    assert hanging == []
