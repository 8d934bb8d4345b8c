"""The line that says how far a command is, and colour: on terminals, and nowhere else."""

from __future__ import annotations

import os
import pty
import re
import select
import subprocess
import sys
import time
from pathlib import Path

import pytest

from planner import status
from planner.terminal import Shown, takes_colour
from tests.cli.command import MLP, SAMPLES

SLOW = """
import os, sys, time
from planner import status
from planner.cli import main
from planner.cli.commands import hardware
def run(options):
    print("first", flush=True)
    pid = os.fork()
    if not pid:
        for k in range(20):
            status.show_progress("half the work", k / 20)
            time.sleep(0.1)
        os._exit(0)
    os.waitpid(pid, 0)
    print("last")
    return 0
hardware.run = run
status.PATIENCE = 0.1
sys.exit(main.main(["hardware", *sys.argv[1:]]))
"""


def on_terminal(*arguments: str, **environment: str) -> str:
    """Everything that a program writes with a terminal as its output and its error."""
    ours, theirs = pty.openpty()
    variables = {k: v for k, v in os.environ.items() if k not in ("NO_COLOR", "CLICOLOR", "CLICOLOR_FORCE")}
    process = subprocess.Popen(
        [sys.executable, *arguments], stdin=theirs, stdout=theirs, stderr=theirs, env=variables | environment
    )
    os.close(theirs)
    written, end = b"", time.monotonic() + 120
    while time.monotonic() < end and select.select([ours], [], [], 120)[0]:
        try:
            part = os.read(ours, 65536)
        except OSError:  # the other side is closed
            break
        if not part:
            break
        written += part
    os.close(ours)
    process.wait(timeout=60)
    return written.decode()


def screen(text: str) -> list[str]:
    """The lines that stay, as a terminal of endless width shows them."""
    lines = []
    for line in text.replace("\r\n", "\n").split("\n"):
        shown = ""
        for part in line.split("\r"):
            *cleared, last = part.split("\x1b[K")
            shown = "".join(cleared) + last if cleared else last + shown[len(last) :]
        lines.append(re.sub("\x1b\\[[0-9;]*[mK]", "", shown))
    return [line for line in lines if line]


def test_a_terminal_sees_a_bar_that_a_child_moves_and_that_goes() -> None:
    written = on_terminal("-c", SLOW, TERM="xterm")
    pictures = re.findall(r"\rhardware \d+ s \[(#*)-*\] \d+%[^\r]*half the work", written)
    assert len({len(p) for p in pictures}) > 3
    assert screen(written) == ["first", "last"]


@pytest.mark.parametrize("terminal", ["dumb", ""])
def test_a_terminal_that_obeys_nothing_is_left_alone(terminal: str) -> None:
    written = on_terminal("-c", SLOW, TERM=terminal)
    assert written.replace("\r\n", "\n") == "first\nlast\n"


def test_pipes_and_files_see_nothing_of_it() -> None:
    done = subprocess.run([sys.executable, "-c", SLOW], capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr) == ("first\nlast\n", "")


def test_verify_shows_its_work(tmp_path: Path) -> None:
    plan = tmp_path / "plan"
    model = SAMPLES / "moe_tiny.onnx"
    command = [sys.executable, "-m", "planner", "search", str(model), "--devices", "4", "--out", str(plan)]
    subprocess.run(command, check=True, capture_output=True, timeout=300)
    eager = "import sys; from planner import status; status.PATIENCE = 0.0; status.EVERY = 0.002; "
    eager += "from planner.cli.main import main; "
    written = on_terminal("-c", eager + f"sys.exit(main(['verify', {str(plan)!r}]))", TERM="xterm")
    assert re.search(r"\rverify \d+ s[. ]{3}  deriving every field", written)
    kept = screen(written)
    assert kept[-1].startswith("  import ") or "block" in kept[-1]
    assert any(line.startswith("ok: ") for line in kept)
    assert "\x1b[32mok\x1b[0m:" in written


def test_pictures() -> None:
    assert status.picture("verify", 34, "executing", 0.25, 10) == (
        "verify 34 s [######------------------] 25%, about 30 s left  executing"
    )
    assert status.picture("verify", 200, "", 0.5, 120).startswith(
        "verify 3 min [############------------] 50%, about 2 min"
    )
    assert status.picture("verify", 3, "reading", None, 0).startswith("verify 3 s.")


def test_nobody_is_told_where_nothing_is_shown() -> None:
    assert not status.is_shown()
    assert not status.show_progress("something", 0.5)


def test_errors_are_red_on_a_terminal_alone(tmp_path: Path) -> None:
    wrong = ("-m", "planner", "serch")
    assert on_terminal(*wrong, TERM="xterm").startswith("planner: \x1b[31merror\x1b[0m: unknown command serch")
    for variables in ({"NO_COLOR": "1"}, {"CLICOLOR": "0"}, {"TERM": "dumb"}):
        assert "\x1b" not in on_terminal(*wrong, **{"TERM": "xterm", **variables})
    done = subprocess.run([sys.executable, *wrong], capture_output=True, text=True)
    assert done.stderr.startswith("planner: error: ")
    forced = subprocess.run([sys.executable, *wrong], capture_output=True, text=True,
                            env=os.environ | {"CLICOLOR_FORCE": "1"})  # fmt: skip
    assert forced.stderr.startswith("planner: \x1b[31merror\x1b[0m: ")


def test_no_color_wins_over_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLICOLOR_FORCE", "1")
    assert takes_colour(sys.stderr)
    monkeypatch.setenv("NO_COLOR", "1")
    assert not takes_colour(sys.stderr)


def test_names_of_strangers_bring_no_colour_of_their_own(capsys: pytest.CaptureFixture[str]) -> None:
    shown = Shown(sys.stdout, coloured=True)
    shown.write("warning: \x1b[31mred\x1b[0m\nan error: here\n")
    assert capsys.readouterr().out == "\x1b[33mwarning\x1b[0m: \\x1b[31mred\\x1b[0m\nan error: here\n"


def test_files_hold_no_control_codes(tmp_path: Path) -> None:
    written = on_terminal(
        "-m", "planner", "search", str(MLP), "--devices", "2", "--out", str(tmp_path), "--details", TERM="xterm"
    )
    assert "plan written to" in written
    for path in tmp_path.iterdir():
        assert path.suffix == ".onnx" or b"\x1b" not in path.read_bytes()
