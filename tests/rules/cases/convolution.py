"""Small operators of one family: convolution."""

from __future__ import annotations

from collections.abc import Iterator

from tests.rules.cases.values import f
from tests.rules.prover import Case, case

__all__ = ["convolutions"]


def convolutions() -> Iterator[Case]:
    pads = (1, 1, 1, 1)
    yield case("Conv", [f(6, 4, 5, 5), f(12, 4, 3, 3), f(12)], pads=pads, strides=(2, 2))
    yield case("Conv", [f(6, 4, 6, 4), f(12, 4, 1, 1), f(12)])
    yield case("Conv", [f(2, 3, 12, 8), f(12, 3, 2, 2), f(12)], strides=(2, 2))
    yield case("Conv", [f(2, 4, 9), f(6, 4, 3), f(6)], dilations=(2,))
    yield case("Conv", [f(2, 12, 5, 5), f(12, 1, 3, 3), f(12)], group=12, pads=pads)
    yield case("Conv", [f(2, 12, 5, 5), f(24, 2, 3, 3), f(24)], group=6, pads=pads)
    yield case("Conv", [f(2, 8, 5, 5), f(8, 4, 3, 3)], group=2, auto_pad="SAME_UPPER")
    # Space with a halo: the common windows of image models, odd ones, and what lies off the border.
    yield case("Conv", [f(2, 2, 12, 12), f(4, 2, 3, 3), f(4)], pads=pads)
    yield case("Conv", [f(2, 3, 24, 24), f(4, 3, 7, 7), f(4)], pads=(3, 3, 3, 3), strides=(2, 2))
    yield case("Conv", [f(2, 2, 12, 8), f(4, 2, 3, 3)], pads=pads, strides=(2, 2))
    yield case("Conv", [f(2, 2, 12, 8), f(4, 2, 1, 1)], strides=(2, 2))
    yield case("Conv", [f(1, 2, 12, 6), f(4, 2, 3, 3)])
    yield case("Conv", [f(1, 4, 12, 12), f(6, 2, 3, 2)], group=2, strides=(1, 2), pads=(2, 0, 0, 2), dilations=(1, 2))
    yield case("Conv", [f(1, 2, 12, 24), f(2, 2, 3, 5)], auto_pad="SAME_UPPER")
    yield case("Conv", [f(1, 2, 12, 24), f(2, 2, 4, 2)], strides=(2, 3), auto_pad="SAME_LOWER")
    yield case("Conv", [f(1, 2, 13, 25), f(2, 2, 2, 2)], auto_pad="VALID")
    yield case("Conv", [f(2, 2, 24), f(4, 2, 5), f(4)], pads=(4, 0))
    yield case("Conv", [f(2, 2, 48), f(4, 2, 4), f(4)], pads=(1, 1), strides=(4,))
    yield case("Conv", [f(1, 2, 6, 6, 6), f(2, 2, 3, 3, 3), f(2)], pads=(1,) * 6)
    yield case("Conv", [f(1, 2, 4, 6, 6), f(2, 2, 2, 3, 3)], pads=(0, 1, 1, 0, 1, 1), strides=(2, 1, 1))
    yield case("Conv", [f(2, 2, 12, 4).astype("float16"), f(4, 2, 3, 3).astype("float16")], pads=pads)
    fused = {"opset": 1, "kernel_shape": (3, 3), "pads": pads}
    yield case("com.microsoft::FusedConv", [f(2, 4, 12, 8), f(6, 4, 3, 3), f(6)], activation="Relu", **fused)
    yield case("com.microsoft::FusedConv", [f(2, 4, 12, 8), f(6, 2, 3, 3), f(6), f(2, 6, 12, 8)], activation="Relu",
               group=2, **fused)  # fmt: skip
    yield case("com.microsoft::FusedConv", [f(2, 4, 12, 8), f(6, 4, 3, 3)], activation="LeakyRelu",
               activation_params=(0.2,), strides=(2, 2), **fused)  # fmt: skip
    yield from _transposed()


def _transposed() -> Iterator[Case]:
    pads = (1, 1, 1, 1)
    yield case("ConvTranspose", [f(2, 4, 6, 4), f(4, 6, 2, 2), f(6)], strides=(2, 2))
    yield case("ConvTranspose", [f(2, 4, 5, 5), f(4, 6, 3, 3), f(6)], strides=(2, 2))
    yield case("ConvTranspose", [f(2, 12, 5, 5), f(12, 2, 3, 3), f(12)], group=6)
    yield case("ConvTranspose", [f(2, 2, 6, 6), f(2, 4, 4, 4), f(4)], strides=(2, 2), pads=pads)
    yield case("ConvTranspose", [f(2, 2, 6, 6), f(2, 4, 3, 3), f(4)], strides=(2, 2), pads=pads, output_padding=(1, 1))
    yield case("ConvTranspose", [f(2, 2, 6, 6), f(2, 4, 3, 3)], strides=(2, 2), auto_pad="SAME_UPPER")
    yield case("ConvTranspose", [f(2, 2, 6, 4), f(2, 4, 4, 3)], strides=(2, 3), auto_pad="SAME_LOWER")
    yield case("ConvTranspose", [f(1, 4, 6, 4), f(4, 2, 3, 3), f(4)], group=2, pads=pads, dilations=(1, 1))
    yield case("ConvTranspose", [f(1, 2, 6, 4), f(2, 4, 3, 2), f(4)], strides=(3, 2), output_shape=(18, 8))
    yield case("ConvTranspose", [f(1, 2, 12), f(2, 4, 2), f(4)], strides=(3,), output_padding=(1,))
    yield case("ConvTranspose", [f(1, 2, 12), f(2, 4, 3), f(4)], dilations=(2,), pads=(2, 2))
    yield case("ConvTranspose", [f(1, 2, 4, 4, 4), f(2, 2, 4, 4, 4)], strides=(2, 2, 2), pads=(1,) * 6)
