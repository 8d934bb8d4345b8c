"""Operators of one module, which imports PyTorch inside its function, on gloo processes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest

from planner.frontends import load_model
from planner.verify.check import FORWARD_TOLERANCE, GRADIENT_TOLERANCE, relative_error
from planner.verify.data import random_tensors
from planner.verify.reference import gradients, run_ops
from tests.unit.one_module_models import MODELS

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.peer

from planner.runtime.session import Session  # noqa: E402  they import torch
from planner.runtime.workers import Workers  # noqa: E402
from tests.runtime.test_programs import plan  # noqa: E402

SPLITS = {
    "planner::DeformConv3D": ("n", "o", "i", "y0", "y2"),
    "planner::SwiGLUMatMul": ("k", "n", "t0"),
    "planner::SegmentSum": ("s", "n", "d0"),
}


@pytest.fixture(scope="module")
def workers() -> Iterator[Workers]:
    with Workers(2) as started:
        yield started


@pytest.mark.parametrize(("kind", "factor"), [(k, f) for k, all_ in SPLITS.items() for f in all_])
def test_two_processes_compute_what_the_whole_model_computes(
    workers: Workers, tmp_path: Path, kind: str, factor: str
) -> None:
    path = tmp_path / "model.onnx"
    onnx.save(MODELS[kind](), path)
    graph = load_model(path)
    values = random_tensors(graph, 0)
    whole = run_ops(graph, values)
    truth = gradients(graph, values, whole, [p.name for p in graph.parameters])
    session = Session(workers, path, plan(graph, (f"type={kind} {factor}=2",), 2))
    found = session.results()
    session.close()
    assert kind not in found.fallbacks
    for name in graph.outputs:
        assert relative_error(found.outputs[name], whole[name]) < FORWARD_TOLERANCE, name
    floor = 1e-3 * float(np.median([np.abs(g).max() for g in truth.values()]))
    for name, gradient in truth.items():
        assert relative_error(found.gradients[name], gradient, floor) < GRADIENT_TOLERANCE, name
