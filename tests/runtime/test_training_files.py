"""Weights and data of files: what is read of them, and what is said of those that do not fit.  Needs no PyTorch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from planner.builder import build
from planner.errors import InputError, UsageError
from planner.frontends import load_model
from planner.ir import DeviceMesh, Graph, Layout
from planner.kernels.shards import Array
from planner.runtime.training.data import open_data
from planner.runtime.training.options import TrainingOptions
from planner.runtime.training.stored import safetensors
from planner.runtime.training.weights import plain_names, weights_of
from planner.verify.data import random_tensors
from tests.runtime.safetensors_files import write_safetensors

SIZES: dict[str, Any] = {"features": 16, "hidden": 32, "layers": 2, "classes": 8, "batch": 8}
WHOLE = DeviceMesh.of(1)
TWO = DeviceMesh.of(2)


def replicated(rank: int) -> Layout:
    return Layout(((),) * rank)


def by_rows(rank: int) -> Layout:
    return Layout((("x",), *((),) * (rank - 1)))


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A perceptron without weights."""
    (tmp_path / "mlp.onnx").write_bytes(build("mlp", SIZES).SerializeToString())
    return tmp_path / "mlp.onnx"


@pytest.fixture
def graph(model: Path) -> Graph:
    return load_model(model)


def values_of(graph: Graph) -> dict[str, Array]:
    return random_tensors(graph, 3, only=[t.name for t in graph.parameters])


def with_weights(model: Path, values: dict[str, Array], file: Path, *, beside: bool = False) -> Path:
    filled = onnx.load(model, load_external_data=False)
    for t in filled.graph.initializer:
        if t.name in values:
            t.CopyFrom(numpy_helper.from_array(values[t.name], t.name))
    onnx.save(filled, file, save_as_external_data=beside, location=f"{file.name}.data", size_threshold=0)
    return file


def write(file: Path, tensors: dict[str, Array]) -> Path:
    write_safetensors(file, tensors)
    return file


# Weights


@pytest.mark.parametrize("beside", [False, True])
def test_a_model_s_own_weights_are_taken_where_it_holds_them(
    graph: Graph, model: Path, tmp_path: Path, beside: bool
) -> None:
    values = values_of(graph)
    filled = with_weights(model, values, tmp_path / "filled.onnx", beside=beside)
    assert (tmp_path / "filled.onnx.data").exists() == beside
    for given, own in ((None, filled), (filled, model)):
        weights = weights_of(graph, own, given, None)
        assert weights.said == str(filled)
        for name, value in values.items():
            layout = by_rows(value.ndim)
            for place in range(2):
                np.testing.assert_array_equal(
                    weights.part(name, layout, TWO, place), layout.shard(value, TWO, place)
                )  # fmt: skip
    assert weights_of(graph, filled, None, 7).said == "drawn from seed 7"


def test_a_model_without_weights_gets_those_of_a_seed(graph: Graph, model: Path) -> None:
    found = weights_of(graph, model, None, None)
    assert found.said.startswith("drawn from seed 0: ")
    names = [t.name for t in graph.parameters]
    expected = random_tensors(graph, 0)
    for name, value in found.drawn(names).items():
        np.testing.assert_array_equal(value, expected[name])


def test_a_model_that_holds_some_weights_is_refused(graph: Graph, model: Path, tmp_path: Path) -> None:
    values = values_of(graph)
    values.pop("layers.1.bias")
    some = with_weights(model, values, tmp_path / "some.onnx")
    with pytest.raises(InputError, match=r"holds some weights, and has no values for layers\.1\.bias; give all"):
        weights_of(graph, some, None, None)


def test_external_data_that_is_not_there_or_too_short_is_said(graph: Graph, model: Path, tmp_path: Path) -> None:
    filled = with_weights(model, values_of(graph), tmp_path / "filled.onnx", beside=True)
    data = tmp_path / "filled.onnx.data"
    whole = data.read_bytes()
    data.write_bytes(whole[:100])
    with pytest.raises(InputError, match=r"takes \d+ bytes from \d+ on of filled.onnx.data, which has 100"):
        weights_of(graph, filled, filled, None)
    data.unlink()
    with pytest.raises(InputError, match="data lies in a file that is not there"):
        weights_of(graph, filled, filled, None)


