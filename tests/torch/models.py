"""Nine models as people write them, small: what `planner.torch` is tried on.

Each is a function of nothing that returns a module, its example inputs, its targets and the loss; targets and loss are
None where the module returns its own loss.  Batches of 8 samples divide by the meshes of the tests.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

BATCH, LENGTH, WIDTH, HEADS, WORDS = 8, 16, 32, 4, 64


@dataclass
class Case:
    """A module with what a step of it reads.  `kwargs` are inputs that the module takes by name."""

    module: nn.Module
    inputs: tuple[Any, ...]
    kwargs: dict[str, Any]
    targets: tuple[Any, ...]
    loss: Callable[..., Tensor] | None


def _words(seed: int, *shape: int, most: int = WORDS) -> Tensor:
    return torch.randint(0, most, shape, generator=torch.Generator().manual_seed(seed))


def _numbers(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


class Perceptron(nn.Module):
    """Three layers."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 8))

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)


class SeparateAttention(nn.Module):
    """Attention with three projections and written-out scores."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.register_buffer("mask", torch.tril(torch.ones(LENGTH, LENGTH, dtype=torch.bool)), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        b, s, w = x.shape
        q, k, v = (p(x).view(b, s, HEADS, w // HEADS).transpose(1, 2) for p in (self.q, self.k, self.v))
        scores = q @ k.transpose(-2, -1) / math.sqrt(w // HEADS)
        weights = scores.masked_fill(~self.mask[:s, :s], float("-inf")).softmax(-1)
        return self.o((weights @ v).transpose(1, 2).reshape(b, s, w))


class FusedAttention(nn.Module):
    """nanoGPT's: one projection for queries, keys and values, and torch's fused kernel."""

    def __init__(self) -> None:
        super().__init__()
        self.c_attn, self.c_proj = nn.Linear(WIDTH, 3 * WIDTH, bias=False), nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        b, s, w = x.shape
        q, k, v = (t.view(b, s, HEADS, w // HEADS).transpose(1, 2) for t in self.c_attn(x).split(w, dim=2))
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.c_proj(y.transpose(1, 2).contiguous().view(b, s, w))


class Block(nn.Module):
    def __init__(self, attention: nn.Module) -> None:
        super().__init__()
        self.ln_1, self.attn, self.ln_2 = nn.LayerNorm(WIDTH), attention, nn.LayerNorm(WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class Gpt(nn.Module):
    """A decoder of two blocks whose head is tied to its embedding, as nanoGPT's."""

    def __init__(self, attention: type[nn.Module]) -> None:
        super().__init__()
        self.wte, self.wpe = nn.Embedding(WORDS, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.h = nn.ModuleList(Block(attention()) for _ in range(2))
        self.ln_f, self.lm_head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WORDS, bias=False)
        self.lm_head.weight = self.wte.weight

    def forward(self, idx: Tensor) -> Tensor:
        x = self.wte(idx) + self.wpe(torch.arange(idx.shape[1], device=idx.device))
        for block in self.h:
            x = block(x)
        return self.lm_head(self.ln_f(x))


def next_word(logits: Tensor, labels: Tensor) -> Tensor:
    return functional.cross_entropy(logits.view(-1, logits.shape[-1]), labels.view(-1))


class EinsumExperts(nn.Module):
    """Experts whose tokens are sent by einsums with one-hot matrices, as in Mesh TensorFlow, without a capacity."""

    def __init__(self, experts: int = 4) -> None:
        super().__init__()
        self.gate = nn.Linear(WIDTH, experts, bias=False)
        self.up = nn.Parameter(torch.randn(experts, WIDTH, 2 * WIDTH) * 0.1)
        self.down = nn.Parameter(torch.randn(experts, 2 * WIDTH, WIDTH) * 0.1)
        self.head = nn.Linear(WIDTH, 8)

    def forward(self, x: Tensor) -> Tensor:
        shares = self.gate(x).softmax(-1)
        inner = functional.silu(torch.einsum("bsd,edf->ebsf", x, self.up))
        outer = torch.einsum("ebsf,efd->ebsd", inner, self.down)
        return self.head(torch.einsum("ebsd,bse->bsd", outer, shares).mean(1))


class Residual(nn.Module):
    """A block of a ResNet."""

    def __init__(self, inside: int, outside: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inside, outside, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outside)
        self.conv2 = nn.Conv2d(outside, outside, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outside)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = None
        if stride > 1:
            self.downsample = nn.Sequential(nn.Conv2d(inside, outside, 1, stride, bias=False), nn.BatchNorm2d(outside))

    def forward(self, x: Tensor) -> Tensor:
        y = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        return self.relu(y + (x if self.downsample is None else self.downsample(x)))


