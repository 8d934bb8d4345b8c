"""A plan with micro-batches says where these compute something else than the whole batch."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
from onnx import parser

from planner.cli.main import main
from planner.frontends import import_bytes
from planner.requests.micro_batches import computed_otherwise

SAMPLES = Path(__file__).parents[2] / "sample_graphs"


def model(scores: str) -> bytes:
    """Trained with a cross-entropy of `s`, [batch, classes]."""
    text = f"""<ir_version: 8, opset_import: ["": 18]>
    step (float[8, 16] x, int64[8] labels) => (float loss)
    <float[16, 16] w = {{{", ".join(["0.5"] * 256)}}}, int64[1] first = {{0}}, int64[1] batch = {{8}},
     float[16] one = {{{", ".join(["1"] * 16)}}}>
    {{
        h = MatMul(x, w)
        {scores}
        loss = SoftmaxCrossEntropyLoss(s, labels)
    }}"""
    found = parser.parse_model(text)
    onnx.checker.check_model(found, full_check=True)
    return found.SerializeToString()


MEETING = {
    "Sub s": "mean = ReduceMean<keepdims = 1>(h, first) s = Sub(h, mean)",
    "Softmax s": "s = Softmax<axis = 0>(h)",
    "MatMul pairs": "t = Transpose<perm = [1, 0]>(h) pairs = MatMul(h, t) s = MatMul(pairs, h)",
    "BatchNormalization s": "s, m, v = BatchNormalization<training_mode = 1>(h, one, one, one, one)",
    "Softmax a and 1 more": "a = Softmax<axis = 0>(h) b = Softmax<axis = 0>(x) s = Add(a, b)",
}


@pytest.mark.parametrize("where", MEETING)
def test_where_samples_meet_is_named(where: str) -> None:
    graph = import_bytes(model(MEETING[where]), batch=2)
    (line,) = computed_otherwise(graph, 4)
    assert line.startswith(f"samples meet each other, or are chosen by their places, in {where}, so that the 4 ")
    assert computed_otherwise(graph, 1) == []


def test_every_one_of_many_equal_blocks_is_named() -> None:
    """Of which a few are looked at first."""
    blocks = (f"p{k} = MatMul(x, w{k}) a{k} = Softmax<axis = 0>(p{k}) s{k} = Add(a{k}, {before})"
              for k, before in enumerate(("h", "s0", "s1", "s2", "s3", "s4")))  # fmt: skip
    weights = "".join(f"w{k} = Mul(w, one) " for k in range(6))
    graph = import_bytes(model(f"{weights} {' '.join(blocks)} s = Identity(s5)"), batch=2)
    (line,) = computed_otherwise(graph, 4)
    assert "in Softmax a0 and 5 more, so that the 4 " in line


def test_rows_of_a_weight_that_are_taken_for_samples_are_named() -> None:
    graph = import_bytes(model("rows = Slice(w, first, batch) s = Add(h, rows)"), batch=2)
    (line,) = computed_otherwise(graph, 4)
    assert line.startswith("as many rows as there are samples are taken by Slice rows, and so the first ones for each")


@pytest.mark.parametrize("name", ["gpt_tiny", "moe_tiny", "vit_tiny", "bert_tiny", "llama_tiny", "mlp"])
def test_nothing_is_said_of_samples_that_are_by_themselves(name: str) -> None:
    data = (SAMPLES / f"{name}.onnx").read_bytes()
    assert computed_otherwise(import_bytes(data, batch=2), 4) == []


def test_a_graph_that_makes_no_sense_in_another_size_is_passed_over() -> None:
    """Places that are an input are as many as the samples are, by chance."""
    text = """<ir_version: 8, opset_import: ["": 18]>
    places (float[1, 3, 1, 5] x, int64[1] axes) => (float[1, 3, 1, 1, 5] y) { y = Unsqueeze(x, axes) }"""
    graph = import_bytes(parser.parse_model(text).SerializeToString())
    assert computed_otherwise(graph, 4) == []


def test_a_search_says_it_of_its_plan(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "step.onnx"
    file.write_bytes(model(MEETING["Softmax s"]))
    options = ["--devices", "2", "--hardware", "a100-80", "--out", str(tmp_path / "plan"), "--force"]
    for count, times in (("4", 1), ("1", 0)):
        assert main(["search", str(file), *options, "--micro-batches", count]) == 0
        said = "warning: samples meet each other, or are chosen by their places, in Softmax s, so that the 4 "
        assert capsys.readouterr().err.count(said) == times
