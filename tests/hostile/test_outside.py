"""What a model says lies in other files is opened by no command."""

from __future__ import annotations

from pathlib import Path

import pytest

from planner.cli.main import main
from tests.hostile.opened import Opened
from tests.hostile.outside import everywhere, watched
from tests.hostile.parts import serialized


@pytest.fixture
def canary(tmp_path: Path) -> Path:
    path = tmp_path / "elsewhere" / "canary"
    path.parent.mkdir()
    path.write_bytes(bytes(4096))
    return path


@pytest.mark.parametrize("link", [False, True], ids=["by path", "by a link beside the model"])
def test_no_command_opens_what_lies_outside(
    canary: Path, link: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    made = everywhere(["link", "./link", str(tmp_path / "link")]) if link else watched(str(canary))
    Path("model.onnx").write_bytes(serialized(made))
    Path("link").symlink_to(canary)
    plan = "out/plan.json"
    with Opened(canary) as opened:
        assert main(["inspect", "model.onnx"]) == 0
        assert main(["search", "model.onnx", "--devices", "2", "--no-cache", "--out", "out"]) == 0
        for target in ("onnx", "onnx-ranks"):
            assert main(["emit", plan, "--model", "model.onnx", "--target", target, "--out", f"emitted-{target}"]) == 0
        main(["emit", plan, "--model", "model.onnx", "--target", "torch", "--out", "emitted-torch"])  # of a loss alone
        assert main(["verify", plan, "model.onnx"]) == 0
        assert main(["explain", plan, "--model", "model.onnx", "--alternatives", "1"]) == 0
        assert main(["evaluate", "model.onnx", "--strategy", "ddp", "--devices", "2"]) == 0
    assert not opened.seen
    assert opened.works()