class ResNet(nn.Module):
    """A ResNet of two blocks, with running statistics."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, 8, 7, 2, 3, bias=False), nn.BatchNorm2d(8), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)
        )
        self.layers = nn.Sequential(Residual(8, 8, 1), Residual(8, 16, 2))
        self.pool, self.fc = nn.AdaptiveAvgPool2d(1), nn.Linear(16, 8)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(torch.flatten(self.pool(self.layers(self.stem(x))), 1))


class Vit(nn.Module):
    """A vision transformer: patches by a convolution, a class token, torch's own attention module."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, WIDTH, 8, 8)
        self.token = nn.Parameter(torch.randn(1, 1, WIDTH) * 0.02)
        self.positions = nn.Parameter(torch.randn(1, 17, WIDTH) * 0.02)
        self.blocks = nn.ModuleList(VitBlock() for _ in range(2))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 8)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(x.shape[0], -1, -1), x], 1) + self.positions
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x)[:, 0])


class VitBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attn = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm1(x)
        x = x + self.attn(y, y, y, need_weights=False)[0]
        return x + self.mlp(self.norm2(x))


def perceptron() -> Case:
    return Case(Perceptron(), (_numbers(1, BATCH, 16),), {}, (_words(2, BATCH, most=8),), functional.cross_entropy)


class Scaled(nn.Module):
    """With a buffer that a graph cannot tell from a weight, and weights that are frozen."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(16, 64), nn.Linear(64, 8)
        self.register_buffer("scale", torch.linspace(0.5, 1.5, 64))
        self.second.requires_grad_(requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(functional.gelu(self.first(x)) * self.scale)


class Normed(nn.Module):
    """With norms whose weights begin alike, of which exporters store one."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third = nn.Linear(16, 32), nn.Linear(32, 32), nn.Linear(32, 8)
        self.norm_1, self.norm_2 = nn.LayerNorm(32), nn.LayerNorm(32)

    def forward(self, x: Tensor) -> Tensor:
        return self.third(self.norm_2(self.second(self.norm_1(self.first(x)))))


class Dropped(nn.Module):
    """An MLP, and attention, of which a part is dropped."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, 8)
        self.q, self.k, self.v = (nn.Linear(WIDTH, WIDTH) for _ in range(3))

    def forward(self, idx: Tensor) -> Tensor:
        x = self.words(idx)
        b, s, _ = x.shape
        q, k, v = (p(x).view(b, s, HEADS, -1).transpose(1, 2) for p in (self.q, self.k, self.v))
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p=0.25 if self.training else 0.0)
        y = functional.dropout(y.transpose(1, 2).reshape(b, s, -1), 0.5, self.training)
        return self.head(y.mean(1))


def dropped() -> Case:
    words = _words(1, BATCH // 2, LENGTH).repeat(2, 1)  # each sample twice
    return Case(Dropped(), (words,), {}, (_words(2, BATCH // 2, most=8).repeat(2),), functional.cross_entropy)


class Adapter(nn.Module):
    """A frozen layer, and beside it the product of two narrow matrices that are trained (LoRA)."""

    def __init__(self, frozen: nn.Linear, width: int = 4) -> None:
        super().__init__()
        self.frozen = frozen
        self.a, self.b = nn.Linear(frozen.in_features, width, False), nn.Linear(width, frozen.out_features, False)

    def forward(self, x: Tensor) -> Tensor:
        return self.frozen(x) + 2 * self.b(self.a(x))


class Padded(nn.Module):
    """Words of which one is padding, whose row in the table gets no gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(WORDS, WIDTH, padding_idx=3), nn.Linear(WIDTH, 8)

    def forward(self, idx: Tensor) -> Tensor:
        return self.head(self.words(idx).tanh().mean(1))


def padded() -> Case:
    words = _words(1, BATCH, LENGTH)
    words[:, ::3] = 3
    return Case(Padded(), (words,), {}, (_words(2, BATCH, most=8),), functional.cross_entropy)


def normed() -> Case:
    return Case(Normed(), (_numbers(1, BATCH, 16),), {}, (_words(2, BATCH, most=8),), functional.cross_entropy)


def scaled() -> Case:
    return Case(Scaled(), (_numbers(1, BATCH, 16),), {}, (_words(2, BATCH, most=8),), functional.cross_entropy)


