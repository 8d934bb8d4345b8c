"""The five questions of docs/questions.md: each command prints what the page says."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from planner.cli.main import main

PAGE = Path(__file__).parents[2] / "docs" / "questions.md"
BLOCK = re.compile(r"^```\n\$ planner (.*)\n((?:.*\n)*?)```$", re.M)
LEFT_OUT = "…"


def missing(expected: list[str], printed: list[str]) -> str | None:
    """The first expected line that is not printed behind the others; lines follow each other but at `…`."""
    at, anywhere = 0, False
    for line in expected:
        if line == LEFT_OUT:
            anywhere = True
            continue
        try:
            found = printed.index(line, at)
        except ValueError:
            return line
        if found != at and not anywhere:
            return line
        at, anywhere = found + 1, False
    return None if anywhere or at == len(printed) else f"nothing behind {expected[-1]!r}"


def test_every_command_prints_what_the_page_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PLANNER_CACHE_DIR", str(tmp_path / "cache"))
    blocks = BLOCK.findall(PAGE.read_text(encoding="utf-8"))
    assert [words.split()[0] for words, _ in blocks] == [
        "build", "search", "explain", "search", "search", "build", "search",
    ]  # fmt: skip
    for words, expected in blocks:
        capsys.readouterr()
        assert main(shlex.split(words)) == 0
        printed = [line.rstrip() for line in capsys.readouterr().out.rstrip("\n").split("\n")]
        line = missing(expected.rstrip("\n").split("\n"), printed)
        assert line is None, f"planner {words}: does not print {line!r}, but\n" + "\n".join(printed)


def test_lines_that_are_not_printed_are_noticed() -> None:
    assert missing(["a", LEFT_OUT, "c"], ["a", "b", "c"]) is None
    assert missing(["a", LEFT_OUT], ["a", "b"]) is None
    assert missing(["a", "c"], ["a", "b", "c"]) == "c"
    assert missing([LEFT_OUT, "d"], ["a", "b"]) == "d"
    assert missing(["a"], ["a", "b"]) is not None
