"""ONNX exports of models of `tests.torch.models` with their losses, as users make them.

    python -m tests.torch.exports       writes those that are kept in tests/torch/exported anew, without weights

torch.onnx.export needs onnxscript, which not everyone has beside torch: tests read the files that are kept.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Final

import torch
from torch import Tensor, nn

from planner.frontends.file.strip import strip_file
from tests.torch.models import CASES, Case
from tests.torch.training import made

__all__ = ["KEPT", "WithLoss", "exported", "kept", "perceptron"]

FOLDER: Final = Path(__file__).with_name("exported")
KEPT: Final = {"mlp": False, "gpt": False, "scaled": False, "normed": True}  # whether it is optimized


class WithLoss(nn.Module):
    """A model that returns its loss, which is what is exported."""

    def __init__(self, case: Case) -> None:
        super().__init__()
        self.model, self.loss = case.module, case.loss

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        assert self.loss is not None
        return self.loss(self.model(x), y)


def exported(case: Case, path: Path, *, optimize: bool = False) -> Path:
    """The file that torch.onnx.export writes of a model and its loss, which some models return themselves."""
    module = case.module if case.loss is None else WithLoss(case)
    given = (*case.inputs, *case.targets)
    program = torch.onnx.export(module, given, kwargs=case.kwargs, dynamo=True, optimize=optimize, verbose=False)
    assert program is not None
    program.save(path)
    return path


def kept(name: str) -> Path:
    """The export of a model of KEPT, without weights."""
    return FOLDER / f"{name}.onnx"


def perceptron() -> nn.Module:
    """What a user names when an emitted module is tried."""
    return CASES["mlp"]().module


def _write() -> None:
    for name, optimize in KEPT.items():
        with tempfile.TemporaryDirectory() as folder:
            content = strip_file(exported(made(name), Path(folder) / f"{name}.onnx", optimize=optimize))
        kept(name).write_bytes(content)


if __name__ == "__main__":
    sys.exit(_write())