@pytest.mark.parametrize("split", [False, True])
def test_safetensors_are_read_by_parts(graph: Graph, model: Path, tmp_path: Path, split: bool) -> None:
    values = values_of(graph)
    names = list(values)
    if split:
        (tmp_path / "st").mkdir()
        write(tmp_path / "st" / "a.safetensors", {n: values[n] for n in names[:2]})
        write(tmp_path / "st" / "b.safetensors", {n: values[n] for n in names[2:]} | {"more": np.zeros(3, np.float32)})
        given = tmp_path / "st"
    else:
        given = write(tmp_path / "w.safetensors", values | {"more": np.zeros(3, np.float32)})
    weights = weights_of(graph, model, given, None)
    assert weights.unread == ("more",)
    assert isinstance(weights.held[names[0]].read(), np.memmap)
    for name, value in values.items():
        np.testing.assert_array_equal(weights.part(name, replicated(value.ndim), WHOLE, 0), value)


def test_a_tied_parameter_may_have_any_of_its_names(graph: Graph, model: Path, tmp_path: Path) -> None:
    told = onnx.load(model, load_external_data=False)
    told.metadata_props.add(key="planner.aliases", value='{"head.bias": "layers.1.bias"}')
    onnx.save(told, model)
    values = values_of(graph)
    for names in (["layers.1.bias"], ["head.bias"], ["layers.1.bias", "head.bias"]):
        held = {n: v for n, v in values.items() if n != "layers.1.bias"} | dict.fromkeys(names, values["layers.1.bias"])
        weights = weights_of(graph, model, write(tmp_path / "w.safetensors", held), None)
        assert (weights.unread, weights.aliases) == ((), {"head.bias": "layers.1.bias"})
        np.testing.assert_array_equal(weights.part("layers.1.bias", replicated(1), WHOLE, 0), values["layers.1.bias"])


def test_narrower_floats_are_widened(graph: Graph, model: Path, tmp_path: Path) -> None:
    values = {n: v.astype(np.float16) for n, v in values_of(graph).items()}
    weights = weights_of(graph, model, write(tmp_path / "w.safetensors", values), None)
    found = weights.part("layers.0.bias", replicated(1), WHOLE, 0)
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, values["layers.0.bias"].astype(np.float32))


def test_files_of_weights_that_do_not_fit_are_named(graph: Graph, model: Path, tmp_path: Path) -> None:
    values = values_of(graph)

    def refused(words: str, tensors: dict[str, Array]) -> None:
        with pytest.raises(InputError, match=words):
            weights_of(graph, model, write(tmp_path / "w.safetensors", tensors), None)

    other = {("head.bias" if n == "layers.1.bias" else n): v for n, v in values.items()}
    refused(r"no values for layers\.1\.bias; it holds head\.bias, which the model does not read", other)
    turned = values | {"layers.0.weight": values["layers.0.weight"].T.copy()}
    refused(r"layers\.0\.weight of .*: expected the shape \[16, 32\] .* found \[32, 16\], which is the transp", turned)
    refused(r"expected elements of float32, found int64", values | {"layers.0.bias": np.zeros(32, np.int64)})
    with pytest.raises(InputError, match="there is no such file or folder"):
        weights_of(graph, model, tmp_path / "nothing", None)
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="found none in it"):
        weights_of(graph, model, tmp_path / "empty", None)


@pytest.mark.parametrize("end", [0, 4, 20, 300, -8])
def test_a_file_that_was_cut_off_is_no_safetensors(graph: Graph, tmp_path: Path, end: int) -> None:
    file = write(tmp_path / "w.safetensors", values_of(graph))
    file.write_bytes(file.read_bytes()[:end])
    with pytest.raises(InputError, match="expected a safetensors file, found "):
        safetensors(file)


def test_names_are_the_file_s_own(graph: Graph) -> None:
    assert plain_names(graph) == {t.name: t.name for t in graph.parameters}


# Data


