"""The architectures that can be built, by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import onnx

from planner.builder.bert import BertSizes, build_bert
from planner.builder.deepseek import DeepseekSizes, build_deepseek
from planner.builder.gpt import GptSizes, build_gpt
from planner.builder.graph import GraphBuilder
from planner.builder.llama import LlamaSizes, build_llama
from planner.builder.mlp import MlpSizes, build_mlp
from planner.builder.moe import MoeSizes, build_moe
from planner.builder.resnet import ResnetSizes, build_resnet
from planner.builder.sizes import Sizes, flag
from planner.builder.vit import VitSizes, build_vit
from planner.errors import UsageError

__all__ = ["ARCHITECTURES", "Architecture", "build"]


@dataclass(frozen=True, slots=True)
class Architecture:
    """`sizes` is the class of its sizes, `add` puts the whole model into a builder."""

    line: str
    sizes: type[Sizes]
    add: Callable[[GraphBuilder, Any], None]


ARCHITECTURES: Mapping[str, Architecture] = {
    "bert": Architecture("encoder with a masked-language-model head", BertSizes, build_bert),
    "deepseek": Architecture("DeepSeek-V2 or V3 decoder with latent attention", DeepseekSizes, build_deepseek),
    "gpt": Architecture("GPT-2 or GPT-3 decoder, Bloom, MPT, Nemotron", GptSizes, build_gpt),
    "llama": Architecture("Llama decoder with grouped-query attention", LlamaSizes, build_llama),
    "mlp": Architecture("perceptron", MlpSizes, build_mlp),
    "moe": Architecture("Llama decoder with a mixture of experts", MoeSizes, build_moe),
    "resnet": Architecture("residual network", ResnetSizes, build_resnet),
    "vit": Architecture("vision transformer", VitSizes, build_vit),
}


def build(architecture: str, sizes: Mapping[str, int | bool | str | None] = MappingProxyType({})) -> onnx.ModelProto:
    """The model of that name, without weights; `sizes` are those that differ from the architecture's own.

    UsageError for a name or a size that does not exist, and for sizes that do not fit each other.
    """
    found = ARCHITECTURES.get(architecture)
    if found is None:
        raise UsageError(f"no architecture named {architecture!r}; there are {', '.join(ARCHITECTURES)}")
    known = found.sizes.__dataclass_fields__
    for name in sizes:
        if name not in known:
            raise UsageError(f"{flag(name)}: {architecture} has no such size; it has {', '.join(map(flag, known))}")
    chosen = found.sizes(**sizes)  # type: ignore[arg-type]  # names were checked, values are by the class itself
    g = GraphBuilder(architecture)
    found.add(g, chosen)
    return g.model({"built_with": f"planner build {chosen.command(architecture)}"})
