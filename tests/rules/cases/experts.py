"""Small operators of one family: mixtures of experts."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tests.rules.cases.values import f, n, p
from tests.rules.prover import Case, case

__all__ = ["experts"]

_PRODUCT = "planner::ExpertMatMul"


def experts() -> Iterator[Case]:
    """Every part of the tokens chooses every expert equally often: the load that the rule prices."""
    yield case(_PRODUCT, [f(36, 6), f(6, 4, 6), balanced(6, 36)], transB=1)
    yield case(_PRODUCT, [f(24, 6), f(4, 6, 12), balanced(4, 24, 1)], transB=0)
    yield case(_PRODUCT, [f(72, 4), f(12, 6, 4), balanced(12, 72, 1), f(12, 6)], transB=1)
    yield case(_PRODUCT, [f(36, 4), f(6, 4, 6), balanced(6, 36) - 6, f(6, 6)], transB=0)
    yield case(_PRODUCT, [f(12, 6, 4), f(6, 6, 4), balanced(6, 12, 6), f(6, 6)], transB=1)
    yield case(_PRODUCT, [f(12, 1, 4), f(6, 12, 4), balanced(6, 12, 6), f(6, 12)], transB=1)
    yield case(_PRODUCT, [f(1, 4), f(6, 4, 6), n(6, 12)], transB=0)
    yield case(_PRODUCT, [f(144, 6), f(24, 4, 6), balanced(24, 144).astype(np.int32)], transB=1)
    half = [v.astype(np.float16) for v in (f(36, 6), f(6, 4, 6), f(6, 4))]
    yield case(_PRODUCT, [half[0], half[1], balanced(6, 36), half[2]], transB=1)
    yield case(_PRODUCT, [f(5, 7), f(3, 9, 7), n(3, 5)], transB=1)
    yield from _mixtures()
    yield from _quantized_mixtures()


def balanced(count: int, *shape: int) -> np.ndarray:
    """Each of `count` experts in turn, along every dimension."""
    return np.asarray(np.indices(shape).sum(axis=0) % count)


def _mixtures() -> Iterator[Case]:
    kind = "com.microsoft::MoE"
    up, down, up_bias, down_bias, router = f(6, 12, 4), f(6, 4, 12), f(6, 12), f(6, 4), f(12, 6)
    both = [up, up_bias, down, down_bias]
    yield case(kind, [f(12, 4), router, *both], opset=1, k=2, activation_type="relu")
    yield case(kind, [f(12, 4), router, up, None, down], opset=1, k=1, activation_type="gelu")
    yield case(kind, [f(12, 4), router, *both], opset=1, k=2, activation_type="relu", use_sparse_mixer=1)
    yield case(kind, [f(2, 6, 4), router, *both], opset=1, k=2, activation_type="silu", normalize_routing_weights=1)
    gated = [f(12, 4), router, f(6, 24, 4), f(6, 24), down, down_bias]
    yield case(kind, gated, opset=1, k=2, activation_type="swiglu", swiglu_fusion=1)


def _quantized_mixtures() -> Iterator[Case]:
    kind = "com.microsoft::QMoE"
    for bits, gates in ((8, 1), (4, 1), (4, 2)):
        up, down = _bytes(6, gates * 48, 24 * bits // 8), _bytes(6, 24, 48 * bits // 8)
        scales = [p(6, gates * 48) / 16, p(6, 24) / 16]
        yield case(
            kind,
            [f(12, 24), f(12, 6), up, scales[0], f(6, gates * 48), down, scales[1], f(6, 24)],
            opset=1,
            k=2,
            expert_weight_bits=bits,
            activation_type="swiglu" if gates == 2 else "silu",
            **({"swiglu_fusion": 1} if gates == 2 else {}),
        )
    blocks = [p(6, 96, 2) / 16, p(6, 32, 3) / 16]
    yield case(
        kind,
        [f(12, 32), f(12, 6), _bytes(6, 96, 16), blocks[0], None, _bytes(6, 32, 24), blocks[1]],
        opset=1,
        k=2,
        expert_weight_bits=4,
        block_size=16,
        activation_type="swiglu",
        swiglu_fusion=1,
    )


def _bytes(*shape: int) -> np.ndarray:
    return n(256, *shape).astype(np.uint8)
