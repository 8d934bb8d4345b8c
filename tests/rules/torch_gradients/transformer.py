"""Attention and rotary positions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from tests.rules.torch_gradients.subject import Subject, f, indices, subject

__all__ = ["transformers"]


def transformers() -> Iterator[Subject]:
    t, attend = "Attention", functional.scaled_dot_product_attention
    same = [f(2, 4, 6, 4), f(2, 4, 6, 4), f(2, 4, 6, 4)]
    yield subject(t, same, attend, opset=23)
    yield subject(t, same, lambda q, k, v: attend(q, k, v, is_causal=True), opset=23, is_causal=1)
    grouped = [f(2, 4, 4, 4), f(2, 2, 6, 4), f(2, 2, 6, 2)]
    yield subject(t, grouped, lambda q, k, v: attend(q, k, v, enable_gqa=True), opset=23)

    def masked(q: Any, k: Any, v: Any, mask: Any) -> Any:
        return attend(q, k, v, mask, scale=0.25, enable_gqa=True)

    yield subject(t, [*grouped, f(4, 6)], masked, opset=23, scale=0.25)
    yield subject(t, [*grouped, f(2, 4, 4, 6)], masked, opset=23, scale=0.25)
    allowed = indices(3, 2, 1, 4, 6) > 0
    allowed[..., 0] = True
    yield subject(t, [*grouped, allowed], masked, opset=23, scale=0.25)
    yield subject(t, grouped, _capped, opset=23, softcap=1.5)
    yield subject(t, [f(2, 4, 16), f(2, 6, 8), f(2, 6, 8)], _packed, opset=23, q_num_heads=4, kv_num_heads=2)
    yield from _with_a_past()
    yield from _rotary()


def _capped(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    k, v = k.repeat_interleave(2, 1), v.repeat_interleave(2, 1)
    scores = q @ k.mT / q.shape[-1] ** 0.5
    return torch.softmax(1.5 * torch.tanh(scores / 1.5), -1) @ v


def _packed(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    parts = (x.unflatten(2, (-1, 4)).transpose(1, 2) for x in (q, k, v))
    return functional.scaled_dot_product_attention(*parts, enable_gqa=True).transpose(1, 2).flatten(2)


def _with_a_past() -> Iterator[Subject]:
    def meaning(q: Any, k: Any, v: Any, _: None, past_k: Any, past_v: Any) -> Any:
        k, v = torch.cat([past_k, k], 2), torch.cat([past_v, v], 2)
        return functional.scaled_dot_product_attention(q, k, v), k, v

    past = [f(2, 2, 4, 4), f(2, 2, 2, 4), f(2, 2, 2, 4), None, f(2, 2, 4, 4), f(2, 2, 4, 4)]
    yield subject("Attention", past, meaning, opset=23, results=3)


def _rotary() -> Iterator[Subject]:
    angles = np.float32(0.1) * np.arange(24, dtype=np.float32).reshape(12, 2)
    cos, sin = np.cos(angles), np.sin(angles)

    def halves(x: torch.Tensor, c: torch.Tensor, s: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        c, s = c[at][:, None], s[at][:, None]
        left, right = x.chunk(2, -1)
        return torch.cat([c * left - s * right, s * left + c * right], -1)

    def pairs(x: torch.Tensor, c: torch.Tensor, s: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        turned = torch.view_as_complex(x.unflatten(-1, (2, 2))) * torch.complex(c[at], s[at])[:, None]
        return torch.view_as_real(turned).flatten(-2)

    operands = [f(2, 4, 6, 4), cos, sin, indices(12, 2, 6)]
    yield subject("RotaryEmbedding", operands, halves, opset=23, fixed=(1, 2))
    yield subject("RotaryEmbedding", operands, pairs, opset=23, fixed=(1, 2), interleaved=1)
