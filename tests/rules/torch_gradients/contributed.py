"""Operators of ONNX Runtime and of older ONNX, and products whose weight every token chooses."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from tests.rules.torch_gradients.subject import Subject, f, indices, subject

__all__ = ["contributed"]


def contributed() -> Iterator[Subject]:
    yield subject("Affine", [f(4, 6)], lambda x: 2 * x + 0.5, opset=1, alpha=2.0, beta=0.5)
    yield subject("ScaledTanh", [f(4, 6)], lambda x: 2 * torch.tanh(x / 2), opset=1, alpha=2.0, beta=0.5)

    def softplus(x: Any) -> Any:
        return 2 * functional.softplus(x / 2)

    yield subject("ParametricSoftplus", [f(4, 6)], softplus, opset=1, alpha=2.0, beta=0.5)
    bias = torch.tensor([0.5, 0.25, 1])[:, None, None]

    def scaled(x: Any) -> Any:
        return 2 * x + bias

    yield subject("ImageScaler", [f(2, 3, 4, 6)], scaled, opset=1, scale=2.0, bias=(0.5, 0.25, 1.0))
    domain = "com.microsoft::"
    yield subject(f"{domain}ScaledSiLU", [f(2, 4, 6)], lambda x: functional.silu(0.75 * x), opset=1, alpha=0.75)
    gated = [f(2, 4, 6), f(2, 4, 6), f(2, 4, 1)]
    yield subject(f"{domain}GatedAdd", gated, lambda x, y, gate: x + y * gate, opset=1)
    yield from _rotary()
    yield from _experts()


def _rotary() -> Iterator[Subject]:
    angles = np.float32(0.1) * np.arange(24, dtype=np.float32).reshape(12, 2)

    def halves(x: torch.Tensor, at: torch.Tensor, c: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
        left, right = x.chunk(2, -1)
        c, s = c[at][:, None], s[at][:, None]
        return torch.cat([c * left - s * right, s * left + c * right], -1)

    operands = [f(2, 4, 6, 4), indices(12, 2, 6), np.cos(angles), np.sin(angles)]
    yield subject("com.microsoft::RotaryEmbedding", operands, halves, opset=1, fixed=(2, 3))


def _experts() -> Iterator[Subject]:
    """Every expert is chosen equally often, which the price assumes."""
    choice = np.arange(24) % 6

    def product(x: torch.Tensor, w: torch.Tensor, at: torch.Tensor, b: torch.Tensor | None = None) -> torch.Tensor:
        y = torch.einsum("ti,tio->to", x, w[at])
        return y if b is None else y + b[at]

    yield subject("planner::ExpertMatMul", [f(24, 6), f(6, 6, 4), choice], product, transB=0)
    yield subject("planner::ExpertMatMul", [f(24, 6), f(6, 6, 4), choice, f(6, 4)], product, transB=0)

    def turned(x: Any, w: Any, at: Any) -> Any:
        return product(x, w.mT, at)

    yield subject("planner::ExpertMatMul", [f(24, 6), f(6, 4, 6), choice], turned, transB=1)
