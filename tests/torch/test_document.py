"""The script of docs/torch.md runs as it stands."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytestmark = pytest.mark.peer

DOCUMENT = Path(__file__).parents[2] / "docs" / "torch.md"


def test_the_script_of_the_document_trains(tmp_path: Path) -> None:
    script = DOCUMENT.read_text(encoding="utf-8").split("```python\n")[1].split("```")[0]
    (tmp_path / "train.py").write_text(script, encoding="utf-8")
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "4", "train.py"]
    found = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False)
    assert found.returncode == 0, found.stderr[-2000:]
    loss = float(found.stdout.split()[-1])
    assert 0 < loss < 2.5
