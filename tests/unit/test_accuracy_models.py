"""Models that published rows name, against figures that their publishers state."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.accuracy.models import (
    CONFIGURATIONS,
    FAMILIES,
    UnknownModelError,
    canonical_dimensions,
    llama_ffn,
    model_of,
)
from planner.builder import ARCHITECTURES, build


def weights(name: str, dims: Mapping[str, Any] | str | None, seq: int = 2048) -> int:
    model = model_of(name, dims, seq=seq)
    built = build(model.architecture, dict(model.sizes) | {"batch": 1})
    return sum(math.prod(t.dims) for t in built.graph.initializer if t.external_data)


MPT = {"hidden": 7168, "layers": 48, "heads": 56, "ffn": 28672, "vocab": 50368, "kv_heads": 56}


@pytest.mark.parametrize(
    ("name", "dims", "stated"),
    [
        # Exact counts: mosaicml/llm-foundry benchmarking README; Llama 3 model card as torchtitan prints it.
        ("mpt-30b", MPT, 29_975_214_080),
        ("llama3.1-8b", None, 8_030_261_248),
        ("LLAMA3.1_405B", None, 405_853_388_800),
        ("llama2_7b", {"hidden_size": 4096, "num_layers": 32, "num_heads": 32, "multiple_of": 256}, 6_738_415_616),
        ("glm3_6b_32k", {"hidden_size": 4096, "num_layers": 28, "num_heads": None}, 6_243_584_000),
        ("Mixtral-8x7B", None, 46_702_792_704),
        ("deepseekv2", None, 235_741_434_880),
    ],
)
def test_parameters_are_those_stated_exactly(name: str, dims: Mapping[str, Any] | None, stated: int) -> None:
    assert weights(name, dims) == stated


@pytest.mark.parametrize(
    ("name", "dims", "billions"),
    [
        ("gpt2-1B", {"hidden": 1920, "layers": 24, "heads": 15, "vocab": 51200}, 1.16),  # Megatron-LM 2020
        ("gpt-18B", {"hidden": 6144, "layers": 40, "heads": 48, "vocab": 51200}, 18.4),  # 2104.04473 table 1
        ("gpt-1T", {"hidden": 25600, "layers": 128, "heads": 160, "vocab": 51200}, 1008.0),
        ("bloom-7b1", {"num-layers": 30, "hidden-size": 4096, "num-attention-heads": 32}, 7.07),
        ("Nemotron-340B", {"hidden": 18432, "layers": 96, "heads": 96, "kv_heads": 8}, 341.0),
        ("deepseek-v3", None, 671.0),
        ("aquila2-34b", None, 33.9),
        ("yi-34b", None, 34.4),
        ("gemma-7b", None, 8.54),
        ("GPT_OSS_120B", None, 116.8),
        ("Qwen3_30B_a3B", None, 30.5),
        ("Qwen3_235B_a22B", None, 235.0),
        ("qwen3-32b", None, 32.8),
        ("kimi-k2", None, 1026.0),
    ],
)
def test_parameters_are_those_stated_within_rounding(
    name: str, dims: Mapping[str, Any] | None, billions: float
) -> None:
    assert weights(name, dims) / 1e9 == pytest.approx(billions, rel=0.015)


@pytest.mark.parametrize(
    ("hidden", "multiple", "multiplier", "width"),
    [(4096, 256, None, 11008), (5120, 256, None, 13824), (8192, 256, None, 22016), (8192, 4096, 1.3, 28672)],
)
def test_width_of_llamas_feed_forward_layer(hidden: int, multiple: int, multiplier: float | None, width: int) -> None:
    assert llama_ffn(hidden, multiple, multiplier) == width


def test_spellings_of_one_dimension_are_one() -> None:
    for spelling in ("hidden", "hidden_size", "hidden-size"):
        assert canonical_dimensions({spelling: 64, "n_kv_heads": None}) == {"hidden": 64}


def test_layers_in_the_name_override_the_file() -> None:
    reference = "MooreThreads/SimuMax:configs/models/llama3-405b.json with layer_num overridden"
    model = model_of("llama3-405b-4layers", reference, seq=4096)
    assert model.size("layers") == 4
    assert model.size("kv_heads") == 16  # the file's, not the published model's
    assert model_of("llama3-405b", None, seq=4096).size("kv_heads") == 8


def test_a_dense_model_is_no_deepseek_v3_for_its_size() -> None:
    dims = {"hidden_size": 7168, "num_layers": 62, "num_heads": 56, "n_kv_heads": 8, "intermediate_size": 19200}
    assert model_of("deepseek-33b", dims, seq=4096).architecture == "llama"
    assert model_of("deepseek2-236b", None, seq=4096).architecture == "deepseek"


@pytest.mark.parametrize("name", ["Nemotron-H-56B", "nemotronh_47b", "Nemotron_3_Nano", "bert-large", "vit", "t5-3b"])
def test_models_that_cannot_be_built_are_unknown(name: str) -> None:
    with pytest.raises(UnknownModelError, match="of no family"):
        model_of(name, {"hidden": 1024, "layers": 2, "heads": 8}, seq=64)


def test_what_is_not_known_is_named() -> None:
    with pytest.raises(UnknownModelError, match="resnet50"):
        model_of("resnet50", {"hidden": 64}, seq=1)
    with pytest.raises(UnknownModelError, match=r"'llama-90b': hidden, layers, heads"):
        model_of("llama-90b", {"vocab": 32000}, seq=1)
    with pytest.raises(UnknownModelError, match="somewhere"):
        model_of("llama-7b", "somewhere", seq=1)


def test_sizes_are_the_builders() -> None:
    """A misspelt option would fail when a row first needs it."""
    for family in FAMILIES:
        assert family.options.keys() <= ARCHITECTURES[family.architecture].sizes.__dataclass_fields__.keys()
    for name in CONFIGURATIONS:
        bare = name.rpartition("/")[2].removesuffix(".json")
        model = model_of(bare, name if ":" in name else None, seq=256)
        sizes = {**dict(model.sizes), "attention": "fused", "batch": 1}
        ARCHITECTURES[model.architecture].sizes(**sizes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "seq", "tokens_per_s", "teraflops"),
    # NVIDIA/NeMo docs/source/performance/performance_summary.md, both figures of one row.
    [("LLAMA2-13B", 4096, 8646.0, 754.0), ("LLAMA3-8B", 8192, 12036.0, 697.0), ("LLAMA3-70B", 8192, 1524.0, 734.0)],
)
def test_operations_counted_per_token_are_the_publishers(
    name: str, seq: int, tokens_per_s: float, teraflops: float
) -> None:
    counted = model_of(name, None, seq=seq).flops_per_token(seq) * tokens_per_s / 1e12
    assert counted == pytest.approx(teraflops, rel=0.01)


@given(st.sampled_from(sorted(n for n in CONFIGURATIONS if ":" not in n)), st.integers(1, 2048))
def test_padding_the_vocabulary_is_the_least_multiple(name: str, multiple: int) -> None:
    plain = model_of(name, None, seq=64).size("vocab")
    padded = model_of(name, None, seq=64, vocab_multiple=multiple).size("vocab")
    assert padded % multiple == 0
    assert 0 <= padded - plain < multiple
