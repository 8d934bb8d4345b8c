"""The architectures by name, each with the sizes it is known by."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import onnx

from planner.builder.convolutions import mlp, resnet
from planner.builder.sizes import Sizes
from planner.builder.transformers import bert, gpt, llama, moe, vit
from planner.errors import UsageError

__all__ = ["ARCHITECTURES", "build"]

# Name → maker, and the sizes of a well-known member (GPT-2 small, Llama 2 7B, ResNet-50, BERT base, ViT-B/16).
ARCHITECTURES: Mapping[str, tuple[Callable[[Sizes], onnx.ModelProto], Mapping[str, int]]] = {
    "gpt": (gpt, {"layers": 12, "hidden": 768, "heads": 12, "vocab": 50257, "seq": 1024}),
    "llama": (llama, {"layers": 32, "hidden": 4096, "heads": 32, "ffn": 11008, "vocab": 32000, "seq": 2048}),
    "moe": (moe, {"layers": 8, "hidden": 1024, "heads": 16, "vocab": 32000, "seq": 512, "experts": 8, "top_k": 2}),
    "resnet": (resnet, {"layers": 50, "hidden": 64, "heads": 1}),
    "bert": (bert, {"layers": 12, "hidden": 768, "heads": 12, "vocab": 30522, "seq": 512}),
    "vit": (vit, {"layers": 12, "hidden": 768, "heads": 12}),
    "mlp": (mlp, {"layers": 4, "hidden": 1024, "heads": 1}),
}


def build(architecture: str, sizes: Mapping[str, int | bool]) -> onnx.ModelProto:
    """The model; `sizes` are fields of `Sizes` that differ from the architecture's own."""
    if architecture not in ARCHITECTURES:
        raise UsageError(f"architecture {architecture!r}: expected one of {', '.join(ARCHITECTURES)}")
    make, defaults = ARCHITECTURES[architecture]
    return make(Sizes(**{**defaults, **sizes}))  # type: ignore[arg-type]  # values are checked by the fields
