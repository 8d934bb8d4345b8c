"""Built graphs are what they claim, and go the whole way: planned under forced splits, executed, equal."""

from __future__ import annotations

import importlib.util
import json
import math
from pathlib import Path

import onnx
import pytest

from planner.builder import ARCHITECTURES, build
from planner.builder.moe import MoeSizes
from planner.cli.main import main
from planner.errors import UsageError
from planner.frontends import import_bytes
from planner.frontends.resized.blocks import repeated_blocks
from planner.ir import Graph

SAMPLES = Path(__file__).parents[2] / "sample_graphs"
TINY: dict[str, dict[str, int | bool]] = {
    "bert": {"layers": 2, "hidden": 32, "heads": 4, "vocab": 64, "seq": 8},
    "deepseek": {
        **{"layers": 2, "hidden": 32, "heads": 4, "ffn": 48, "vocab": 64, "seq": 8},
        **{"q_lora": 12, "kv_lora": 8, "qk_nope": 4, "qk_rope": 2, "v_dim": 6},
        **{"experts": 4, "shared_experts": 1, "expert_ffn": 16, "top_k": 2},
    },
    "gpt": {"layers": 2, "hidden": 32, "heads": 4, "vocab": 64, "seq": 8},
    "llama": {"layers": 2, "hidden": 32, "heads": 4, "kv_heads": 2, "ffn": 48, "vocab": 64, "seq": 8},
    "mlp": {"features": 16, "hidden": 32, "classes": 8},
    "moe": {"layers": 2, "hidden": 32, "heads": 4, "kv_heads": 2, "ffn": 16, "vocab": 64, "seq": 8, "experts": 4},
    "resnet": {"layers": 18, "hidden": 8, "image": 32, "classes": 8},
    "vit": {"layers": 2, "hidden": 32, "heads": 4, "image": 16, "patch": 4, "classes": 8},
}
SMALL = sorted(p.stem for p in SAMPLES.glob("*.onnx") if p.stem not in ("gpt2_small", "resnet50"))


def imported(architecture: str, **sizes: int | bool) -> Graph:
    return import_bytes(build(architecture, sizes).SerializeToString(), name=architecture)


def parameters(graph: Graph) -> int:
    return sum(t.elements for t in graph.parameters)


def test_gpt2_small_has_the_published_number_of_parameters() -> None:
    """124,439,808: 50257 tokens and 1024 positions of 768, 12 layers, tied head (Radford et al., 2019)."""
    graph = imported("gpt", context=1024, seq=128)
    assert parameters(graph) == 124_439_808
    assert graph.loss == "loss"


@pytest.mark.parametrize(
    ("architecture", "sizes", "published"),
    [
        ("bert", {}, 109_514_298),
        ("llama", {}, 6_738_415_616),
        ("llama", {"kv_heads": 8, "ffn": 14336, "vocab": 128256}, 8_030_261_248),
        ("moe", {}, 46_702_792_704),
        ("resnet", {"layers": 18}, 11_689_512),
        ("resnet", {"layers": 34}, 21_797_672),
        ("resnet", {}, 25_557_032),
        ("resnet", {"layers": 101}, 44_549_160),
        ("vit", {}, 86_567_656),
    ],
)
def test_known_models_have_the_published_number_of_parameters(
    architecture: str, sizes: dict[str, int], published: int
) -> None:
    """BERT base, Llama 2 7B and 3 8B, Mixtral 8x7B, torchvision's ResNets and ViT-B/16; running statistics aside."""
    stored = build(architecture, sizes).graph.initializer
    weights = [t for t in stored if t.external_data and "running_" not in t.name]
    assert sum(math.prod(t.dims) for t in weights) == published


