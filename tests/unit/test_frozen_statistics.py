"""Batch normalisations that an export has frozen are said of a plan of training."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from planner.cli.main import main
from planner.frontends import import_bytes
from planner.frontends.facts.statistics import frozen_statistics
from tests.unit.frontends_models import constant, external, node, serialised, value

FILTER = external("c.weight", [8, 3, 3, 3])
OF_CHANNELS = [constant(f"n.{n}", np.ones(8), "float32") for n in ("weight", "bias", "mean", "var")]


def model(*nodes: object, filters: object = FILTER, more: tuple[object, ...] = ()) -> bytes:
    nodes = (*nodes, node("Relu", "h", "r"), node("ReduceMean", "r", "loss", keepdims=0))
    return serialised(nodes, [value("x", [4, 3, 8, 8])], [value("loss", [])], [filters, *more])  # type: ignore[arg-type, list-item]


def normalised(outputs: str, **attributes: int) -> bytes:
    norm = node("BatchNormalization", "c0 n.weight n.bias n.mean n.var", outputs, module="n", **attributes)
    return model(node("Conv", "x c.weight", "c0", module="c"), norm, more=tuple(OF_CHANNELS))


FROZEN = {
    "inference mode": (normalised("h"), "stored statistics normalise in 1 batch normalisation (h)"),
    "folded, weight renamed": (
        model(node("Conv", "x onnx::Conv_18", "h", module="c"), filters=external("onnx::Conv_18", [8, 3, 3, 3])),
        "folded a batch normalisation into the weights of 1 convolution (h)",
    ),
    "folded, weight of another module": (
        model(node("Conv", "x c.weight", "h", module="n")),
        "folded a batch normalisation into the weights of 1 convolution (h)",
    ),
}
TRAINED = {
    "training mode": normalised("h mean2 var2", training_mode=1),
    "no normalisation": model(node("Conv", "x c.weight", "h", module="c")),
    "called by a module around": model(
        node("Conv", "x a.c.weight", "h", module="a"), filters=external("a.c.weight", [8, 3, 3, 3])
    ),
    "in a wrapper": model(node("Conv", "x c.weight", "h", module="model.c")),
    "without modules": model(node("Conv", "x c.weight", "h")),
}


@pytest.mark.parametrize("name", FROZEN)
def test_what_an_export_froze_is_noticed(name: str) -> None:
    data, said = FROZEN[name]
    (line,) = frozen_statistics(import_bytes(data))
    assert said in line
    assert "training=torch.onnx.TrainingMode.TRAINING" in line


@pytest.mark.parametrize("name", TRAINED)
def test_what_is_trained_is_not_called_frozen(name: str) -> None:
    assert frozen_statistics(import_bytes(TRAINED[name])) == []


@pytest.mark.parametrize(("mode", "times"), [("training", 1), ("inference", 0)])
def test_a_search_says_it_of_training_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], mode: str, times: int
) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(FROZEN["inference mode"][0])
    arguments = ["search", str(path), "--devices", "2", "--hardware", "cpu", "--no-cache", "--mode", mode]
    assert main([*arguments, "--out", str(tmp_path / "out")]) == 0
    assert capsys.readouterr().err.count("note: stored statistics normalise in 1 batch normalisation") == times
