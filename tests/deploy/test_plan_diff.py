"""The workflow's own shell, step by step, against a service of this machine; `gh` is a stand-in."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx
import pytest
import yaml

from tests.service.process import served

ROOT = Path(__file__).parents[2]
WORKFLOW: dict[str, Any] = yaml.safe_load(
    (ROOT / "docs" / "deploy" / "github" / "plan-diff.yml").read_text(encoding="utf-8")
)
STEPS = {step["name"]: step for step in WORKFLOW["jobs"]["diff"]["steps"] if "run" in step}


@dataclass
class Runner:
    """A machine of the forge: a clone, a folder for what passes, and commands."""

    clone: Path
    temp: Path
    environment: dict[str, str]

    def step(self, name: str, **more: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", STEPS[name]["run"]],
            cwd=self.clone,
            env={**self.environment, **more},
            capture_output=True,
            text=True,
        )

    def commit(self, model: onnx.ModelProto | None) -> str:
        if model is not None:
            (self.clone / "model.onnx").write_bytes(model.SerializeToString())
        self._git("add", "--all")
        self._git("commit", "--quiet", "--allow-empty", "--message", "a change")
        return self._git("rev-parse", "HEAD")

    def _git(self, *words: str) -> str:
        identity = ("-c", "user.name=x", "-c", "user.email=x@example.com")
        done = subprocess.run(["git", *identity, *words], cwd=self.clone, check=True, capture_output=True, text=True)
        return done.stdout.strip()


@pytest.fixture
def runner(tmp_path: Path) -> Runner:
    for name in ("clone", "temp", "bin"):
        (tmp_path / name).mkdir()
    programs = {
        "planner": f'exec "{sys.executable}" -m planner "$@"',
        "gh": 'printf "%s\\n" "$*" >> "$RUNNER_TEMP/gh"\n'
        'case "$*" in *--paginate*) cat "$RUNNER_TEMP/ids" 2>/dev/null || true;; esac',
    }
    for name, line in programs.items():
        file = tmp_path / "bin" / name
        file.write_text(f"#!/bin/sh\n{line}\n")
        file.chmod(0o755)
    inherited = {n: v for n, v in os.environ.items() if n in ("HOME", "LANG", "PYTHONPATH", "TMPDIR")}
    found = Runner(
        tmp_path / "clone",
        tmp_path / "temp",
        {
            **inherited,
            "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}",
            "RUNNER_TEMP": str(tmp_path / "temp"),
            "GITHUB_REPOSITORY": "team/models",
            "MODEL": WORKFLOW["env"]["MODEL"],
            "OPTIONS": "--devices 2",
        },
    )
    found._git("init", "--quiet")
    return found


def mlp(name: str) -> onnx.ModelProto:
    """With an operator of this name."""
    model = onnx.load(ROOT / "sample_graphs" / "mlp.onnx", load_external_data=False)
    model.graph.node[0].name = name
    return model


def test_a_pull_request_hears_what_it_changes_of_the_plan(runner: Runner, tmp_path: Path) -> None:
    base = runner.commit(mlp("first"))
    runner.commit(mlp("``` @everyone"))
    assert runner.step("Export", BASE=base, EXPORT="").returncode == 0
    with served(tmp_path / "service", "--workers", "1") as service:
        done = runner.step("Plan", PLANNER_SERVER=service.url, PLANNER_KEY="")
        assert done.returncode == 0, done.stderr
    assert (done := runner.step("Compare")).returncode == 0, done.stderr
    comment = (runner.temp / "plan" / "comment.md").read_text()
    mark, heading, blank, *block = comment.splitlines()
    assert mark == "<!-- planner-plan-diff model.onnx -->"
    assert heading == "### Plan of `model.onnx` (--devices 2)"
    assert blank == ""
    visible, _, figures = "\n".join(block).partition("<details>")
    assert visible.startswith("- **A** base/plan/plan\\.json")
    assert "\\@<!-- -->everyone" in visible
    assert not re.search(r"@(?!<!-- -->)", visible)
    assert figures.rstrip().endswith("</details>")
    lines = figures.splitlines()[1:-1]
    assert all(line.startswith("    ") for line in lines if line)


@pytest.mark.parametrize(
    ("ids", "call"),
    [("", "POST repos/team/models/issues/7/comments"), ("11\n12\n", "PATCH repos/team/models/issues/comments/12")],
)
def test_the_comment_is_changed_that_begins_alike_or_made(runner: Runner, ids: str, call: str) -> None:
    file = runner.temp / "plan" / "comment.md"
    file.parent.mkdir()
    file.write_text("<!-- planner-plan-diff model.onnx -->\ntext\n")
    (runner.temp / "ids").write_text(ids)
    assert (done := runner.step("Comment", NUMBER="7", GH_TOKEN="x")).returncode == 0, done.stderr
    found, written = (runner.temp / "gh").read_text().splitlines()
    assert found.startswith("api repos/team/models/issues/7/comments --paginate --jq .[] | select(")
    assert written == f"api --method {call} --field body=@{file} --silent"


def test_a_model_that_is_exported_is_exported_from_both_sides(runner: Runner) -> None:
    base = runner.commit(None)
    (runner.clone / "export").write_text("after")
    runner.commit(None)
    export = "{ cat export 2>/dev/null || echo before; } > model.onnx"
    assert (done := runner.step("Export", BASE=base, EXPORT=export)).returncode == 0, done.stderr
    assert (runner.temp / "plan" / "base" / "model.onnx").read_text().strip() == "before"
    assert (runner.temp / "plan" / "head" / "model.onnx").read_text().strip() == "after"


def test_no_model_and_no_plan_are_said_or_fail(runner: Runner) -> None:
    base = runner.commit(None)
    assert runner.step("Export", BASE=base, EXPORT="").returncode == 0
    assert runner.step("Compare").returncode == 0
    assert "nothing is planned" in (runner.temp / "plan" / "comment.md").read_text()
    for side in ("base", "head"):
        (runner.temp / "plan" / side / "plan").mkdir()
        (runner.temp / "plan" / side / "plan" / "plan.json").write_text("{}")
    assert runner.step("Compare").returncode == 3  # no plans at all


def test_only_the_step_that_plans_has_the_key_and_none_pastes_what_others_wrote() -> None:
    with_secrets = [name for name, step in STEPS.items() if "secrets." in str(step)]
    assert with_secrets == ["Plan"]
    assert all("${{" not in step["run"] for step in STEPS.values())
    assert WORKFLOW["permissions"] == {"contents": "read", "pull-requests": "write"}
    for step in WORKFLOW["jobs"]["diff"]["steps"]:
        assert "uses" not in step or re.fullmatch(r"actions/[a-z-]+@v\d+", step["uses"])
