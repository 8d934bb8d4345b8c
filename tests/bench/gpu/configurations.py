"""The configurations that `steps` measures, what matters most first.

Names say what differs from a model's plain run: eager mode, weights in single precision beside products in bf16
(autocast), flash attention, the fused AdamW, nothing computed again.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

__all__ = ["CONFIGURATIONS", "MODELS", "MORE", "Config", "tiny"]

_GPT = {"vocab": 50257, "seq": 1024}
# Name → architecture and sizes as `planner build` takes them.
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt2": ("gpt", {"layers": 12, "hidden": 768, "heads": 12, **_GPT}),
    "gpt2-xl": ("gpt", {"layers": 48, "hidden": 1600, "heads": 25, **_GPT}),
    "llama-1b": (
        "llama",
        {"layers": 16, "hidden": 2048, "heads": 32, "kv_heads": 8, "ffn": 8192, "vocab": 128256, "seq": 2048},
    ),
    "moe": (
        "moe",
        {
            "layers": 8, "hidden": 1024, "heads": 16, "kv_heads": 8, "ffn": 3584, "experts": 8, "top_k": 2,
            "vocab": 32000, "seq": 1024,
        },
    ),
    "vit-l": ("vit", {"layers": 24, "hidden": 1024, "heads": 16, "image": 224, "patch": 16, "classes": 1000}),
    "resnet50": ("resnet", {"layers": 50, "hidden": 64, "image": 224, "classes": 1000}),
    # Models of `MORE` alone.
    "gpt2-medium": ("gpt", {"layers": 24, "hidden": 1024, "heads": 16, **_GPT, "vocab": 50304}),
    "llama-3b": (
        "llama",
        {"layers": 28, "hidden": 3072, "heads": 24, "kv_heads": 8, "ffn": 8192, "vocab": 128256, "seq": 2048},
    ),
    "llama-wide": (
        "llama",
        {"layers": 6, "hidden": 4096, "heads": 32, "kv_heads": 8, "ffn": 14336, "vocab": 32000, "seq": 4096},
    ),
    "vit-b": ("vit", {"layers": 12, "hidden": 768, "heads": 12, "image": 224, "patch": 16, "classes": 1000}),
}  # fmt: skip


@dataclass(frozen=True)
class Config:
    """Attributes:
    precision: `amp` (weights in single precision, products in bf16), `bf16` (all of it) or `tf32`.
    sizes: those that differ from the model's.
    """

    model: str
    micro_batch: int
    accumulation: int = 1
    recompute: str = "none"
    attention: str = "flash"
    precision: str = "amp"
    optimizer: str = "adamw-fused"
    compiled: bool = False
    experts: str = "loop"
    sizes: tuple[tuple[str, int], ...] = ()

    @property
    def name(self) -> str:
        said = [self.model, f"mb{self.micro_batch}"]
        said += [f"x{self.accumulation}"] if self.accumulation > 1 else []
        plain = Config(self.model, 1)
        for field in ("recompute", "attention", "precision", "optimizer", "experts"):
            said += [getattr(self, field)] if getattr(self, field) != getattr(plain, field) else []
        said += [f"{k}={v}" for k, v in self.sizes]
        return " ".join([*said, "compiled"] if self.compiled else said)


def _all() -> Iterator[Config]:
    gpt, xl, llama = Config("gpt2", 8), Config("gpt2-xl", 4), Config("llama-1b", 4)
    moe, vit, resnet = Config("moe", 8), Config("vit-l", 64), Config("resnet50", 128, optimizer="sgd-fused")
    # One of each, then what is compiled of the two that matter most.
    yield gpt
    yield llama
    yield xl
    yield vit
    yield resnet
    yield moe
    yield replace(gpt, compiled=True)
    yield replace(llama, compiled=True)
    # Sixteen samples of GPT-2 in all ways, so that they compete.
    for micro, accumulation in ((16, 1), (8, 2), (4, 4)):
        yield replace(gpt, micro_batch=micro, accumulation=accumulation)
        yield replace(gpt, micro_batch=micro, accumulation=accumulation, recompute="full")
    yield replace(gpt, micro_batch=16, attention="unfused")
    yield replace(gpt, micro_batch=16, attention="unfused", recompute="selective")
    yield replace(gpt, micro_batch=16, attention="cudnn")
    yield replace(gpt, micro_batch=16, precision="bf16")
    yield replace(gpt, micro_batch=16, precision="tf32", attention="efficient")
    # Eight samples of the 1B Llama.
    yield replace(llama, micro_batch=8)
    yield replace(llama, micro_batch=4, accumulation=2)
    yield replace(llama, micro_batch=2, accumulation=4)
    yield replace(llama, micro_batch=8, recompute="full")
    yield replace(llama, micro_batch=4, accumulation=2, recompute="full")
    yield replace(llama, micro_batch=4, precision="bf16")
    yield replace(llama, micro_batch=4, attention="cudnn")
    yield replace(llama, micro_batch=4, attention="unfused")
    yield replace(llama, micro_batch=4, attention="unfused", recompute="selective")
    # Eight samples of GPT-2 XL.
    yield replace(xl, micro_batch=8)
    yield replace(xl, micro_batch=4, accumulation=2)
    yield replace(xl, micro_batch=2, accumulation=4)
    yield replace(xl, micro_batch=8, recompute="full")
    yield replace(xl, micro_batch=4, accumulation=2, recompute="full")
    yield replace(xl, micro_batch=4, precision="bf16")
    yield replace(xl, micro_batch=4, attention="unfused")
    yield replace(xl, micro_batch=4, attention="unfused", recompute="selective")
    yield replace(xl, compiled=True)
    # Images.
    yield replace(vit, recompute="full")
    yield replace(vit, micro_batch=32, accumulation=2)
    yield replace(vit, attention="unfused")
    yield replace(vit, precision="bf16")
    yield replace(vit, compiled=True)
    yield replace(resnet, micro_batch=64, accumulation=2)
    yield replace(resnet, recompute="full")
    yield replace(resnet, precision="tf32")
    # Experts.
    yield replace(moe, experts="grouped", precision="bf16")
    yield replace(moe, precision="bf16")
    yield replace(moe, micro_batch=4, accumulation=2)
    yield replace(moe, recompute="full")
    yield replace(moe, micro_batch=16)
    # Long samples, and what does not fit.
    yield replace(llama, micro_batch=2, sizes=(("seq", 4096),))
    yield replace(llama, micro_batch=1, sizes=(("seq", 8192),))
    yield replace(llama, micro_batch=1, sizes=(("seq", 16384),), recompute="full")
    yield replace(xl, micro_batch=16)
    yield replace(llama, micro_batch=16, recompute="full")
    # The rest of GPT-2.
    yield replace(gpt, micro_batch=16, compiled=True)
    yield replace(gpt, micro_batch=16, precision="bf16", compiled=True)
    yield replace(gpt, optimizer="adamw-foreach")
    yield replace(gpt, optimizer="sgd-fused")
    yield replace(gpt, sizes=(("vocab", 50304),))
    for micro in (1, 2, 4, 32, 64):
        yield replace(gpt, micro_batch=micro)
    yield replace(gpt, accumulation=4)
    yield replace(gpt, attention="cudnn")
    yield replace(llama, precision="bf16", compiled=True)
    yield replace(xl, micro_batch=1)
    yield replace(xl, optimizer="sgd-fused")
    yield replace(vit, micro_batch=128)
    yield replace(resnet, micro_batch=256)
    yield replace(resnet, micro_batch=32)
    yield replace(resnet, compiled=True)  # four stages, each compiled by itself


CONFIGURATIONS: tuple[Config, ...] = tuple(_all())


def _more() -> Iterator[Config]:
    gpt = Config("gpt2", 16, sizes=(("vocab", 50304),))
    xl = Config("gpt2-xl", 4, sizes=(("vocab", 50304),))
    medium, wide = Config("gpt2-medium", 8), Config("llama-wide", 1)
    yield gpt
    yield medium
    yield Config("llama-3b", 2)
    yield Config("vit-b", 128)
    yield wide
    yield xl
    yield replace(gpt, recompute="full")
    yield replace(gpt, micro_batch=8, accumulation=2)
    yield replace(gpt, micro_batch=4, accumulation=4)
    yield replace(gpt, attention="unfused")
    yield replace(gpt, attention="unfused", recompute="selective")
    yield replace(gpt, precision="bf16")
    yield replace(gpt, precision="tf32", attention="efficient")
    yield replace(gpt, compiled=True)
    yield replace(medium, recompute="full")
    yield replace(medium, attention="cudnn")
    yield replace(medium, micro_batch=16)
    yield replace(medium, precision="bf16")
    yield Config("llama-3b", 4)
    yield Config("llama-3b", 4, recompute="full")
    yield replace(wide, micro_batch=2)
    yield replace(wide, micro_batch=2, recompute="full")
    yield replace(wide, attention="cudnn")
    yield Config("vit-b", 256)
    yield Config("vit-b", 128, precision="bf16")
    yield replace(xl, micro_batch=8)
    yield replace(medium, compiled=True)
    yield replace(gpt, sizes=(("vocab", 50258),))
    yield replace(gpt, sizes=(("vocab", 50260),))
    yield replace(gpt, sizes=(("vocab", 50264),))


MORE: tuple[Config, ...] = tuple(_more())
"""What a second look at the same device measures: a vocabulary that is a multiple of eight, and models of other sizes,
which nothing is fitted to."""


def tiny(config: Config) -> tuple[Config, dict[str, Any]]:
    """The same on a model of a few thousand weights, for a trial on a CPU."""
    small = {"layers": 2, "hidden": 32, "heads": 4, "kv_heads": 2, "ffn": 64, "vocab": 128, "seq": 16, "image": 32}
    small |= {"classes": 8, "patch": 16, "experts": 4, "top_k": 2}
    sizes = {k: small[k] for k in MODELS[config.model][1] | dict(config.sizes)}
    if config.model == "resnet50":
        sizes |= {"layers": 50, "hidden": 8}
    return replace(config, micro_batch=min(config.micro_batch, 2)), sizes
