"""docs/constraints.md, executed: its files are written, its commands run, and the lines it shows must be printed."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from planner.cli.main import main

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"^```(yaml)?\n(.*?)^```$", re.MULTILINE | re.DOTALL)
TEXT = (ROOT / "docs" / "constraints.md").read_text(encoding="utf-8")


def words(line: str) -> str:
    return " ".join(line.split())


def test_every_block_does_what_it_shows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "sample_graphs").symlink_to(ROOT / "sample_graphs")
    monkeypatch.chdir(tmp_path)
    commands = 0
    for kind, block in BLOCK.findall(TEXT):
        if kind == "yaml":
            name = re.match(r"# (\S+)\n", block)
            assert name is not None, block
            (tmp_path / name[1]).write_text(block, encoding="utf-8")
            continue
        command, *shown = block.splitlines()
        assert command.startswith("$ planner search "), command
        status = main(shlex.split(command)[2:])
        printed = capsys.readouterr()
        errors = [line.removeprefix("! ") for line in shown if line.startswith("! ")]
        assert status == (3 if errors else 0), command
        where = printed.err if errors else printed.out
        lines = [words(line) for line in where.splitlines()]
        for line in errors or shown:
            assert any(found.startswith(words(line)) for found in lines), (command, line, where)
        commands += 1
    assert commands == 8


def test_lines_that_messages_name_are_lines_of_the_file_shown() -> None:
    for file, line in re.findall(r"^! +(\w+\.yaml):(\d+):", TEXT, re.MULTILINE):
        block = next(b for _, b in BLOCK.findall(TEXT) if b.startswith(f"# {file}\n"))
        assert "match:" in block.splitlines()[int(line) - 1]
