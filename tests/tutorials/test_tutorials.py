"""docs/tutorials and the README, word for word: every command runs, and prints what the documents say."""

from __future__ import annotations

import re
import shlex
from importlib.util import find_spec
from pathlib import Path

import pytest

from planner.cli.main import main
from tests.tutorials.blocks import blocks, mismatch
from tests.tutorials.run import ROOT, TUTORIALS, run

NEED_TORCH = frozenset({"pytorch"})


def marked(name: str) -> object:
    if name not in NEED_TORCH:
        return name
    without = pytest.mark.skipif(find_spec("torch") is None, reason="PyTorch is not installed")
    return pytest.param(name, marks=[pytest.mark.peer, without])


@pytest.mark.parametrize("name", [marked(p.stem) for p in sorted(TUTORIALS.glob("*.md"))])
def test_a_tutorial_prints_what_it_says(name: str, tmp_path: Path) -> None:
    run(TUTORIALS / f"{name}.md", tmp_path)


def test_the_first_command_of_the_readme_prints_what_it_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    command = re.search(r"^python3 -m venv .* && \.venv/bin/planner (search .*)$", text, re.M)
    printed = re.search(r"^The first command prints:\n\n```\n(.*?)^```$", text, re.M | re.S)
    assert command is not None
    assert printed is not None
    (tmp_path / "sample_graphs").symlink_to(ROOT / "sample_graphs")
    monkeypatch.chdir(tmp_path)
    arguments = shlex.split(command[1])
    written = arguments[1].replace(".onnx", ".plan")
    assert main([*arguments, "--out", Path(written).name]) == 0
    wanted = re.sub(r"(?m)^(search +)[\d.]+ s", "\\g<1>… s", printed[1])
    assert mismatch(wanted, capsys.readouterr().out) is None


WANTED = "one … s\n…\nlast\n"


@pytest.mark.parametrize(
    ("found", "says"),
    [
        ("one 3 s\nlast\n", None),
        ("one 3 s\na\nb\nlast\n", None),
        ("one 3 m\nlast\n", "expected 'one … s', found 'one 3 m'"),
        ("one 3 s\na\n", "expected 'last', found the end"),
        ("one 3 s\nlast\nmore\n", "expected the end, found 'more'"),
    ],
)
def test_what_differs_from_run_to_run_is_marked(found: str, says: str | None) -> None:
    assert mismatch(WANTED, found) == says


def test_blocks_of_a_tutorial_are_of_known_kinds(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("```sh\ntrue\n```\n\n```text\n```\n\n```python a.py\nx = 1\n```\n\n```console\n$ x\n```\n")
    assert [(b.kind, b.name) for b in blocks(page)] == [
        ("commands", ""), ("printed", ""), ("file", "a.py"), ("elsewhere", "")
    ]  # fmt: skip
    for wrong in ("```python\nx = 1\n```\n", "```text\nprinted by nothing\n```\n"):
        page.write_text(wrong)
        with pytest.raises(ValueError, match=r"page\.md:1: a block of "):
            blocks(page)