def gpt() -> Case:
    return Case(Gpt(SeparateAttention), (_words(1, BATCH, LENGTH),), {}, (_words(2, BATCH, LENGTH),), next_word)


def adapted(element: torch.dtype = torch.float32) -> Case:
    """The decoder with adapters, which alone are trained, in single precision; what is frozen is of the `element`."""
    case = gpt()
    case.module.requires_grad_(False).to(element)
    for block in case.module.h:
        block.attn.q, block.attn.v = Adapter(block.attn.q), Adapter(block.attn.v)
        block.mlp[0], block.mlp[2] = Adapter(block.mlp[0]), Adapter(block.mlp[2])
    return case


def nano_gpt() -> Case:
    return Case(Gpt(FusedAttention), (_words(1, BATCH, LENGTH),), {}, (_words(2, BATCH, LENGTH),), next_word)


def einsum_moe() -> Case:
    inputs = (_numbers(1, BATCH, LENGTH, WIDTH),)
    return Case(EinsumExperts(), inputs, {}, (_words(2, BATCH, most=8),), functional.cross_entropy)


def resnet() -> Case:
    inputs = (_numbers(1, BATCH, 3, 32, 32),)
    return Case(ResNet(), inputs, {}, (_words(2, BATCH, most=8),), functional.cross_entropy)


def vit() -> Case:
    inputs = (_numbers(1, BATCH, 3, 32, 32),)
    return Case(Vit(), inputs, {}, (_words(2, BATCH, most=8),), functional.cross_entropy)


def _hugging_face(module: nn.Module) -> Case:
    words = _words(1, BATCH, LENGTH)
    return Case(module, (), {"input_ids": words, "labels": words.clone()}, (), None)


def hf_gpt2() -> Case:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        vocab_size=WORDS, n_positions=LENGTH, n_embd=WIDTH, n_layer=2, n_head=HEADS, resid_pdrop=0.0, embd_pdrop=0.0,
        attn_pdrop=0.0, use_cache=False,
    )  # fmt: skip
    return _hugging_face(GPT2LMHeadModel(config))


def hf_llama() -> Case:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=WORDS, hidden_size=WIDTH, intermediate_size=2 * WIDTH, num_hidden_layers=2,
        num_attention_heads=HEADS, num_key_value_heads=2, max_position_embeddings=LENGTH, use_cache=False,
    )  # fmt: skip
    return _hugging_face(LlamaForCausalLM(config))


def hf_mixtral() -> Case:
    from transformers import MixtralConfig, MixtralForCausalLM

    config = MixtralConfig(
        vocab_size=WORDS, hidden_size=WIDTH, intermediate_size=2 * WIDTH, num_hidden_layers=2,
        num_attention_heads=HEADS, num_key_value_heads=2, num_local_experts=4, num_experts_per_tok=2,
        max_position_embeddings=LENGTH, use_cache=False, sliding_window=None,
    )  # fmt: skip
    return _hugging_face(MixtralForCausalLM(config))


def hf_bert() -> Case:
    from transformers import BertConfig, BertForMaskedLM

    config = BertConfig(
        vocab_size=WORDS, hidden_size=WIDTH, intermediate_size=2 * WIDTH, num_hidden_layers=2,
        num_attention_heads=HEADS, max_position_embeddings=LENGTH, hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    return _hugging_face(BertForMaskedLM(config))


def hf_t5() -> Case:
    from transformers import T5Config, T5ForConditionalGeneration

    config = T5Config(
        vocab_size=WORDS, d_model=WIDTH, num_layers=2, num_heads=HEADS, d_kv=WIDTH // HEADS, d_ff=2 * WIDTH,
        dropout_rate=0.0, use_cache=False, decoder_start_token_id=0,
    )  # fmt: skip
    return _hugging_face(T5ForConditionalGeneration(config))


OWN: dict[str, Callable[[], Case]] = {
    "mlp": perceptron, "gpt": gpt, "nanogpt": nano_gpt, "einsum_moe": einsum_moe, "resnet": resnet, "vit": vit,
}  # fmt: skip
HUGGING_FACE: dict[str, Callable[[], Case]] = {"hf_gpt2": hf_gpt2, "hf_llama": hf_llama, "hf_mixtral": hf_mixtral}
# Tried under some kinds of plans.
MORE: dict[str, Callable[[], Case]] = {"hf_bert": hf_bert, "hf_t5": hf_t5}
# What only exports, and single operators, are tried on.
CASES = {**OWN, **HUGGING_FACE, **MORE, "scaled": scaled, "normed": normed, "padded": padded, "dropped": dropped,
         "adapted": adapted}  # fmt: skip
