"""Models that published rows name: dimensions under one spelling, what a row leaves out derived or looked up by family.

A family is what all its sizes share: the architecture that `planner build` knows, its options, the vocabulary and the
rule for the feed-forward width.  `CONFIGURATIONS` holds whole configurations of models whose rows give no dimensions.
Both are facts about public models with their source beside them; nothing is keyed by data set or row.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

__all__ = ["CONFIGURATIONS", "FAMILIES", "Family", "Model", "UnknownModelError", "canonical_dimensions", "model_of"]

Size = int | bool | str

# Spellings of llm-foundry, Megatron-LM, NeMo, MindFormers, MindSpeed-LLM and SimuMax, hyphens read as underscores.
_SPELLINGS: Final[Mapping[str, str]] = {
    "hidden_size": "hidden",
    "num_layers": "layers",
    "layer_num": "layers",
    "num_heads": "heads",
    "num_attention_heads": "heads",
    "head_num": "heads",
    "n_kv_heads": "kv_heads",
    "num_query_groups": "kv_heads",
    "kv_head_num": "kv_heads",
    "intermediate_size": "ffn",
    "ffn_hidden_size": "ffn",
    "vocab_size": "vocab",
    "padded_vocab_size": "vocab",
    "num_experts": "experts",
    "expert_num": "experts",
    "topk": "top_k",
    "num_experts_chosen": "top_k",
    "moe_router_topk": "top_k",
    "moe_ffn_hidden_size": "expert_ffn",
}
_NUMBERS: Final = ("hidden", "layers", "heads", "kv_heads", "ffn", "vocab", "experts", "top_k", "expert_ffn")


class UnknownModelError(LookupError):
    """A row's model is of no known family, or a dimension neither stands in the row nor follows from the family."""


@dataclass(frozen=True, slots=True)
class Model:
    """Arguments of `planner.builder.build`; sizes leave out `batch` and `attention`, which a configuration decides."""

    architecture: str
    sizes: tuple[tuple[str, Size], ...]

    def size(self, name: str) -> int:
        return int(dict(self.sizes)[name])

    def with_(self, **changes: Size) -> Model:
        return Model(self.architecture, tuple(sorted({**dict(self.sizes), **changes}.items())))

    def flops_per_token(self, seq: int) -> float:
        """Floating-point operations that publishers count per token of a training step, attention not halved.

        Dense products cost six per weight (forward two, backward four), scores and mixing 12 · seq · hidden per layer:
        72 L h² (1 + s/6h + V/12Lh) for GPT (Narayanan et al. 2021, without recomputation) and the same sum with grouped
        keys and three feed-forward products for Llama (NVIDIA NeMo, utils/flops_formulas.py).
        """
        s = dict(self.sizes)
        hidden, heads, layers = int(s["hidden"]), int(s["heads"]), int(s["layers"])
        keys = int(s.get("kv_heads", heads)) / heads
        gated = self.architecture != "gpt" or s.get("activation") == "swiglu"
        experts = int(s.get("top_k", 1)) if self.architecture == "moe" else 1
        weights = 2 * hidden * hidden * (1 + keys) + (3 if gated else 2) * experts * hidden * int(s["ffn"])
        return layers * (6 * weights + 12 * seq * hidden) + 6 * hidden * int(s["vocab"])


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """Models whose normalised name begins with `pattern`.

    `ffn`: `four` times the hidden width, or Llama's two thirds of that, rounded up to a multiple.
    """

    pattern: str
    architecture: Literal["gpt", "llama", "moe", "deepseek"]
    source: str
    options: Mapping[str, Size] = field(default_factory=dict)
    vocab: int | None = None
    ffn: Literal["four", "llama"] = "llama"