def fill(folder: Path, samples: int = 20, **other: Array) -> dict[str, Array]:
    rng = np.random.default_rng(0)
    arrays: dict[str, Array] = {
        "features": rng.standard_normal((samples, 16), dtype=np.float32), "labels": rng.integers(0, 8, samples)
    } | other  # fmt: skip
    for name, value in arrays.items():
        np.save(folder / f"{name}.npy", value)
    return arrays


def test_batches_follow_each_other_and_begin_again(graph: Graph, tmp_path: Path) -> None:
    arrays = fill(tmp_path)
    data = open_data(graph, tmp_path, micro_batches=2)
    assert data.step_samples == 16
    for position in (0, 16, 32):
        for m in range(2):
            rows = (position + 8 * m + np.arange(8)) % 20
            for place in range(2):
                found = data.part("features", position, m, by_rows(2), TWO, place)
                np.testing.assert_array_equal(found, arrays["features"][rows][4 * place : 4 * place + 4])
            np.testing.assert_array_equal(
                data.part("labels", position, m, replicated(1), TWO, 1), arrays["labels"][rows]
            )


@pytest.mark.parametrize("kind", ["npz", "safetensors"])
def test_files_of_steps_follow_each_other(graph: Graph, tmp_path: Path, kind: str) -> None:
    rng = np.random.default_rng(0)
    steps = [
        {"features": rng.standard_normal((16, 16), dtype=np.float32), "labels": rng.integers(0, 8, 16)}
        for _ in range(3)
    ]
    for k, step in enumerate(steps):
        if kind == "npz":
            np.savez(tmp_path / f"{k:04}.npz", **step)
        else:
            write(tmp_path / f"{k:04}.safetensors", step)
    data = open_data(graph, tmp_path, micro_batches=2)
    for k in (0, 1, 2, 3, 1):
        data.check(16 * k)
        found = data.part("features", 16 * k, 1, by_rows(2), TWO, 1)
        np.testing.assert_array_equal(found, steps[k % 3]["features"][12:])
    if kind == "npz":
        np.savez(tmp_path / "0004.npz", features=steps[0]["features"])
        with pytest.raises(InputError, match=r"0004.npz: it has no labels, which the model reads; it has features"):
            open_data(graph, tmp_path, micro_batches=2).check(16 * 3)
        with pytest.raises(InputError, match=r"expected 8 samples, which a step of the plan takes, found 16"):
            open_data(graph, tmp_path, micro_batches=1)


@pytest.mark.parametrize(
    ("other", "words"),
    [
        ({"labels": np.zeros(19, np.int64)}, r"labels.npy: expected as many samples as .* have, 20, found 19"),
        ({"labels": np.zeros(20, np.float32)}, r"labels.npy: expected elements of int64 .* labels, found float32"),
        ({"features": np.zeros((20, 15), np.float32)}, r"expected \[any number of samples, 16\] .*found \[20, 15\]"),
        ({"features": np.zeros((7, 16), np.float32)}, r"expected at least 8 samples, which .*, found 7"),
        ({"features": np.zeros((), np.float32)}, r"expected \[any number of samples, 16\] .*found \[\]"),
    ],
)  # fmt: skip
def test_data_that_does_not_fit_is_named(graph: Graph, tmp_path: Path, other: dict[str, Array], words: str) -> None:
    fill(tmp_path, **other)
    with pytest.raises(InputError, match=words):
        open_data(graph, tmp_path, micro_batches=1)


def test_a_folder_without_an_input_says_which(graph: Graph, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"expected features.npy, labels.npy, .* found neither"):
        open_data(graph, tmp_path, micro_batches=1)
    np.save(tmp_path / "features.npy", np.zeros((8, 16), np.float32))
    with pytest.raises(InputError, match=r"it has no labels\.npy, which the model reads"):
        open_data(graph, tmp_path, micro_batches=1)
    (tmp_path / "labels.npy").write_bytes(b"no array")
    with pytest.raises(InputError, match="expected an array that"):
        open_data(graph, tmp_path, micro_batches=1)
    with pytest.raises(InputError, match="expected a folder, found a file"):
        open_data(graph, tmp_path / "labels.npy", micro_batches=1)


