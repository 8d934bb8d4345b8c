"""The convolutions of Alpa's tests (test_conv.py), channels before space; padding "SAME" puts the odd row last."""

from __future__ import annotations

from planner.builder.graph import GraphBuilder
from planner.ir import Graph
from tests.unit.alpa_graphs import squared_error

__all__ = ["convolutions", "depthwise"]


def convolutions(layers: int, batch: int, image: int, channels: int) -> Graph:
    """Convolution without bias at stride 2, batch normalisation, ReLU, maximum of 2x2 at stride 1."""
    g = GraphBuilder("conv")
    x = g.input("x", [batch, channels, image, image])
    for i in range(layers):
        x = _convolution(g, x, f"Conv_{i}", channels, channels, stride=2)
        x = g.add("Relu", _batch_norm(g, x, f"BatchNorm_{i}", channels))
        x = g.add("MaxPool", x, kernel_shape=[2, 2], strides=[1, 1], auto_pad="SAME_UPPER")
    side = image >> layers
    return squared_error(g, x, [batch, channels, side, side])


def depthwise(batch: int, image: int, channels: int) -> Graph:
    """Eight times as many channels, a convolution of each by itself, and back."""
    g = GraphBuilder("depthwise")
    wide = 8 * channels
    x = g.input("x", [batch, channels, image, image])
    x = _convolution(g, x, "Conv_0", channels, wide)
    x = _convolution(g, x, "Conv_1", wide, wide, group=wide)
    x = g.add("Relu", _convolution(g, x, "Conv_2", wide, channels))
    return squared_error(g, _batch_norm(g, x, "BatchNorm_0", channels), [batch, channels, image, image])


def _convolution(
    g: GraphBuilder, x: str, name: str, inputs: int, outputs: int, *, stride: int = 1, group: int = 1
) -> str:
    with g.scope(name, "Conv"):
        weight = g.parameter("weight", outputs, inputs // group, 3, 3)
        return g.add("Conv", x, weight, kernel_shape=[3, 3], strides=[stride] * 2, group=group, auto_pad="SAME_UPPER")


def _batch_norm(g: GraphBuilder, x: str, name: str, channels: int) -> str:
    """Of the batch at hand; running statistics are kept aside and cost nothing here."""
    with g.scope(name, "BatchNorm"):
        scale, bias = g.parameter("scale", channels), g.parameter("bias", channels)
        kept = [g.input(f"{name}.{which}", [channels]) for which in ("mean", "variance")]
        return g.add_many("BatchNormalization", 3, x, scale, bias, *kept, training_mode=1)[0]
