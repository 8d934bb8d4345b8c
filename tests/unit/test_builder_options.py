"""Options of the builder: each family's published size, and every way to say one function computes it."""

from __future__ import annotations

import json
import math
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import numpy_helper

from planner.builder import build
from planner.builder.experts import Routing
from planner.builder.moe import MoeSizes
from planner.builder.positions import _slopes
from planner.cli.main import main
from planner.errors import UsageError
from planner.frontends import import_bytes

Options = dict[str, Any]

DOCUMENT = Path(__file__).parents[2] / "docs" / "builder.md"
TINY: Options = {"layers": 2, "hidden": 32, "heads": 4, "vocab": 64, "seq": 8}
LLAMA: Options = {**TINY, "ffn": 48}
MOE: Options = {**TINY, "ffn": 16, "experts": 4, "kv_heads": 2}
LATENT: Options = {"q_lora": 12, "kv_lora": 10, "qk_nope": 6, "qk_rope": 4, "v_dim": 5}
DEEPSEEK: Options = {**LLAMA, **LATENT, "experts": 4, "shared_experts": 1, "expert_ffn": 16, "top_k": 2}
BLOOM: Options = {"positions": "alibi", "embedding_norm": True}
NEMOTRON: Options = {"activation": "squared_relu", "positions": "rotary", "bias": False, "untied": True, "kv_heads": 8}
V3: Options = {
    **{"layers": 61, "hidden": 7168, "ffn": 18432, "vocab": 129280, "dense_layers": 3},
    **{"experts": 256, "shared_experts": 1, "expert_ffn": 2048, "top_k": 8, "scores": "sigmoid"},
}


def weights(model: onnx.ModelProto) -> int:
    return sum(math.prod(t.dims) for t in model.graph.initializer if t.external_data)


def computed(architecture: str, sizes: Options, seed: int = 0) -> np.ndarray:
    """Logits with weights that depend on their names alone: models of the same weights are comparable."""
    model = build(architecture, {"batch": 3, **sizes, "inference": True})
    for t in model.graph.initializer:
        if t.external_data:
            draw = np.random.default_rng([zlib.crc32(t.name.encode()), seed])
            t.CopyFrom(numpy_helper.from_array(draw.normal(0, 0.3, t.dims).astype(np.float32), t.name))
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    (fed,) = session.get_inputs()
    tokens = np.random.default_rng(seed).integers(0, sizes["vocab"], fed.shape)
    return session.run(None, {fed.name: tokens})[0]


def close(a: np.ndarray, b: np.ndarray) -> bool:
    return bool(np.abs(a).max() > 0.1 and np.abs(a - b).max() < 1e-4 * np.abs(a).max())


@pytest.mark.parametrize(
    ("architecture", "sizes", "published"),
    [
        ("gpt", {"layers": 70, "hidden": 14336, "heads": 112, "vocab": 250880, **BLOOM}, 176_247_271_424),
        ("gpt", {"layers": 30, "hidden": 4096, "heads": 32, "vocab": 250880, **BLOOM}, 7_069_016_064),
        (
            "gpt",
            {"layers": 32, "hidden": 4096, "heads": 32, "vocab": 50432, "positions": "alibi", "bias": False},
            6_649_286_656,
        ),
        ("gpt", {"layers": 48, "hidden": 7168, "heads": 56, "vocab": 50368, "seq": 2048}, 29_975_214_080),
        ("llama", {"layers": 28, "kv_heads": 2, "ffn": 13696, "vocab": 65024, "qkv_bias": True}, 6_243_584_000),
        (
            "llama",
            {"layers": 28, "hidden": 3584, "heads": 28, "kv_heads": 4, "ffn": 18944, "vocab": 152064, "qkv_bias": True},
            7_615_616_512,
        ),
        (
            "llama",
            {
                **{"layers": 24, "hidden": 896, "heads": 14, "kv_heads": 2, "ffn": 4864, "vocab": 151936},
                **{"qkv_bias": True, "tied": True},
            },
            494_032_768,
        ),
        (
            "moe",
            {
                **{"layers": 48, "hidden": 2048, "heads": 32, "kv_heads": 4, "head_dim": 128, "qk_norm": True},
                **{"ffn": 768, "experts": 128, "top_k": 8, "vocab": 151936, "dispatch": "sorted"},
            },
            30_532_122_624,
        ),
        ("deepseek", {}, 235_741_434_880),
        (
            "deepseek",
            {
                **{"layers": 27, "hidden": 2048, "heads": 16, "q_lora": 0, "ffn": 10944},
                **{"experts": 64, "expert_ffn": 1408},
            },
            15_706_484_224,
        ),
    ],
    ids=["bloom", "bloom-7b1", "mpt-7b", "mpt-30b", "glm3", "qwen2-7b", "qwen2-0.5b", "qwen3-30b", "v2", "v2-lite"],
)
def test_families_have_the_published_number_of_parameters(architecture: str, sizes: Options, published: int) -> None:
    """MPT-30B as llm-foundry's benchmark has it: learned positions and biases."""
    assert weights(build(architecture, sizes)) == published