FAMILIES: Final[tuple[Family, ...]] = (
    Family(
        pattern=r"mpt",
        architecture="gpt",
        source="mosaicml/llm-foundry scripts/train/benchmarking: learned positions, biases, tied output",
        vocab=50368,
        ffn="four",
    ),
    Family(
        pattern=r"bloom",
        architecture="gpt",
        source="BLOOM (2211.05100): ALiBi, embeddings normalised, tied output, vocabulary 250880",
        options={"positions": "alibi", "embedding_norm": True},
        vocab=250880,
        ffn="four",
    ),
    Family(
        pattern=r"nemotron(?!-?h|5|-3-)",  # not the hybrids with state-space layers
        architecture="gpt",
        source="Nemotron-4 340B technical report (2406.11704): squared ReLU, rotary positions, no bias, untied output",
        options={"activation": "squared_relu", "positions": "rotary", "bias": False, "untied": True},
        vocab=256000,
        ffn="four",
    ),
    Family(
        pattern=r"gpt-?oss",
        architecture="moe",
        source="huggingface.co/openai/gpt-oss-120b config.json: heads of 64, biases",
        options={"head_dim": 64, "qkv_bias": True},
        vocab=201088,
    ),
    Family(
        pattern=r"(pangu|gpt)",
        architecture="gpt",
        source="Megatron-LM GPT: GPT-2's vocabulary of 50257 padded to a multiple of 128 x 8",
        vocab=51200,
        ffn="four",
    ),
    Family(pattern=r"mixtral", architecture="moe", source="huggingface.co/mistralai/Mixtral-8x7B-v0.1", vocab=32000),
    Family(
        pattern=r"(deepseek-?v?[23](\.5)?(?![\d.]*b|\d)|kimi)",
        architecture="deepseek",
        source="DeepSeek-V2 (2405.04434), DeepSeek-V3 (2412.19437), Kimi K2 (2507.20534)",
    ),
    Family(pattern=r"deepseek", architecture="llama", source="DeepSeek LLM (2401.02954)", vocab=102400),
    Family(pattern=r"code-?llama", architecture="llama", source="huggingface.co/codellama/CodeLlama-34b", vocab=32000),
    Family(pattern=r"llama-?3", architecture="llama", source="The Llama 3 herd of models (2407.21783)", vocab=128256),
    Family(pattern=r"llama", architecture="llama", source="Llama (2302.13971), Llama 2 (2307.09288)", vocab=32000),
    Family(
        pattern=r"qwen-?3-\d+b-a\d+b",
        architecture="moe",
        source="Qwen3 technical report (2505.09388): heads of 128 normalised, 8 of 128 experts",
        options={"head_dim": 128, "qk_norm": True},
        vocab=151936,
    ),
    Family(
        pattern=r"qwen-?3",
        architecture="llama",
        source="Qwen3 technical report (2505.09388): no bias, heads of 128 normalised",
        options={"head_dim": 128, "qk_norm": True},
        vocab=151936,
    ),
    Family(
        pattern=r"qwen(-?(1\.5|2)(\.5)?)?-0\.5b",
        architecture="llama",
        source="huggingface.co/Qwen/Qwen1.5-0.5B: bias of query, key and value, tied output",
        options={"qkv_bias": True, "tied": True},
        vocab=151936,
    ),
    Family(
        pattern=r"qwen",
        architecture="llama",
        source="Qwen technical report (2309.16609): bias of query, key and value",
        options={"qkv_bias": True},
        vocab=151936,
    ),
    Family(
        pattern=r"(chat)?glm-?4",
        architecture="llama",
        source="huggingface.co/THUDM/glm-4-9b config.json",
        options={"qkv_bias": True},
        vocab=151552,
    ),
    Family(
        pattern=r"((chat)?glm-?[23]|codegeex-?2)",
        architecture="llama",
        source="huggingface.co/THUDM/chatglm3-6b config.json",
        options={"qkv_bias": True},
        vocab=65024,
    ),
    Family(
        pattern=r"baichuan-?2", architecture="llama", source="Baichuan 2 (2309.10305)", vocab=125696
    ),  # 13B has ALiBi in place of rotary positions: no weights, a bias inside the kernel
    Family(pattern=r"baichuan", architecture="llama", source="huggingface.co/baichuan-inc/Baichuan-13B", vocab=64000),
    Family(pattern=r"internlm-?2", architecture="llama", source="InternLM2 (2403.17297)", vocab=92544),
    Family(
        pattern=r"internlm",
        architecture="llama",
        source="huggingface.co/internlm/internlm-7b config.json: biases in attention",
        options={"qkv_bias": True},
        vocab=103168,
    ),
    Family(pattern=r"aquila", architecture="llama", source="huggingface.co/BAAI/Aquila2-34B config.json", vocab=100008),
    Family(pattern=r"yi-", architecture="llama", source="Yi (2403.04652)", vocab=64000),
    Family(pattern=r"mistral", architecture="llama", source="Mistral 7B (2310.06825)", vocab=32000),
    Family(
        pattern=r"gemma",
        architecture="llama",
        source="Gemma (2403.08295): heads of 256, gated layer, tied output",
        options={"head_dim": 256, "tied": True},
        vocab=256000,
    ),
    Family(pattern=r"telechat", architecture="llama", source="TeleChat (2401.03804)", vocab=160256),
    Family(pattern=r"skywork", architecture="llama", source="Skywork (2310.19341)", vocab=65519),
)

_MLA: Final[Mapping[str, Size]] = {"q_lora": 1536, "kv_lora": 512, "qk_nope": 128, "qk_rope": 64, "v_dim": 128}


def _dense(hidden: int, layers: int, heads: int, kv_heads: int, ffn: int, vocab: int) -> dict[str, Size]:
    return {"hidden": hidden, "layers": layers, "heads": heads, "kv_heads": kv_heads, "ffn": ffn, "vocab": vocab}


