"""docs/notebook.ipynb runs, cell by cell, and ends in a report that is shown inline.

The cells are executed as a kernel would: in one namespace, the value of a last expression displayed.  No part of
Jupyter is needed for that.
"""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import Any

import pytest

NOTEBOOK = Path(__file__).resolve().parents[2] / "docs" / "notebook.ipynb"


def displayed(source: str, names: dict[str, Any]) -> str | None:
    """What a notebook shows of a cell: HTML where the value offers it, else its text."""
    tree = ast.parse(source)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, "<cell>", "exec"), names)
    if last is None:
        return None
    assert isinstance(last, ast.Expr)
    value = eval(compile(ast.Expression(last.value), "<cell>", "eval"), names)
    if value is None:
        return None
    return value._repr_html_() if hasattr(value, "_repr_html_") else repr(value)


def test_the_notebook_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    notebook = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    assert notebook["nbformat"] == 4
    cells = [c for c in notebook["cells"] if c["cell_type"] == "code"]
    assert all(not c["outputs"] and c["execution_count"] is None for c in cells), "committed without outputs"
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": "__main__"}
    shown = [displayed("".join(c["source"]), names) for c in cells]
    assert shown[-1] is not None
    assert shown[-1].startswith("<iframe srcdoc=")
    assert "plan for 8 x h100" in shown[-1]
    assert names["seen"][-1].phase == "write"
    assert list((tmp_path / "out").iterdir())
    assert "virtual devices" in capsys.readouterr().out