def test_sizes_published_in_billions() -> None:
    """Nemotron-4: 15.6 billion and 341 billion (NVIDIA 2024).  DeepSeek-V3: 671 billion without the module that
    predicts a further token; one bias for each expert and layer, which corrects the balance, is left out."""
    fifteen = {"layers": 32, "hidden": 6144, "heads": 48, "ffn": 24576, "vocab": 256000, **NEMOTRON}
    assert round(weights(build("gpt", fifteen)) / 1e9, 1) == 15.6
    whole = {"layers": 96, "hidden": 18432, "heads": 96, "ffn": 73728, "vocab": 256000, **NEMOTRON}
    assert round(weights(build("gpt", whole)) / 1e9) == 341
    assert weights(build("deepseek", V3)) == 671_026_419_200 - 58 * 256


@pytest.mark.parametrize(
    ("architecture", "sizes"),
    [
        ("gpt", TINY),
        ("gpt", {**TINY, "kv_heads": 2}),
        ("gpt", {**TINY, "heads": 3, "hidden": 24, **BLOOM}),
        ("gpt", {**TINY, "kv_heads": 2, "positions": "alibi", "bias": False}),
        ("gpt", {**TINY, **NEMOTRON, "kv_heads": 2, "norm": "rms"}),
        ("gpt", {**TINY, "activation": "swiglu", "positions": "none"}),
        ("llama", LLAMA),
        ("llama", {**LLAMA, "kv_heads": 2, "qkv_bias": True, "tied": True}),
        ("llama", {**LLAMA, "kv_heads": 1, "head_dim": 6, "qk_norm": True}),
        ("moe", MOE),
        ("deepseek", DEEPSEEK),
        ("deepseek", {**DEEPSEEK, "q_lora": 0, "scores": "sigmoid", "dispatch": "sorted"}),
    ],
)
def test_fused_attention_computes_what_its_operators_compute(architecture: str, sizes: Options) -> None:
    fused = build(architecture, {**sizes, "attention": "fused"})
    cores = [n for n in fused.graph.node if n.op_type == "Attention"]
    assert len(cores) == sizes["layers"]
    assert (fused.opset_import[0].version, fused.ir_version) == (23, 11)
    assert "GreaterOrEqual" not in {n.op_type for n in fused.graph.node}  # no mask
    assert close(computed(architecture, {**sizes, "attention": "fused"}), computed(architecture, sizes))