_GLM3 = _dense(4096, 28, 32, 2, 13696, 65024)
_V2: dict[str, Size] = {"hidden": 5120, "layers": 60, "heads": 128, "ffn": 12288, "vocab": 102400, **_MLA}
_V2 |= {"experts": 160, "shared_experts": 2, "expert_ffn": 1536, "top_k": 6, "dense_layers": 1}
_V3: dict[str, Size] = {"hidden": 7168, "layers": 61, "heads": 128, "ffn": 18432, "vocab": 129280, **_MLA}
_V3 |= {"experts": 256, "shared_experts": 1, "expert_ffn": 2048, "top_k": 8, "dense_layers": 3}
_V3["scores"] = "sigmoid"
_LITE = {**_V2, "hidden": 2048, "layers": 27, "heads": 16, "ffn": 10944, "experts": 64, "expert_ffn": 1408, "q_lora": 0}
_KIMI = {**_V3, "heads": 64, "vocab": 163840, "experts": 384, "dense_layers": 1}

# Normalised name (a prefix) -> sizes; files of SimuMax by their path, because its 405B has 16 key heads and not 8.
CONFIGURATIONS: Final[Mapping[str, Mapping[str, Size]]] = {
    "glm3-6b": _GLM3,
    "glm2-6b": _GLM3,
    "chatglm3-6b": _GLM3,
    "chatglm2-6b": _GLM3,
    "codegeex2-6b": _GLM3,
    "glm4-9b": _dense(4096, 40, 32, 2, 13696, 151552),
    "glm-4-9b": _dense(4096, 40, 32, 2, 13696, 151552),
    "llama-7b": _dense(4096, 32, 32, 32, 11008, 32000),
    "llama2-7b": _dense(4096, 32, 32, 32, 11008, 32000),
    "llama-13b": _dense(5120, 40, 40, 40, 13824, 32000),
    "llama2-13b": _dense(5120, 40, 40, 40, 13824, 32000),
    "llama2-70b": _dense(8192, 80, 64, 8, 28672, 32000),
    "llama3-8b": _dense(4096, 32, 32, 8, 14336, 128256),
    "llama3-70b": _dense(8192, 80, 64, 8, 28672, 128256),
    "llama3-405b": _dense(16384, 126, 128, 8, 53248, 128256),
    "llama3.1-8b": _dense(4096, 32, 32, 8, 14336, 128256),
    "llama3.1-70b": _dense(8192, 80, 64, 8, 28672, 128256),
    "llama3.1-405b": _dense(16384, 126, 128, 8, 53248, 128256),
    "aquila2-7b": _dense(4096, 32, 32, 32, 11008, 100008),
    "aquila2-34b": _dense(6144, 60, 48, 8, 24576, 100008),
    "yi-6b": _dense(4096, 32, 32, 4, 11008, 64000),
    "yi-34b": _dense(7168, 60, 56, 8, 20480, 64000),
    "mistral-7b": _dense(4096, 32, 32, 8, 14336, 32000),
    "internlm2-7b": _dense(4096, 32, 32, 8, 14336, 92544),
    "internlm2-20b": _dense(6144, 48, 48, 8, 16384, 92544),
    "mixtral-8x7b": {**_dense(4096, 32, 32, 8, 14336, 32000), "experts": 8, "top_k": 2},
    "mixtral-8x22b": {**_dense(6144, 56, 48, 8, 16384, 32768), "experts": 8, "top_k": 2},
    "gemma-2b": _dense(2048, 18, 8, 1, 16384, 256000),
    "gemma-7b": _dense(3072, 28, 16, 16, 24576, 256000),
    "gpt-oss-120b": {**_dense(2880, 36, 64, 8, 2880, 201088), "experts": 128, "top_k": 4},
    "qwen3-30b-a3b": {**_dense(2048, 48, 32, 4, 768, 151936), "experts": 128, "top_k": 8},
    "qwen3-235b-a22b": {**_dense(4096, 94, 64, 4, 1536, 151936), "experts": 128, "top_k": 8},
    "qwen3-32b": _dense(5120, 64, 64, 8, 25600, 151936),
    "deepseek2-236b": _V2,
    "deepseekv2": _V2,
    "deepseek-v2": _V2,
    "deepseek-v2-lite": _LITE,
    "deepseekv2-lite": _LITE,
    "deepseek2-lite": _LITE,
    "deepseek2.5-236b": _V2,
    "deepseekv3": _V3,
    "deepseek-v3": _V3,
    "deepseek3-671b": _V3,
    "kimi-k2": _KIMI,
    "kimi-1t": _KIMI,
    "moorethreads/simumax:configs/models/llama3-405b.json": _dense(16384, 128, 128, 16, 53248, 128256),
    # Its launcher makes one layer dense whatever the depth (simu_tools/megatron_scripts, MOE_LAYER_FREQ).
    "moorethreads/simumax:configs/models/deepseekv3.json": {**_V3, "dense_layers": 1, "scores": "softmax"},
}


