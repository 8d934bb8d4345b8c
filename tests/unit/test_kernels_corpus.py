"""Real models, where the corpus lies beside the checkout: operator by operator equals ONNX Runtime on the whole."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from planner.frontends import import_bytes
from planner.verify.data import random_tensors
from planner.verify.reference import gradients, run_ops, run_whole

MODELS = Path(__file__).parents[3] / "shared" / "models"

pytestmark = [
    pytest.mark.corpus,
    pytest.mark.slow,
    pytest.mark.skipif(not MODELS.is_dir(), reason="no model corpus beside the checkout"),
]


def load(name: str, **bind: int):
    path = MODELS / f"{name}.onnx"
    if not path.exists():
        pytest.skip(f"{name} is not in the corpus")
    return import_bytes(path.read_bytes(), name=name, bind=bind or None)


@pytest.mark.parametrize(
    "name", ["resnet50", "convnext_tiny", "t5_small_loss", "light_densenet121", "light_resnet50", "whisper_tiny"]
)
def test_single_operators_equal_the_whole_model(name: str) -> None:
    graph = load(name)
    values = random_tensors(graph, 0)
    single = run_ops(graph, values)
    for output, whole in run_whole(graph, values).items():
        assert np.isfinite(whole).all()
        np.testing.assert_allclose(single[output], whole, atol=1e-3 * float(np.abs(whole).max()))


@pytest.mark.parametrize("name", ["resnet50", "gpt2_small"])
def test_reverse_sweep_equals_the_exporters_backward(name: str) -> None:
    """The training graph's backward was derived by another system; weights and inputs have the same names."""
    forward, training = load(f"{name}_loss"), load(f"{name}_train")
    values = random_tensors(forward, 0)
    own = gradients(forward, values, run_ops(forward, values), [t.name for t in forward.parameters])
    theirs = run_ops(training, {**random_tensors(training, 0), **values})
    compared = [n for n in own if f"{n}_grad" in theirs]
    assert len(compared) > len(own) / 2
    for n in compared:
        scale = float(np.abs(own[n]).max())
        np.testing.assert_allclose(theirs[f"{n}_grad"], own[n], rtol=1e-3, atol=1e-4 * scale)