def test_indices_out_of_range_are_found_and_labels_left_out_are_not(graph: Graph, tmp_path: Path) -> None:
    labels = np.zeros(20, np.int64)
    ignored = next(op.attributes["ignore_index"] for op in graph.ops if "ignore_index" in op.attributes)
    labels[:3] = ignored, 7, 8
    fill(tmp_path, labels=labels)
    data = open_data(graph, tmp_path, micro_batches=1)
    with pytest.raises(InputError, match=r"the input labels has 8 in the 8 samples from 0 on; expected numbers from 0"):
        data.part("labels", 0, 0, by_rows(1), TWO, 0)
    np.testing.assert_array_equal(data.part("labels", 0, 0, by_rows(1), TWO, 1), labels[4:8])
    labels[2] = -1
    fill(tmp_path, labels=labels)
    with pytest.raises(InputError, match=f"has -1 in .* to 7, or {ignored} to be left out"):
        open_data(graph, tmp_path, micro_batches=1).part("labels", 0, 0, by_rows(1), TWO, 0)


def test_inputs_of_every_token_in_a_row_and_inputs_of_no_sample(tmp_path: Path) -> None:
    """Labels of [batch x 4], a table of positions that all samples share."""
    f, i = onnx.TensorProto.FLOAT, onnx.TensorProto.INT64
    nodes = [
        helper.make_node("Add", ["x", "table"], ["y"]),
        helper.make_node("MatMul", ["y", "w"], ["z"]),
        helper.make_node("Reshape", ["z", "shape"], ["scores"]),
        helper.make_node("SoftmaxCrossEntropyLoss", ["scores", "labels"], ["loss"]),
    ]
    inputs = [helper.make_tensor_value_info(n, t, s) for n, t, s in
              (("x", f, [2, 4, 3]), ("table", f, [5, 4, 3][1:]), ("labels", i, [8]))]  # fmt: skip
    weight = numpy_helper.from_array(np.ones((3, 5), np.float32), "w")
    shape = numpy_helper.from_array(np.array([8, 5]), "shape")
    made = helper.make_graph(nodes, "g", inputs, [helper.make_tensor_value_info("loss", f, [])], [weight, shape])
    onnx.save(helper.make_model(made, opset_imports=[helper.make_opsetid("", 17)]), tmp_path / "m.onnx")
    graph = load_model(tmp_path / "m.onnx")
    table = np.arange(12, dtype=np.float32).reshape(4, 3)
    arrays = {"x": np.ones((6, 4, 3), np.float32), "table": table, "labels": np.arange(24) % 5}
    folder = tmp_path / "data"
    folder.mkdir()
    for name, value in arrays.items():
        np.save(folder / f"{name}.npy", value)
    data = open_data(graph, folder, micro_batches=2)
    np.testing.assert_array_equal(data.part("labels", 4, 1, replicated(1), WHOLE, 0), arrays["labels"][:8])
    np.testing.assert_array_equal(data.part("labels", 0, 1, replicated(1), WHOLE, 0), arrays["labels"][8:16])
    np.testing.assert_array_equal(data.part("table", 4, 1, replicated(2), WHOLE, 0), table)


# Options


def test_numbers_are_those_asked_for_then_the_checkpoint_s_then_the_plan_s() -> None:
    plain = TrainingOptions().numbers("adam")
    assert (plain.optimizer, plain.lr, plain.weight_decay, plain.momentum, plain.clip) == (
        "adamw",
        1e-3,
        1e-2,
        0.0,
        None,
    )
    momentum = TrainingOptions().numbers("momentum")
    assert (momentum.optimizer, momentum.momentum, momentum.weight_decay) == ("sgd", 0.9, 0.0)
    before = {"optimizer": "sgd", "lr": 0.3, "momentum": 0.5, "weight_decay": 0.1, "clip": 2.0}
    kept = TrainingOptions(lr=0.2).numbers("adam", before)
    assert (kept.optimizer, kept.lr, kept.momentum, kept.weight_decay, kept.clip) == ("sgd", 0.2, 0.5, 0.1, 2.0)
    with pytest.raises(UsageError, match="AdamW has none"):
        TrainingOptions(momentum=0.9).numbers("adam")
    with pytest.raises(UsageError, match="of a training with sgd"):
        TrainingOptions(optimizer="adamw").numbers("adam", before)