def normalised(name: str) -> str:
    """`LLAMA3.1_405B` → `llama3.1-405b`."""
    return re.sub(r"[\s_]+", "-", name.strip().lower())


def family_of(name: str) -> Family:
    """UnknownModelError where no family's pattern begins the name."""
    known = normalised(name)
    for family in FAMILIES:
        if re.match(family.pattern, known):
            return family
    raise UnknownModelError(f"model {name!r} is of no family in planner/accuracy/models.py")


def configuration_of(name: str) -> Mapping[str, Size]:
    """The whole configuration whose key begins the name, the longest first; empty where there is none."""
    known = normalised(name)
    keys = [k for k in CONFIGURATIONS if known == k or re.match(re.escape(k) + r"(?![\w.])", known)]
    return CONFIGURATIONS[max(keys, key=len)] if keys else {}


def canonical_dimensions(dims: Mapping[str, Any]) -> dict[str, Any]:
    """A row's dimensions under this module's names; nulls left out."""
    out: dict[str, Any] = {}
    for key, value in dims.items():
        plain = key.replace("-", "_").lower()
        if value is not None:
            out[_SPELLINGS.get(plain, plain)] = value
    return out


def llama_ffn(hidden: int, multiple_of: int = 256, multiplier: float | None = None) -> int:
    """Width of Llama's gated layer: 8/3 hidden, times `multiplier`, up to a multiple (meta-llama/llama, model.py)."""
    width = int(2 * 4 * hidden / 3)
    if multiplier is not None:
        width = int(multiplier * width)
    return multiple_of * math.ceil(width / multiple_of)


def model_of(name: str, dims: Mapping[str, Any] | str | None, *, seq: int, vocab_multiple: int = 1) -> Model:
    """The model that a row names.

    Args:
        name: as published; a suffix `-<n>layers` says how many layers were run.
        dims: its dimensions in the row's own spelling, nulls allowed, or a reference to a configuration file.
        seq: tokens per sample.
        vocab_multiple: the vocabulary is padded up to a multiple of this.

    UnknownModelError naming what is not known.
    """
    family = family_of(name)
    reference = re.match(r"\S+:\S+\.json", dims) if isinstance(dims, str) else None
    if isinstance(dims, str) and reference is None:
        raise UnknownModelError(f"model {name!r}: dimensions refer to {dims!r}, expected REPOSITORY:PATH.json")
    bare = re.sub(r"-\d+-?layers$", "", normalised(name))
    known = dict((reference and configuration_of(reference[0])) or configuration_of(bare))
    given = canonical_dimensions(dims) if isinstance(dims, Mapping) else {}
    sizes: dict[str, Size] = {**known, **{k: int(v) for k, v in given.items() if k in _NUMBERS}}
    if cut := re.search(r"-(\d+)-?layers$", normalised(name)):
        sizes["layers"] = int(cut[1])
    sizes.setdefault("vocab", family.vocab or 0)
    if not sizes["vocab"]:
        del sizes["vocab"]
    if "ffn" not in sizes and "hidden" in sizes:
        hidden = int(sizes["hidden"])
        multiple, multiplier = int(given.get("multiple_of", 256)), given.get("ffn_dim_multiplier")
        sizes["ffn"] = 4 * hidden if family.ffn == "four" else llama_ffn(hidden, multiple, multiplier)
    needed = ["hidden", "layers", "heads", "ffn", "vocab"]
    needed += ["experts", "top_k"] if family.architecture in ("moe", "deepseek") else []
    needed += ["expert_ffn", "shared_experts"] if family.architecture == "deepseek" else []
    if lacking := [n for n in needed if n not in sizes]:
        raise UnknownModelError(f"model {name!r}: {', '.join(lacking)} neither in the row nor known of its family")
    if family.architecture == "deepseek":
        sizes.pop("kv_heads", None)  # latent attention has none
    else:
        sizes.setdefault("kv_heads", sizes["heads"])
    for routed in ("experts", "top_k", "expert_ffn"):
        if family.architecture in ("gpt", "llama"):
            sizes.pop(routed, None)
    sizes |= family.options
    if family.architecture in ("moe", "deepseek"):
        sizes["dispatch"] = "sorted"  # tokens are permuted, not multiplied by 0/1 tensors, in every framework here
    if family.architecture == "deepseek":
        sizes["dense_layers"] = min(int(sizes["dense_layers"]), int(sizes["layers"]))
    vocab = int(sizes["vocab"])
    sizes |= {"seq": seq, "vocab": vocab_multiple * math.ceil(vocab / vocab_multiple)}
    return Model(family.architecture, tuple(sorted(sizes.items())))
