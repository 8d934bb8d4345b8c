"""Scaled-dot-product attention, forward and backward, by backend."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from tests.bench.gpu.work import Call, Place, Work, gradient_calls

__all__ = ["BACKENDS", "attention_cases"]

BACKENDS = {
    "flash": SDPBackend.FLASH_ATTENTION,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "math": SDPBackend.MATH,
}
# Batch, heads, positions, width of a head, causal.
SHAPES = [
    (8, 12, 1024, 64, True),
    (4, 25, 1024, 64, True),
    (4, 32, 2048, 64, True),
    (2, 32, 4096, 128, True),
    (1, 32, 8192, 128, True),
    (1, 32, 16384, 128, True),
    (32, 16, 197, 64, False),
    (16, 16, 512, 64, True),
    (2, 32, 4096, 128, False),
]
_MOST_SCORES = 1 << 30  # elements that the unfused backend may hold


def attention_cases(place: Place) -> Iterator[Work]:
    for name, backend in BACKENDS.items():
        for batch, heads, seq, depth, causal in SHAPES[:2] if place.tiny else SHAPES:
            if place.tiny:
                batch, heads, seq = 2, 2, 32
            if name == "math" and batch * heads * seq * seq > _MOST_SCORES:
                continue
            for direction in ("forward", "backward"):
                yield _attention(place, name, backend, (batch, heads, seq, depth), causal, direction)


def _attention(
    place: Place, name: str, backend: SDPBackend, shape: tuple[int, int, int, int], causal: bool, direction: str
) -> Work:
    batch, heads, seq, depth = shape

    def run(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        with sdpa_kernel(backend):
            return scaled_dot_product_attention(q, k, v, is_causal=causal)

    def make(_: int) -> Call:
        # As models hand them over: heads lie side by side in the result of one product.
        q, k, v = (place.normal(batch, seq, heads, depth).transpose(1, 2) for _ in range(3))
        if direction == "backward":
            return gradient_calls(run, q, k, v)
        return lambda: run(q, k, v)

    flops = 4.0 * batch * heads * seq * seq * depth * (0.5 if causal else 1.0)
    moved = 2 * batch * heads * seq * depth
    facts = {"backend": name, "direction": direction, "causal": causal, "type": "bf16"}
    facts |= {"batch": batch, "heads": heads, "seq": seq, "depth": depth}
    back = direction == "backward"
    held = (12 if back else 4) * moved
    return Work(
        "attention", make, facts, flops * (2.5 if back else 1), (8 if back else 4) * moved, held=held, copies=0, most=20
    )
