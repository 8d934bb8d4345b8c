"""A service of its own for a test: `planner serve` on a free port, with an empty folder."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Served", "served"]

STOP_S = 30.0


@dataclass(frozen=True)
class Served:
    url: str
    data: Path

    def planner(self, *arguments: str) -> str:
        """Standard output of a `planner` command.  CalledProcessError where it fails."""
        command = [sys.executable, "-m", "planner.cli.main", *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout


@contextmanager
def served(data: Path, *options: str) -> Iterator[Served]:
    """Runs it until the end of the block.  RuntimeError with its log where it does not start."""
    command = [sys.executable, "-m", "planner.cli.main", "serve", "--port", "0", "--data", str(data), *options]
    log = data.with_suffix(".log")
    with log.open("wb") as err:
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=err, env={**os.environ, "PYTHONUNBUFFERED": "1"}
        )
    assert process.stdout is not None
    try:
        for line in process.stdout:
            found = re.search(rb"http://\S+", line)
            if found:
                yield Served(found[0].decode().rstrip("/"), data)
                return
        raise RuntimeError(f"planner serve ended with status {process.wait()}: {log.read_text()[-2000:]}")
    finally:
        process.terminate()
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()