def test_the_operator_set_is_raised_for_fused_attention_alone() -> None:
    for architecture, sizes in (("gpt", TINY), ("llama", LLAMA), ("moe", MOE), ("deepseek", DEEPSEEK)):
        model = build(architecture, sizes)
        assert (model.opset_import[0].version, model.ir_version) == (20, 10)


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_both_dispatches_agree_at_every_capacity(data: st.DataObject) -> None:
    """Who is left out where slots are too few is the same, so the outputs are too."""
    experts = data.draw(st.integers(1, 6), "experts")
    sizes = {
        **MOE,
        **{"layers": 1, "seq": data.draw(st.integers(1, 9), "seq"), "experts": experts},
        **{"top_k": data.draw(st.integers(1, experts), "top_k"), "slots": data.draw(st.integers(1, 9), "slots")},
        "shared_experts": data.draw(st.integers(0, 1), "shared_experts"),
    }
    seed = data.draw(st.integers(0, 99), "seed")
    assert close(computed("moe", sizes, seed), computed("moe", {**sizes, "dispatch": "sorted"}, seed))


def test_an_even_load_fills_every_slot() -> None:
    """Every expert for every token: a load that is even whatever the router says, at a capacity without room."""
    sizes = {**MOE, "top_k": 4, "dispatch": "sorted"}
    assert Routing(seq=8, hidden=32, inner=16, experts=4, top_k=4, dispatch="sorted").capacity == 8
    assert close(computed("moe", sizes), computed("moe", {**sizes, "dispatch": "capacity"}))
    assert MoeSizes(seq=4096, experts=256, top_k=8, dispatch="sorted").capacity == 128
    assert MoeSizes(seq=100, experts=8, top_k=3, dispatch="sorted").capacity == 38  # 37.5 rounded up


def test_what_sorted_dispatch_makes_grows_with_the_sequence_not_its_square() -> None:
    def elements(seq: int, dispatch: str) -> int:
        model = build("moe", {**MOE, "seq": seq, "dispatch": dispatch, "attention": "fused"})
        return sum(t.elements for t in import_bytes(model.SerializeToString()).tensors.values() if t.shape is not None)

    fixed = weights(build("moe", MOE))
    for dispatch, low, high in (("sorted", 1.99, 2.01), ("capacity", 3, 4)):
        growth = (elements(2048, dispatch) - fixed) / (elements(1024, dispatch) - fixed)
        assert low < growth < high


