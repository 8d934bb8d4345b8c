"""Runs a tutorial in a fresh folder, block by block.

python -m tests.tutorials.run docs/tutorials/pytorch.md             compares what is printed
python -m tests.tutorials.run docs/tutorials/pytorch.md --write     puts what is printed now into the document
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.tutorials.blocks import VOLATILE, Block, blocks, mismatch

__all__ = ["TUTORIALS", "run"]

ROOT = Path(__file__).resolve().parents[2]
TUTORIALS = ROOT / "docs" / "tutorials"
LIMIT = 600  # seconds of a block
# Commands of the environment that the tests run in, wherever its folder lies.
COMMANDS = {
    "planner": "-m planner.cli.main",
    "python": "",
    "torchrun": "-m torch.distributed.run",
}


# What differs from run to run of what our commands print: seconds that they took, and rounding.
DIFFERS = (
    (r"(?m)^(search +)[\d.]+ s", rf"\g<1>{VOLATILE} s"),
    (r"(?m)( bytes, )[\d.]+ s$", rf"\g<1>{VOLATILE} s"),
    (r"(?m)^(  error +)\S+ at most \(.*\)$", rf"\g<1>{VOLATILE} at most ({VOLATILE})"),
)


def run(document: Path, folder: Path, *, write: bool = False) -> None:
    """AssertionError where a command fails or prints something else than the document says.

    `write`: what is printed takes the place of what the document says, where that differs.
    """
    tools, work = folder / "bin", folder / "work"
    tools.mkdir(parents=True)
    work.mkdir()
    for name, module in COMMANDS.items():
        (tools / name).write_text(f'#!/bin/sh\nexec "{sys.executable}" {module} "$@"\n', encoding="utf-8")
        (tools / name).chmod(0o755)
    environment = {
        **os.environ,
        "PATH": f"{tools}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")])),
        "PLANNER_CACHE_DIR": str(folder / "cache"),
        "OMP_NUM_THREADS": "1",
        "NO_COLOR": "1",
    }
    printed = ""
    lines = document.read_text(encoding="utf-8").splitlines()
    changed: list[tuple[Block, str]] = []
    for block in blocks(document):
        where = f"{document.name}:{block.line}"
        if block.kind == "file":
            (work / block.name).parent.mkdir(parents=True, exist_ok=True)
            (work / block.name).write_text(block.body, encoding="utf-8")
        elif block.kind == "commands":
            printed = _output(block, work, environment, where)
        elif block.kind == "printed":
            wrong = mismatch(block.body, printed)
            if wrong is not None and write:
                changed.append((block, printed))
                continue
            assert wrong is None, f"{where}: {wrong}; all of it:\n{printed}"
    for block, found in reversed(changed):
        for pattern, text in DIFFERS:
            found = re.sub(pattern, text, found)
        begin = block.line - 1
        lines[begin : begin + len(block.body.splitlines())] = found.splitlines()
    if changed:
        document.write_text("\n".join(lines) + "\n", encoding="utf-8")


def _output(block: Block, work: Path, environment: dict[str, str], where: str) -> str:
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", block.body],
        cwd=work, env=environment, capture_output=True, text=True, timeout=LIMIT, check=False,
    )  # fmt: skip
    assert done.returncode == 0, f"{where}: exit status {done.returncode}:\n{done.stdout}{done.stderr[-4000:]}"
    return done.stdout


def main() -> int:
    for name in (a for a in sys.argv[1:] if a != "--write"):
        with tempfile.TemporaryDirectory() as folder:
            run(Path(name).resolve(), Path(folder), write="--write" in sys.argv)
        print(f"{name}: every block ran")
    return 0


if __name__ == "__main__":
    sys.exit(main())
