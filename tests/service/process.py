"""`planner serve` as a process of its own, for tests and measurements."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Served", "served"]


@dataclass(frozen=True, slots=True)
class Served:
    url: str
    process: subprocess.Popen[str]

    def cpu_s(self) -> float:
        """Processor time that the server has used, without its workers."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextmanager
def served(folder: Path, *options: str, log: Path | None = None, python: str = sys.executable) -> Iterator[Served]:
    """The service; it ends with the block.  `log`: its standard error."""
    command = [python, "-m", "planner", "serve", "--port", "0", "--data", str(folder), *options]
    with open(log or os.devnull, "wb") as told:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=told, text=True)
        assert process.stdout is not None
        try:
            line = process.stdout.readline()
            if "serves at " not in line:
                raise RuntimeError(f"planner serve ended with {process.wait(10)}: {line!r}")
            yield Served(line.split("serves at ")[1].strip(), process)
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                raise