@pytest.mark.parametrize(
    ("architecture", "sizes"),
    [
        ("gpt", {**TINY, "attention": "fused", "kv_heads": 2, **BLOOM}),
        ("gpt", {**TINY, **NEMOTRON, "kv_heads": 2}),
        ("llama", {**LLAMA, "attention": "fused", "kv_heads": 2, "qkv_bias": True, "tied": True}),
        ("moe", {**MOE, "attention": "fused", "dispatch": "sorted"}),
        ("deepseek", {**DEEPSEEK, "attention": "fused", "dispatch": "sorted"}),
    ],
    ids=["bloom", "nemotron", "qwen", "moe", "deepseek"],
)
class TestVariants:
    def test_it_is_shaped_and_checked_by_onnx(self, architecture: str, sizes: Options) -> None:
        model = build(architecture, sizes)
        inferred = onnx.shape_inference.infer_shapes(model, check_type=True, strict_mode=True, data_prop=True)
        shapes = {v.name: v.type.tensor_type.shape for v in [*inferred.graph.value_info, *inferred.graph.output]}
        results = [o for node in model.graph.node for o in node.output]
        assert all(d.HasField("dim_value") for o in results for d in shapes[o].dim)

    def test_every_weight_is_a_parameter_and_a_batch_can_be_bound(self, architecture: str, sizes: Options) -> None:
        model = build(architecture, sizes)
        graph = import_bytes(model.SerializeToString(), batch=24)
        whole = import_bytes(build(architecture, {**sizes, "batch": 24}).SerializeToString())
        assert [graph.tensors[op.name].shape for op in graph.ops] == [whole.tensors[op.name].shape for op in whole.ops]
        assert sum(t.elements for t in graph.parameters) == weights(model)

    def test_equal_sizes_give_equal_bytes_and_the_command_gives_them_again(
        self, architecture: str, sizes: Options, tmp_path: Path
    ) -> None:
        model = build(architecture, sizes)
        data = model.SerializeToString(deterministic=True)
        assert data == build(architecture, sizes).SerializeToString(deterministic=True)
        (command,) = (p.value for p in model.metadata_props if p.key == "built_with")
        out = tmp_path / "again.onnx"
        assert main([*command.split()[1:], "--out", str(out)]) == 0
        assert out.read_bytes() == data

    def test_it_is_planned_and_proved(
        self, architecture: str, sizes: Options, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        path = tmp_path / "model.onnx"
        path.write_bytes(build(architecture, sizes).SerializeToString())
        search = ["search", str(path), "--devices", "4", "--mesh", "2x2", "--hardware", "alpha-beta", "--json"]
        assert main([*search, "--out", str(tmp_path)]) == 0
        found = json.loads(capsys.readouterr().out)
        assert found["operators_replicated_for_want_of_a_rule"] == []
        if "dispatch" in sizes:
            assert found["collectives"]["all_to_all"]["count"] >= 2  # experts on ranks of their own
        assert main(["verify", found["plan"], str(path), "--json"]) == 0
        verdict = json.loads(capsys.readouterr().out)
        assert verdict["checked"] == ["forward", "gradients"]
        assert verdict["max_error"] < 1e-3


@pytest.mark.parametrize("heads", [1, 2, 4, 8, 12, 40, 112])
def test_slopes_of_alibi(heads: int) -> None:
    """Geometric for powers of two, with the first ratio 2^(−8/n); for other numbers distinct, in (0, 1)."""
    slopes = _slopes(heads)
    assert len(set(slopes)) == heads
    assert all(0 < s < 1 for s in slopes)
    power = 1 << (heads.bit_length() - 1)
    assert slopes[:power] == [2 ** (-8 * (i + 1) / power) for i in range(power)]


@pytest.mark.parametrize(
    ("architecture", "sizes", "says"),
    [
        ("gpt", {"activation": "relu"}, "--activation relu: expected gelu or squared_relu or swiglu"),
        ("gpt", {"attention": True}, "--attention True"),
        ("gpt", {"positions": "rotary", "context": 2048}, "--context 2048 with --positions rotary"),
        ("gpt", {"positions": "rotary", "hidden": 12, "heads": 4}, "odd width 3"),
        ("gpt", {"kv_heads": 5}, "--kv-heads 5"),
        ("gpt", {"bias": 3}, "--bias 3: expected true or false"),
        ("gpt", {"heads": "many"}, "--heads many: expected 1 to"),
        ("gpt", {"seq": None}, "--seq None"),
        ("llama", {"head_dim": 5}, "--head-dim 5"),
        ("moe", {"slots": 0}, "--slots 0"),
        ("moe", {"dispatch": "dense"}, "--dispatch dense: expected capacity or sorted"),
        ("deepseek", {"qk_rope": 3}, "--qk-rope 3"),
        ("deepseek", {"dense_layers": 61}, "--dense-layers 61 exceeds --layers 60"),
        ("deepseek", {"top_k": 200}, "--top-k 200 exceeds --experts 160"),
        ("deepseek", {"q_lora": -1}, "--q-lora -1: expected 0 to"),
        ("bert", {"positions": "rotary"}, "--positions: bert has no such size"),
    ],
)
def test_impossible_options_are_named(architecture: str, sizes: Options, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        build(architecture, sizes)


def test_commands_of_the_document_build_what_it_says(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [line.split(" | ") for line in DOCUMENT.read_text().splitlines() if line.startswith("| ") and "`" in line]
    assert len(rows) == 10
    for _, command, count in rows:
        assert main(["build", *command.strip("`").split(), "--out", str(tmp_path / "model.onnx")]) == 0
        assert f" {count.strip(' |')} weights" in capsys.readouterr().out
