"""Completion, as the shells ask for it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from planner.cli.commands.completion import SHELLS
from tests.cli.command import SAMPLES, run


def completed(line: str, folder: Path) -> list[str]:
    """What the program answers to a shell with the cursor at the end of the line."""
    answer = folder / "answer"
    asked = {
        "_ARGCOMPLETE": "1",
        "_ARGCOMPLETE_IFS": "\n",
        "_ARGCOMPLETE_SUPPRESS_SPACE": "1",
        "_ARGCOMPLETE_STDOUT_FILENAME": str(answer),
        "COMP_LINE": line,
        "COMP_POINT": str(len(line)),
        "COMP_TYPE": "9",
    }
    command = [sys.executable, "-m", "planner"]
    subprocess.run(command, env=os.environ | asked, cwd=SAMPLES.parent, check=True, capture_output=True, timeout=60)
    return [word.strip() for word in answer.read_text().split("\n") if word.strip()]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("planner ser", ["serve"]),
        ("planner search --devi", ["--devices"]),
        ("planner search --devices ", []),
        ("planner search x --precision b", ["bf16"]),
        ("planner search x --hardware h100", ["h100", "h100-96"]),
        ("planner hardware v", ["v100"]),
        ("planner search x --strategy hs", ["hsdp"]),
        ("planner emit x --target megat", ["megatron"]),
        ("planner search x --emit mega", ["megatron"]),
        ("planner build gp", ["gpt"]),
        ("planner build gpt --layer", ["--layers"]),
        ("planner keys cr", ["create"]),
        ("planner keys create --ten", ["--tenant"]),
        ("planner search sample_graphs/ml", ["sample_graphs/mlp.onnx"]),
        ("planner search x --out sample", ["sample_graphs/"]),
        ("planner completion z", ["zsh"]),
        ("planner cache cl", ["clear"]),
    ],
)
def test_what_may_follow(line: str, expected: list[str], tmp_path: Path) -> None:
    assert completed(line, tmp_path) == expected


@pytest.mark.parametrize("shell", SHELLS)
def test_every_shell_has_a_script(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("completion", shell) == 0
    script = capsys.readouterr().out
    assert "planner" in script
    assert "_ARGCOMPLETE" in script
    program = shutil.which(shell)
    if program is not None:
        read = ["--no-execute"] if shell == "fish" else ["-n"]
        subprocess.run([program, *read], input=script, text=True, check=True, capture_output=True)


def test_bash_completes_by_the_script(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What bash itself does at a tab, with a program of that name on the path."""
    program = tmp_path / "planner"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m planner "$@"\n')
    program.chmod(0o755)
    assert run("completion", "bash") == 0
    script = capsys.readouterr().out
    asked = (
        f"{script}\n"
        'COMP_LINE="planner search x --hardware h10" COMP_POINT=31 COMP_TYPE=9\n'
        "COMP_WORDS=(planner search x --hardware h10) COMP_CWORD=4\n"
        'function=$(complete -p planner | sed "s/.*-F \\([^ ]*\\).*/\\1/")\n'
        '"$function" planner h10 --hardware\n'
        'printf "%s\\n" "${COMPREPLY[@]}"\n'
    )
    path = f"{tmp_path}:{os.environ['PATH']}"
    environment = os.environ | {"PATH": path, "PYTHONPATH": str(SAMPLES.parent)}
    done = subprocess.run(
        ["bash", "--norc", "--noprofile"], input=asked, text=True, capture_output=True, env=environment, timeout=60
    )
    assert [word.strip() for word in done.stdout.split()] == ["h100", "h100-96"], done.stderr
