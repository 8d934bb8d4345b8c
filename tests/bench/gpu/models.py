"""Models as their papers have them, in plain PyTorch: GPT-2, Llama, a mixture of experts, ViT and ResNet-50.

No dropout.  `Choices` says how attention, recomputation, experts and compilation go about; sizes are those that
`planner build` takes, so that one dictionary describes both.
"""

# mypy: allow-subclassing-any

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

__all__ = ["Choices", "build", "compile_blocks"]


@dataclass(frozen=True)
class Choices:
    """Attributes:
    attention: `unfused` (two products and a softmax), or the backend that PyTorch's attention is told to take.
    recompute: `none`, `selective` (the core of attention) or `full` (every block).
    experts: `loop` over the experts, whose counts the host waits for, or `grouped`, one kernel for all.
    """

    attention: str = "flash"
    recompute: str = "none"
    experts: str = "loop"


class Attention(nn.Module):
    """One product for queries, keys and values, with or without rotary positions."""

    def __init__(
        self, hidden: int, heads: int, keys: int, choices: Choices, *, bias: bool, causal: bool, rotary: bool = False
    ) -> None:
        super().__init__()
        self.heads, self.keys, self.depth = heads, keys, hidden // heads
        self.causal, self.rotary, self.choices = causal, rotary, choices
        self.qkv = nn.Linear(hidden, (heads + 2 * keys) * self.depth, bias=bias)
        self.out = nn.Linear(hidden, hidden, bias=bias)

    def forward(self, x: Tensor, turn: tuple[Tensor, Tensor] | None = None) -> Tensor:
        b, s, h = x.shape
        sizes = [n * self.depth for n in (self.heads, self.keys, self.keys)]
        q, k, v = (t.view(b, s, -1, self.depth).transpose(1, 2) for t in self.qkv(x).split(sizes, dim=-1))
        if self.rotary and turn is not None:
            q, k = _rotated(q, *turn), _rotated(k, *turn)
        if self.choices.recompute == "selective":
            y: Any = checkpoint(self.core, q, k, v, use_reentrant=False)
        else:
            y = self.core(q, k, v)
        found: Tensor = self.out(y.transpose(1, 2).reshape(b, s, h))
        return found

    def core(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        grouped = self.keys != self.heads
        if self.choices.attention != "unfused":
            return functional.scaled_dot_product_attention(q, k, v, is_causal=self.causal, enable_gqa=grouped)
        if grouped:
            k, v = (t.repeat_interleave(self.heads // self.keys, dim=1) for t in (k, v))
        scores = q @ k.transpose(-2, -1) * self.depth**-0.5
        if self.causal:
            above = torch.ones(q.shape[-2], q.shape[-2], dtype=torch.bool, device=q.device).triu(1)
            scores = scores.masked_fill(above, float("-inf"))
        return torch.softmax(scores, dim=-1).to(v.dtype) @ v


def _rotated(x: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
    first, second = x.chunk(2, dim=-1)
    turned = torch.cat((-second, first), dim=-1)
    return (x * cosines + turned * sines).to(x.dtype)


class RMSNorm(nn.Module):
    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(hidden))

    def forward(self, x: Tensor) -> Tensor:
        return functional.rms_norm(x, (x.shape[-1],), self.weight, 1e-5)


class FeedForward(nn.Module):
    def __init__(self, hidden: int, inner: int) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(hidden, inner), nn.Linear(inner, hidden)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.down(functional.gelu(self.up(x), approximate="tanh"))
        return found


class Gated(nn.Module):
    def __init__(self, hidden: int, inner: int) -> None:
        super().__init__()
        self.gate, self.up = nn.Linear(hidden, inner, bias=False), nn.Linear(hidden, inner, bias=False)
        self.down = nn.Linear(inner, hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.down(functional.silu(self.gate(x)) * self.up(x))
        return found


class Experts(nn.Module):
    """Every token to its best `top_k` experts; tokens are sorted by expert, and none is dropped."""

    def __init__(self, hidden: int, inner: int, experts: int, top_k: int, how: str) -> None:
        super().__init__()
        self.top_k, self.how, self.count = top_k, how, experts
        self.router = nn.Linear(hidden, experts, bias=False)
        self.gate = nn.Parameter(torch.randn(experts, hidden, inner) * hidden**-0.5)
        self.up = nn.Parameter(torch.randn(experts, hidden, inner) * hidden**-0.5)
        self.down = nn.Parameter(torch.randn(experts, inner, hidden) * inner**-0.5)

    def forward(self, x: Tensor) -> Tensor:
        shape = x.shape
        x = x.reshape(-1, shape[-1])
        weights, chosen = torch.softmax(self.router(x).float(), dim=-1).topk(self.top_k, dim=-1)
        weights = weights / weights.sum(-1, keepdim=True)
        order = chosen.reshape(-1).argsort(stable=True)
        token = order // self.top_k
        counts = torch.bincount(chosen.reshape(-1), minlength=self.count)
        fed = x[token]
        made = self._grouped(fed, counts) if self.how == "grouped" else self._looped(fed, counts)
        made = made * weights.reshape(-1)[order].unsqueeze(-1).to(made.dtype)
        return torch.zeros_like(x, dtype=made.dtype).index_add(0, token, made).view(shape)

    def _looped(self, fed: Tensor, counts: Tensor) -> Tensor:
        parts = fed.split(counts.tolist())
        out = [(functional.silu(p @ self.gate[e]) * (p @ self.up[e])) @ self.down[e] for e, p in enumerate(parts)]
        return torch.cat(out)

    def _grouped(self, fed: Tensor, counts: Tensor) -> Tensor:
        ends = counts.cumsum(0).to(torch.int32)
        kind = torch.bfloat16
        fed = fed.to(kind)
        gate, up, down = self.gate.to(kind), self.up.to(kind), self.down.to(kind)
        active = functional.silu(torch._grouped_mm(fed, gate, offs=ends)) * torch._grouped_mm(fed, up, offs=ends)
        return torch._grouped_mm(active, down, offs=ends)


class Block(nn.Module):
    """Norm, attention, norm, feed-forward, each added to what came in."""

    def __init__(self, mixer: nn.Module, fed: nn.Module, norms: Callable[[], nn.Module]) -> None:
        super().__init__()
        self.before, self.mixer, self.between, self.fed = norms(), mixer, norms(), fed

    def forward(self, x: Tensor, turn: tuple[Tensor, Tensor] | None = None) -> Tensor:
        x = x + self.mixer(self.before(x), turn)
        found: Tensor = x + self.fed(self.between(x))
        return found


def _cross_entropy(scores: Tensor, labels: Tensor) -> Tensor:
    return functional.cross_entropy(scores.reshape(-1, scores.shape[-1]).float(), labels.reshape(-1))


class Decoder(nn.Module):
    """A language model: embedding, blocks, norm, output layer (the embedding's table unless `untied`), loss."""

    def __init__(self, sizes: Mapping[str, Any], choices: Choices, kind: str) -> None:
        super().__init__()
        h, heads, seq = sizes["hidden"], sizes["heads"], sizes["seq"]
        keys, gpt = sizes.get("kv_heads", heads), kind == "gpt"
        self.choices = choices
        self.tokens = nn.Embedding(sizes["vocab"], h)
        nn.init.normal_(self.tokens.weight, std=0.02)
        self.places = nn.Embedding(seq, h) if gpt else None

        def fed() -> nn.Module:
            if kind == "moe":
                return Experts(h, sizes["ffn"], sizes["experts"], sizes["top_k"], choices.experts)
            return FeedForward(h, sizes.get("ffn", 4 * h)) if gpt else Gated(h, sizes["ffn"])

        def norm() -> nn.Module:
            return nn.LayerNorm(h) if gpt else RMSNorm(h)

        self.blocks = nn.ModuleList(
            Block(Attention(h, heads, keys, choices, bias=gpt, causal=True, rotary=not gpt), fed(), norm)
            for _ in range(sizes["layers"])
        )
        self.last = norm()
        untied = kind == "moe"
        self.head = nn.Linear(h, sizes["vocab"], bias=False) if untied else None
        self.loss: Callable[[Tensor, Tensor], Tensor] = _cross_entropy
        if not gpt:
            depth = h // heads
            rates = 500000.0 ** (-torch.arange(0, depth, 2, dtype=torch.float32) / depth)
            angles = torch.arange(seq, dtype=torch.float32)[:, None] * torch.cat((rates, rates))[None]
            self.register_buffer("cosines", angles.cos())
            self.register_buffer("sines", angles.sin())

    def forward(self, tokens: Tensor, labels: Tensor) -> Tensor:
        x = self.tokens(tokens)
        turn = None
        if self.places is not None:
            x = x + self.places(torch.arange(tokens.shape[1], device=tokens.device))
        else:
            kind = torch.get_autocast_dtype(x.device.type) if torch.is_autocast_enabled(x.device.type) else x.dtype
            turn = self.cosines.to(kind), self.sines.to(kind)
        for block in self.blocks:
            x = _through(block, x, turn, self.choices)
        x = self.last(x)
        weight = self.tokens.weight if self.head is None else self.head.weight
        return self.loss(functional.linear(x, weight), labels)


def _through(block: nn.Module, x: Tensor, turn: Any, choices: Choices) -> Tensor:
    if choices.recompute == "full":
        again: Tensor = checkpoint(block, x, turn, use_reentrant=False)
        return again
    found: Tensor = block(x, turn)
    return found


class Vit(nn.Module):
    def __init__(self, sizes: Mapping[str, Any], choices: Choices) -> None:
        super().__init__()
        h, patch = sizes["hidden"], sizes["patch"]
        self.choices = choices
        self.patches = nn.Conv2d(3, h, patch, patch)
        self.first = nn.Parameter(torch.zeros(1, 1, h))
        self.places = nn.Parameter(torch.randn(1, (sizes["image"] // patch) ** 2 + 1, h) * 0.02)
        self.blocks = nn.ModuleList(
            Block(
                Attention(h, sizes["heads"], sizes["heads"], choices, bias=True, causal=False),
                FeedForward(h, sizes.get("ffn", 4 * h)),
                lambda: nn.LayerNorm(h),
            )
            for _ in range(sizes["layers"])
        )
        self.last, self.head = nn.LayerNorm(h), nn.Linear(h, sizes["classes"])
        self.loss: Callable[[Tensor, Tensor], Tensor] = _cross_entropy

    def forward(self, images: Tensor, labels: Tensor) -> Tensor:
        x = self.patches(images).flatten(2).transpose(1, 2)
        x = torch.cat((self.first.expand(x.shape[0], -1, -1).to(x.dtype), x), dim=1) + self.places
        for block in self.blocks:
            x = _through(block, x, None, self.choices)
        return self.loss(self.head(self.last(x)[:, 0]), labels)


class Bottleneck(nn.Module):
    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        out = 4 * width
        self.one, self.norm_one = nn.Conv2d(channels, width, 1, bias=False), nn.BatchNorm2d(width)
        self.two, self.norm_two = nn.Conv2d(width, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width)
        self.three, self.norm_three = nn.Conv2d(width, out, 1, bias=False), nn.BatchNorm2d(out)
        self.beside: nn.Module | None = None
        if stride > 1 or channels != out:
            self.beside = nn.Sequential(nn.Conv2d(channels, out, 1, stride, bias=False), nn.BatchNorm2d(out))

    def forward(self, x: Tensor) -> Tensor:
        y = functional.relu(self.norm_one(self.one(x)), inplace=True)
        y = functional.relu(self.norm_two(self.two(y)), inplace=True)
        y = self.norm_three(self.three(y))
        return functional.relu(y + (x if self.beside is None else self.beside(x)), inplace=True)


class Resnet50(nn.Module):
    def __init__(self, sizes: Mapping[str, Any], choices: Choices) -> None:
        super().__init__()
        hidden, channels = sizes["hidden"], sizes["hidden"]
        self.choices = choices
        self.begin, self.norm = nn.Conv2d(3, hidden, 7, 2, 3, bias=False), nn.BatchNorm2d(hidden)
        stages = []
        for stage, count in enumerate((3, 4, 6, 3)):
            width, members = hidden << stage, []
            for i in range(count):
                members.append(Bottleneck(channels, width, 2 if stage and not i else 1))
                channels = 4 * width
            stages.append(nn.Sequential(*members))
        self.blocks = nn.ModuleList(stages)
        self.head = nn.Linear(channels, sizes["classes"])
        self.loss: Callable[[Tensor, Tensor], Tensor] = _cross_entropy

    def forward(self, images: Tensor, labels: Tensor) -> Tensor:
        x = functional.relu(self.norm(self.begin(images)), inplace=True)
        x = functional.max_pool2d(x, 3, 2, 1)
        for stage in self.blocks:
            if self.choices.recompute == "full":
                for block in stage:
                    x = checkpoint(block, x, use_reentrant=False)
            else:
                x = stage(x)
        return self.loss(self.head(x.mean((2, 3))), labels)


def build(architecture: str, sizes: Mapping[str, Any], choices: Choices) -> nn.Module:
    """The model, on the default device; sizes by the names of `planner build`."""
    if architecture == "vit":
        return Vit(sizes, choices)
    if architecture == "resnet":
        return Resnet50(sizes, choices)
    return Decoder(sizes, choices, architecture)


def compile_blocks(model: Any) -> None:
    """Compiles the blocks in place, and the loss: blocks of one class and shape share what was compiled."""
    for block in model.blocks:
        block.compile(dynamic=False)
    model.loss = torch.compile(model.loss, dynamic=False)
