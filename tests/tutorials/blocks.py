"""The blocks of a tutorial: what a reader types, the files that a reader saves, and what is printed then.

    ```sh               commands, run by bash in the folder of the tutorial
    ```python train.py  the content of a file of this name (of any language)
    ```text             what the block of commands before it prints on standard output
    ```console          what runs elsewhere, on a cluster: it is not run here

`…` in what is printed stands for what differs from run to run, as seconds do; a line of it alone for any lines.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

__all__ = ["VOLATILE", "Block", "blocks", "mismatch"]

VOLATILE = "…"
_FENCE = re.compile(r"^```(\w*)(?: +(\S+))?$")

Kind = Literal["commands", "file", "printed", "elsewhere"]


@dataclass(frozen=True)
class Block:
    """A fenced block; `name`: of a file, `line`: of its first line in the document."""

    kind: Kind
    body: str
    line: int
    name: str = ""


def blocks(document: Path) -> list[Block]:
    """In the order of the document.  ValueError for a block of no known kind."""
    found: list[Block] = []
    lines = document.read_text(encoding="utf-8").splitlines()
    at = 0
    while at < len(lines):
        opened = _FENCE.match(lines[at])
        if opened is None:
            at += 1
            continue
        end = lines.index("```", at + 1)
        body = "\n".join(lines[at + 1 : end]) + "\n"
        kind = _kind(opened[1], opened[2], found, f"{document.name}:{at + 1}")
        found.append(Block(kind, body, at + 2, opened[2] or ""))
        at = end + 1
    return found


def _kind(language: str, name: str | None, before: Sequence[Block], where: str) -> Kind:
    if name:
        return "file"
    if language == "sh":
        return "commands"
    if language == "console":
        return "elsewhere"
    if language == "text" and before and before[-1].kind == "commands":
        return "printed"
    raise ValueError(f"{where}: a block of {language or 'no language'}; expected sh, a file's name, text or console")


def mismatch(wanted: str, found: str) -> str | None:
    """The first line that is not as wanted, in words; None where all are."""
    expected, lines = wanted.splitlines(), found.splitlines()
    at = 0
    while expected:
        line, *expected = expected
        if line.strip() == VOLATILE:
            if not expected:
                return None
            while at < len(lines) and not _alike(expected[0], lines[at]):
                at += 1
            continue
        if at == len(lines):
            return f"expected {line!r}, found the end"
        if not _alike(line, lines[at]):
            return f"expected {line!r}, found {lines[at]!r}"
        at += 1
    return None if at == len(lines) else f"expected the end, found {lines[at]!r}"


def _alike(wanted: str, found: str) -> bool:
    pattern = ".*".join(map(re.escape, wanted.rstrip().split(VOLATILE)))
    return re.fullmatch(pattern, found.rstrip()) is not None
