"""Attention and normalisation as ONNX Runtime fuses them, and linear attention."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from tests.rules.torch_gradients.subject import Subject, f, indices, p, subject

__all__ = ["fused"]


def fused() -> Iterator[Subject]:
    yield subject("SwiGLU", [f(2, 6, 12), f(2, 6, 12)], lambda a, b: functional.silu(a) * b, opset=28)
    flexible = [f(2, 4, 6, 4), f(2, 2, 12, 4), f(2, 2, 12, 2)]
    attend = functional.scaled_dot_product_attention
    yield subject("ai.onnx.preview::FlexAttention", flexible, lambda q, k, v: attend(q, k, v, enable_gqa=True), opset=1)
    yield from _multi_head()
    yield from _normalizations()
    yield from _losses()
    yield from _linear()


def _apart(x: Any, heads: int) -> Any:
    """(b, s, heads · depth) → (b, heads, s, depth)."""
    return x.unflatten(2, (heads, -1)).transpose(1, 2)


def _multi_head() -> Iterator[Subject]:
    def meaning(q: Any, k: Any, v: Any, bias: Any = None) -> torch.Tensor:
        if bias is not None:
            q, k, v = (x + b for x, b in zip((q, k, v), bias.split([x.shape[-1] for x in (q, k, v)]), strict=True))
        heads = (_apart(x, 4) for x in (q, k, v))
        return functional.scaled_dot_product_attention(*heads).transpose(1, 2).flatten(2)

    operands = [f(2, 6, 16), f(2, 4, 16), f(2, 4, 8)]
    yield subject("com.microsoft::MultiHeadAttention", operands, meaning, opset=1, num_heads=4)
    yield subject("com.microsoft::MultiHeadAttention", [*operands, f(40)], meaning, opset=1, num_heads=4)


def _normalizations() -> Iterator[Subject]:
    def moving(x: Any, w: Any, b: Any, mean: Any, variance: Any) -> torch.Tensor:
        return functional.batch_norm(x, mean.clone(), variance.clone(), w, b, training=True)

    operands = [f(4, 6, 4, 2), p(6), f(6), f(6), p(6)]
    yield subject("com.microsoft::BatchNormInternal", operands, moving, opset=1, results=5, fixed=(3, 4))

    def biased(x: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        return torch.softmax(x + bias, -1)

    options = {"axis": 3, "is_inner_broadcast": 1}
    yield subject("com.microsoft::BiasSoftmax", [f(4, 2, 6, 12), f(1, 1, 6, 12)], biased, opset=1, **options)

    def groups(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return functional.silu(functional.group_norm(x.movedim(3, 1), 2, w, b)).movedim(1, 3)

    options = {"groups": 2, "activation": 1}
    yield subject("com.microsoft::GroupNorm", [f(4, 2, 6, 12), p(12), f(12)], groups, opset=1, **options)


def _losses() -> Iterator[Subject]:
    def loss(x: torch.Tensor, labels: torch.Tensor, weight: Any, _: Any) -> Any:
        return functional.cross_entropy(x, labels, weight), torch.log_softmax(x, 1)

    ignored = np.int64(-100)
    operands = [f(12, 6), indices(6, 12), None, ignored]
    t = "com.microsoft::SoftmaxCrossEntropyLossInternal"
    yield subject(t, operands, loss, opset=1, results=2, seeded=(0, 1))
    yield subject(t, [*operands[:2], p(6), ignored], loss, opset=1, results=2, seeded=(0, 1), fixed=(2,))


def _linear() -> Iterator[Subject]:
    """A state of keys and values that runs along the sequence, decays, and is corrected by what it foretells."""

    def meaning(q: Any, k: Any, v: Any, state: Any = None, decay: Any = None, rate: Any = None) -> Any:
        q, k, v, decay, rate = (x if x is None else _apart(x, 4) for x in (q, k, v, decay, rate))
        if state is None:
            state = torch.zeros(*k.shape[:2], k.shape[3], v.shape[3], dtype=k.dtype)
        steps = []
        for t in range(k.shape[2]):
            if decay is not None:
                state = torch.exp(decay[:, :, t])[..., None] * state
            told = v[:, :, t]
            if rate is not None:
                told = rate[:, :, t] * (told - torch.einsum("bhef,bhe->bhf", state, k[:, :, t]))
            state = state + torch.einsum("bhe,bhf->bhef", k[:, :, t], told)
            steps.append(torch.einsum("bhe,bhef->bhf", q[:, :, t], state) / q.shape[-1] ** 0.5)
        return torch.stack(steps, 1).flatten(2), state

    x = [p(2, 6, 16, low=-0.5, high=0.5), p(2, 6, 16, low=-0.5, high=0.5), f(2, 6, 8)]
    decay, rate, state = p(2, 6, 16, low=-1, high=0), p(2, 6, 4, low=0.1, high=0.9), f(2, 4, 4, 2)
    for rule, operands in (
        ("linear", [*x]),
        ("gated", [*x, state, decay]),
        ("delta", [*x, None, None, rate]),
        ("gated_delta", [*x, state, decay, rate]),
    ):
        options: dict[str, Any] = {"update_rule": rule, "q_num_heads": 4, "kv_num_heads": 4}
        yield subject("LinearAttention", operands, meaning, opset=27, results=2, seeded=(0, 1), **options)
    options = {"q_num_heads": 4, "kv_num_heads": 4, "results": 2, "seeded": (0, 1)}
    yield subject("com.microsoft::LinearAttention", [*x, state, decay, rate], meaning, opset=1, **options)
