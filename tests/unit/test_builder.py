"""Built graphs are what they claim, and go the whole way: planned under forced splits, executed, equal."""

from __future__ import annotations

import importlib.util
import json
import math
from pathlib import Path

import pytest

from planner.builder import build
from planner.cli.main import main
from planner.errors import UsageError
from planner.frontends import import_bytes
from planner.ir import Graph

SAMPLES = Path(__file__).parents[2] / "sample_graphs"
SMALL = sorted(p.stem for p in SAMPLES.glob("*.onnx") if p.stem not in ("gpt2_small", "resnet50"))


def imported(architecture: str, **sizes: int | bool) -> Graph:
    return import_bytes(build(architecture, sizes).SerializeToString(), name=architecture)


def parameters(graph: Graph) -> int:
    return sum(t.elements for t in graph.parameters)


def test_gpt2_small_has_the_published_number_of_parameters() -> None:
    """124,439,808: 50257 tokens and 1024 positions of 768, 12 layers, tied head (Radford et al., 2019)."""
    graph = imported("gpt")
    assert parameters(graph) == 124_439_808
    assert graph.loss == "loss"


def test_llama2_7b_has_the_published_number_of_parameters_less_its_head() -> None:
    """6,738,415,616 with a head of its own; here it is tied to the embedding."""
    assert parameters(imported("llama")) == 6_738_415_616 - 32000 * 4096


def test_resnet50_has_the_published_number_of_parameters() -> None:
    """25,557,032 trained; running statistics are not."""
    assert parameters(imported("resnet")) == 25_557_032


def test_experts_hold_their_share() -> None:
    few, many = (parameters(imported("moe", layers=2, experts=e)) for e in (4, 8))
    assert many - few == 2 * (4 * 2 * 1024 * 4096 + 1024 * 4)


def test_175_billion_parameters_are_a_few_megabytes() -> None:
    model = build("gpt", {"layers": 96, "hidden": 12288, "heads": 96, "seq": 2048, "vocab": 51200, "batch": 2048})
    assert len(model.SerializeToString()) < 3_000_000
    count = sum(math.prod(t.dims) for t in model.graph.initializer if t.external_data)
    assert 174e9 < count < 176e9


@pytest.mark.parametrize("architecture", ["gpt", "bert", "llama", "moe", "vit", "resnet", "mlp"])
def test_inference_graphs_have_no_loss(architecture: str) -> None:
    layers = 18 if architecture == "resnet" else 1
    graph = imported(architecture, layers=layers, loss=False)
    assert graph.loss is None
    assert len(graph.inputs) == 1
    assert all(t.shape is not None for t in graph.tensors.values())


@pytest.mark.parametrize("sample", SMALL)
def test_samples_are_planned_and_proved(sample: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Under a profile without free computing, heavy operators must use every axis: hard plans, not replication."""
    model = str(SAMPLES / f"{sample}.onnx")
    search = ["search", model, "--devices", "4", "--mesh", "2x2", "--hardware", "alpha-beta", "--json"]
    assert main([*search, "--out", str(tmp_path)]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["operators_replicated_for_want_of_a_rule"] == []
    assert found["collectives"]
    assert main(["verify", found["plan"], model, "--json"]) == 0
    verdict = json.loads(capsys.readouterr().out)
    assert verdict["checked"] == ["forward", "gradients"]
    assert verdict["max_error"] < 1e-3


def test_samples_are_what_the_builder_makes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    spec = importlib.util.spec_from_file_location("make", SAMPLES / "make.py")
    assert spec is not None
    assert spec.loader is not None
    make = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(make)
    make.write(tmp_path)
    made = {p.name: p.read_bytes() for p in tmp_path.glob("*.onnx")}
    kept = {p.name: p.read_bytes() for p in SAMPLES.glob("*.onnx")}
    assert made.keys() == kept.keys()
    assert [n for n in made if made[n] != kept[n]] == []
    assert sum(map(len, kept.values())) < 1_500_000


@pytest.mark.parametrize(
    ("architecture", "sizes", "says"),
    [
        ("gpt", {"hidden": 65, "heads": 4}, "--hidden 65"),
        ("llama", {"heads": 32, "kv_heads": 3}, "--kv-heads 3"),
        ("moe", {"experts": 2, "top_k": 3}, "--top-k 3"),
        ("resnet", {"layers": 19}, "--layers 19"),
        ("gpt", {"layers": 0}, "--layers"),
        ("gru", {}, "architecture"),
    ],
)
def test_impossible_sizes_name_the_option(architecture: str, sizes: dict[str, int], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        build(architecture, sizes)