@pytest.mark.parametrize("architecture", ["bert", "gpt", "llama", "moe", "resnet", "mlp"])
def test_every_weight_is_imported_as_a_parameter(architecture: str) -> None:
    stored = build(architecture, TINY[architecture]).graph.initializer
    weights = {t.name for t in stored if t.external_data and "running_" not in t.name}
    assert {t.name for t in imported(architecture, **TINY[architecture]).parameters} == weights


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_another_batch_can_be_bound(architecture: str) -> None:
    """No constant spells out the batch but ViT's, which `rebind` carries."""
    data = build(architecture, TINY[architecture]).SerializeToString()
    bound = import_bytes(data, name=architecture, batch=24)
    whole = import_bytes(build(architecture, {**TINY[architecture], "batch": 24}).SerializeToString())
    assert [bound.tensors[op.name].shape for op in bound.ops] == [whole.tensors[op.name].shape for op in whole.ops]


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_shapes_are_static_for_onnx_itself(architecture: str) -> None:
    model = build(architecture, TINY[architecture])
    inferred = onnx.shape_inference.infer_shapes(model, check_type=True, strict_mode=True, data_prop=True)
    shapes = {v.name: v.type.tensor_type.shape for v in [*inferred.graph.value_info, *inferred.graph.output]}
    results = [o for node in model.graph.node for o in node.output]
    assert all(d.HasField("dim_value") for o in results for d in shapes[o].dim)


@pytest.mark.parametrize("inference", [False, True])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_the_onnx_checker_accepts_it_beside_its_weights(architecture: str, inference: bool, tmp_path: Path) -> None:
    """The checker wants the file of weights to exist, whatever it holds; that the places in it fit is asserted here."""
    model = build(architecture, {**TINY[architecture], "inference": inference})
    places = [{e.key: e.value for e in t.external_data} for t in model.graph.initializer if t.external_data]
    (location,) = {p["location"] for p in places}
    ends = [int(p["offset"]) + int(p["length"]) for p in places]
    assert [int(p["offset"]) for p in places] == [0, *ends[:-1]]  # no gap, no overlap
    (tmp_path / location).touch()
    path = tmp_path / "model.onnx"
    path.write_bytes(model.SerializeToString())
    onnx.checker.check_model(path, full_check=True)


def test_layers_are_found_and_named() -> None:
    graph = imported("gpt", **TINY["gpt"])
    (run,) = repeated_blocks(graph)
    assert run.count == 2
    assert all(graph.op(name).module.startswith("transformer.h.0") for name in run.blocks[0])
    assert "transformer.h.0.attn.c_attn.weight" in graph.tensors


def test_experts_work_on_their_tokens_alone() -> None:
    """Slots times the factor of capacity, not every token at every expert."""
    sizes = MoeSizes(hidden=64, heads=4, kv_heads=2, seq=64, experts=16, top_k=2)
    assert sizes.capacity == 10  # 1.25 · 2 · 64 / 16
    assert MoeSizes(hidden=64, heads=4, kv_heads=2, seq=4, experts=2, top_k=2).capacity == 4  # never above the sequence


def test_175_billion_parameters_are_a_few_megabytes() -> None:
    model = build("gpt", {"layers": 96, "hidden": 12288, "heads": 96, "seq": 2048, "vocab": 51200, "batch": 2048})
    assert len(model.SerializeToString()) < 3_000_000
    count = sum(math.prod(t.dims) for t in model.graph.initializer if t.external_data)
    assert 174e9 < count < 176e9


@pytest.mark.parametrize("architecture", ["gpt", "bert", "llama", "moe", "vit", "resnet", "mlp"])
def test_inference_graphs_have_no_loss(architecture: str) -> None:
    layers = 18 if architecture == "resnet" else 1
    graph = imported(architecture, layers=layers, inference=True)
    assert graph.loss is None
    assert len(graph.inputs) == (3 if architecture == "bert" else 1)
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
        ("llama", {"hidden": 12, "heads": 4}, "odd width 3"),
        ("gpt", {"seq": 32, "context": 16}, "--context 16"),
        ("gpt", {"experts": 4}, "--experts"),
        ("gpt", {"layers": 10**6}, "--layers"),
        ("vit", {"patch": 15}, "--patch 15"),
        ("moe", {"experts": 2, "top_k": 3}, "--top-k 3"),
        ("resnet", {"layers": 19}, "--layers 19"),
        ("gpt", {"layers": 0}, "--layers"),
        ("gru", {}, "architecture"),
    ],
)
def test_impossible_sizes_name_the_option(architecture: str, sizes: dict[str, int], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        build(architecture, sizes)


def test_the_class_token_of_a_vit_is_trained() -> None:
    """86,567,656 parameters are published for ViT-B/16; the token is concatenated with data, not multiplied."""
    graph = import_bytes(build("vit", {}).SerializeToString(), name="vit")
    assert sum(t.elements for t in graph.parameters) == 86_567_656
