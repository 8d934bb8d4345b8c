"""The command line as a test calls it."""

from __future__ import annotations

from pathlib import Path

from planner.cli.main import main

SAMPLES = Path(__file__).resolve().parents[2] / "sample_graphs"
MLP = SAMPLES / "mlp.onnx"


def run(*arguments: object) -> int:
    """Exit status; what is wrong with the arguments leaves by an exception."""
    try:
        return main([str(a) for a in arguments])
    except SystemExit as e:
        return int(e.code or 0)
