"""Mixtures of experts, and products fused with what follows them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from planner.ir import Op
from planner.kernels.attributes import Array, string
from planner.kernels.local import in_double
from planner.operators.elementwise.local import gelu, logistic
from planner.operators.experts.gradient import expert_product
from planner.operators.quantized.local import unpacked_weights

__all__: list[str] = []

Operands = Sequence["Array | None"]
Results = Sequence["Array | None"]
Kernel = Callable[[Op, Operands], "Results | None"]


def _mixture(op: Op, inputs: Operands) -> Results | None:
    x, router, up, up_bias, down, down_bias, gate, gate_bias = (*inputs, *[None] * 8)[:8]
    if x is None or router is None or up is None or down is None:
        return None
    return _mixed(op, x, router, router, (up, up_bias), (down, down_bias), (gate, gate_bias))


def _quantised_mixture(op: Op, inputs: Operands) -> Results | None:
    """Weights of a few bits, with scales per row or per block of it."""
    x, router = inputs[:2]
    given = [*inputs, *[None] * 15][:15]
    if x is None or router is None or string(op.attributes.get("quant_type"), "int") != "int":
        return None
    if any(v is not None for v in inputs[15:]):
        return None
    layers: list[tuple[Array | None, Array | None]] = []
    for i, zeros in zip((2, 5, 8), given[11:14], strict=True):
        packed, scales, bias = given[i : i + 3]
        weight = None if packed is None or scales is None else _unpacked(op, i // 3, packed, scales, zeros)
        layers.append((weight, bias))
    weights = given[14]
    return _mixed(op, x, router, router if weights is None else weights, *layers, given=weights is not None)


def _unpacked(op: Op, layer: int, packed: Array, scales: Array, zeros: Array | None) -> Array:
    bits = int(op.attributes.get("expert_weight_bits", 4))
    bits = int(op.attributes.get(f"fc{layer + 1}_expert_weight_bits", 0)) or bits
    rows, depth = packed.shape[1], packed.shape[2] * 8 // bits
    block = int(op.attributes.get("block_size", 0)) or depth
    return np.stack(
        [
            unpacked_weights(w, s, z, bits, rows, depth, block)
            for w, s, z in zip(packed, scales, zeros if zeros is not None else [None] * len(packed), strict=True)
        ]
    )


_Layer = tuple["Array | None", "Array | None"]


def _mixed(
    op: Op, x: Array, router: Array, weights: Array, up: _Layer, down: _Layer, gate: _Layer, *, given: bool = False
) -> Results | None:
    if up[0] is None or down[0] is None:
        return None
    rows = x.reshape(-1, x.shape[-1])
    total = np.zeros((len(rows), down[0].shape[1]))
    for experts, share in _routes(op, router, weights, given=given):
        h = expert_product(rows, experts, up[0], up[1], trans_b=True)
        linear = None if gate[0] is None else expert_product(rows, experts, gate[0], gate[1], trans_b=True)
        if string(op.attributes.get("activation_type"), "relu") == "swiglu":
            h = _swiglu(op, h, linear)
        else:
            h = _activated(op, h) if linear is None else _activated(op, h) * linear
        total += share[:, None] * expert_product(h, experts, down[0], down[1], trans_b=True)
    return [total.reshape(*x.shape[:-1], -1)]


def _activated(op: Op, h: Array) -> Array:
    match string(op.attributes.get("activation_type"), "relu"):
        case "relu":
            return np.maximum(h, 0)
        case "gelu":
            return gelu(h, tanh=True)
        case "silu":
            return np.asarray(h * logistic(h))
    return h


def _swiglu(op: Op, h: Array, linear: Array | None) -> Array:
    """G·logistic(αG)·(L + β); both interleaved, one after the other, or products of their own."""
    fusion = int(op.attributes.get("swiglu_fusion", 0))
    if fusion == 1:
        g, linear = h[:, ::2], h[:, 1::2]
    elif fusion == 2:
        g, linear = np.split(h, 2, axis=1)
    else:
        g = h
    assert linear is not None
    limit = op.attributes.get("swiglu_limit")
    if limit is not None:
        g, linear = np.minimum(g, limit), np.clip(linear, -limit, limit)
    alpha, beta = op.attributes.get("activation_alpha", 1.0), op.attributes.get("activation_beta", 0.0)
    return np.asarray(g * logistic(alpha * g) * (linear + beta))


def _routes(op: Op, router: Array, weights: Array, *, given: bool) -> list[tuple[Array, Array]]:
    """For every rank of choice the expert of each row, and its share.  `use_sparse_mixer` means nothing to ONNX
    Runtime's kernel on processors, which is the truth here."""
    k = int(op.attributes.get("k", 1))
    rows = np.arange(len(router))
    best = np.argsort(-router, axis=1, kind="stable")[:, :k]
    if given:
        shares = np.take_along_axis(weights, best, axis=1)
    else:
        p = np.exp(router - router.max(axis=1, keepdims=True))
        shares = np.take_along_axis(p / p.sum(axis=1, keepdims=True), best, axis=1)
    # ONNX Runtime's quantised mixture always shares one among the chosen experts.
    if op.attributes.get("normalize_routing_weights", 0) or (op.type.endswith("QMoE") and not given):
        shares = shares / shares.sum(axis=1, keepdims=True)
    return [(best[rows, j], shares[:, j]) for j in range(k)]


in_double(
    {
        "com.microsoft::MoE": _mixture,
        "com.microsoft::QMoE": _quantised_mixture,
    }
)
