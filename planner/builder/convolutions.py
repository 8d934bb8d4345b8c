"""ResNet and a plain perceptron."""

from __future__ import annotations

import onnx

from planner.builder.graph import GraphBuilder
from planner.builder.sizes import Sizes
from planner.errors import UsageError

__all__ = ["mlp", "resnet"]

# Blocks per stage, and whether they are bottlenecks (He et al., "Deep Residual Learning", table 1).
STAGES = {
    18: ((2, 2, 2, 2), False),
    34: ((3, 4, 6, 3), False),
    50: ((3, 4, 6, 3), True),
    101: ((3, 4, 23, 3), True),
    152: ((3, 8, 36, 3), True),
}


def _conv(g: GraphBuilder, x: str, name: str, inner: int, outer: int, kernel: int, stride: int = 1) -> str:
    """Convolution and batch normalisation with running statistics."""
    pad = kernel // 2
    with g.scope(name):
        y = g.node(
            "Conv",
            x,
            g.parameter("weight", outer, inner, kernel, kernel),
            strides=[stride, stride],
            pads=[pad] * 4,
            kernel_shape=[kernel, kernel],
        )
        norm = [g.parameter(f"bn.{n}", outer) for n in ("weight", "bias", "running_mean", "running_var")]
        return str(g.node("BatchNormalization", y, *norm, epsilon=1e-5))


def _block(g: GraphBuilder, x: str, inner: int, width: int, stride: int, bottleneck: bool) -> tuple[str, int]:
    outer = 4 * width if bottleneck else width
    if bottleneck:
        y = g.node("Relu", _conv(g, x, "conv1", inner, width, 1))
        y = g.node("Relu", _conv(g, y, "conv2", width, width, 3, stride))
        y = _conv(g, y, "conv3", width, outer, 1)
    else:
        y = g.node("Relu", _conv(g, x, "conv1", inner, width, 3, stride))
        y = _conv(g, y, "conv2", width, outer, 3)
    if stride != 1 or inner != outer:
        x = _conv(g, x, "downsample", inner, outer, 1, stride)
    return g.node("Relu", g.node("Add", y, x)), outer


def resnet(s: Sizes) -> onnx.ModelProto:
    """ResNet of `layers` 18, 34, 50, 101 or 152; `hidden` is the width of the first stage."""
    if s.layers not in STAGES:
        raise UsageError(f"--layers {s.layers}: a resnet has one of {', '.join(map(str, STAGES))}")
    stages, bottleneck = STAGES[s.layers]
    g = GraphBuilder("resnet")
    pixels = g.input("pixel_values", [s.batch, 3, s.image, s.image])
    with g.scope("resnet"):
        x = g.node("Relu", _conv(g, pixels, "stem", 3, s.hidden, 7, 2))
        x = g.node("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
        inner = s.hidden
        for stage, blocks in enumerate(stages):
            for block in range(blocks):
                with g.scope("stages", stage, block):
                    stride = 2 if stage and not block else 1
                    x, inner = _block(g, x, inner, s.hidden << stage, stride, bottleneck)
        x = g.reshape(g.node("GlobalAveragePool", x), s.batch, inner)
        logits = g.linear(x, "classifier", inner, s.classes)
    return _classified(g, logits, s)


def mlp(s: Sizes) -> onnx.ModelProto:
    """`layers` products of `hidden` by `hidden` with ReLU between, and a classifier."""
    g = GraphBuilder("mlp")
    x = g.input("x", [s.batch, s.hidden])
    for i in range(s.layers):
        with g.scope("layers", i):
            x = g.node("Relu", g.linear(x, "fc", s.hidden, s.hidden))
    return _classified(g, g.linear(x, "classifier", s.hidden, s.classes), s)


def _classified(g: GraphBuilder, logits: str, s: Sizes) -> onnx.ModelProto:
    if s.loss:
        g.cross_entropy(logits, g.input("labels", [s.batch], integer=True), s.batch, s.classes)
    else:
        g.output(logits, [s.batch, s.classes])
    return g.model()
