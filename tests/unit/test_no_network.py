"""No command looks up a host or opens a connection, and libraries leave nothing in the user's folders."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from planner.api.jobs.sandbox import seccomp

ROOT = Path(__file__).parents[2]
MODEL = ROOT / "sample_graphs" / "mlp.onnx"

# Every socket ends the process, whatever library asks for it and in whatever thread.  What the kernel does not filter,
# Python's own are refused at least.
COMMANDS = """
import struct, sys
from planner.api.jobs.sandbox import seccomp
from planner.api.jobs.sandbox.kernel import MACHINE
from planner.api.jobs.sandbox.privileges import gain_none

def refuse(event, _):
    if event.startswith("socket."):
        raise SystemExit(f"{event} was called")

sys.addaudithook(refuse)
if seccomp.available():
    gain_none()
    socket = {"x86_64": 41, "aarch64": 198}[MACHINE]
    refused, killed = (struct.pack("@HBBI", 6, 0, 0, n) for n in (0x00050001, 0x80000000))
    seccomp.forbid(seccomp.program(forbidden=[socket]).replace(refused, killed))
from planner.cli.main import main
for command in COMMANDS:
    status = main(command)
    if status:
        raise SystemExit(f"{command}: status {status}")
"""


def run(code: str, home: Path) -> subprocess.CompletedProcess[str]:
    """The code as a process of a user who has nothing yet."""
    clean = {k: v for k, v in os.environ.items() if k not in ("ORT_DISABLE_TELEMETRY", "XDG_CACHE_HOME")}
    places = {"HOME": str(home), "XDG_CACHE_HOME": str(home / ".cache"), "PLANNER_NATIVE": "0"}
    return subprocess.run([sys.executable, "-c", code], env=clean | places, capture_output=True, text=True, cwd=home)


def test_commands_open_no_connection_and_leave_nothing_behind(tmp_path: Path) -> None:
    plan, home = tmp_path / "plan", tmp_path / "home"
    home.mkdir()
    commands = [
        ["inspect", str(MODEL)],
        ["search", str(MODEL), "--devices", "2", "--no-cache", "--out", str(plan)],
        ["verify", str(plan), str(MODEL)],
    ]
    found = run(f"COMMANDS = {commands!r}\n{COMMANDS}", home)
    assert found.returncode == 0, found.stderr
    assert list(home.rglob("*")) == []


def test_what_would_open_a_connection_is_noticed(tmp_path: Path) -> None:
    """Also where it is native code that does."""
    opened = "import ctypes; main = lambda _: ctypes.CDLL(None).socket(2, 1, 0) < 0"
    code = f"COMMANDS = [[]]\n{COMMANDS}".replace("from planner.cli.main import main", opened)
    assert run(code, tmp_path).returncode == (-31 if seccomp.available() else 0)  # SIGSYS
    code = f"COMMANDS = [[]]\n{COMMANDS}".replace(
        "from planner.cli.main import main", "import socket; main = lambda _: socket.gethostbyname('x')"
    )
    assert "socket.gethostbyname was called" in run(code, tmp_path).stderr


@pytest.mark.parametrize("first", ["planner", "planner.api.jobs.preload", "tests"])
def test_whatever_is_imported_first_says_so_to_onnx_runtime(first: str, tmp_path: Path) -> None:
    code = (
        f"import sys; sys.path.insert(0, {str(ROOT)!r}); import {first}, os; print(os.environ['ORT_DISABLE_TELEMETRY'])"
    )
    assert run(code, tmp_path).stdout.strip() == "1"


def test_onnx_runtime_is_imported_below_the_planner_or_its_tests_alone() -> None:
    """Importing either of these says so first."""
    imports = re.compile(r"^\s*(import|from) onnxruntime", re.MULTILINE)
    others = [path for folder in ("cost_models", "docs", "sample_graphs") for path in (ROOT / folder).rglob("*.py")]
    assert others
    assert [path for path in others if imports.search(path.read_text())] == []
