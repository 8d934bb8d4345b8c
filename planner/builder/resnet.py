"""ResNet (He et al. 2015), version 1.5: the stride lies in a bottleneck's 3x3 convolution, as in torchvision.

Batch normalisation has its inference form: statistics are frozen, scale and bias are trained.
"""

from __future__ import annotations

from dataclasses import dataclass

from planner.builder import layers as nn
from planner.builder.graph import INT64, GraphBuilder
from planner.builder.sizes import Sizes, flag, option
from planner.errors import UsageError

__all__ = ["ResnetSizes", "build_resnet"]

# Layers → (blocks per stage, whether they are bottlenecks), table 1 of the paper.
STAGES = {
    18: ((2, 2, 2, 2), False),
    34: ((3, 4, 6, 3), False),
    50: ((3, 4, 6, 3), True),
    101: ((3, 4, 23, 3), True),
    152: ((3, 8, 36, 3), True),
}
CHANNELS = 3
EXPANSION = 4  # of a bottleneck's last convolution
EPSILON = 1e-5


@dataclass(frozen=True, slots=True, kw_only=True)
class ResnetSizes(Sizes):
    """ResNet-50 for ImageNet where no option says otherwise: 25,557,032 parameters."""

    layers: int = option(50, f"number of layers, one of {', '.join(map(str, STAGES))}")
    hidden: int = option(64, "channels of the first stage; each of the next three doubles them")
    image: int = option(224, "height and width of the image")
    classes: int = option(1000, "number of classes")

    def check(self) -> None:
        if self.layers not in STAGES:
            raise UsageError(f"{flag('layers')} {self.layers}: a ResNet has {', '.join(map(str, STAGES))} layers")


def build_resnet(g: GraphBuilder, sizes: ResnetSizes) -> None:
    """Inputs pixel_values (batch, 3, image, image) and labels (batch); output loss, or logits (batch, classes)."""
    stages, bottleneck = STAGES[sizes.layers]
    images = g.input("pixel_values", [sizes.batch, CHANNELS, sizes.image, sizes.image])
    x = _normed_conv(g, images, "conv1", "bn1", CHANNELS, sizes.hidden, 7, stride=2)
    x = g.add("MaxPool", g.add("Relu", x), kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
    channels = sizes.hidden
    for stage, count in enumerate(stages):
        width = sizes.hidden << stage
        outputs = width * EXPANSION if bottleneck else width
        for i in range(count):
            with g.scope(f"layer{stage + 1}.{i}", "Bottleneck" if bottleneck else "BasicBlock"):
                x = _block(g, x, channels, width, outputs, stride=2 if stage and not i else 1)
            channels = outputs
    x = g.add("Flatten", g.add("GlobalAveragePool", x), axis=1)
    with g.scope("fc", "Linear"):
        logits = g.add("Gemm", x, g.parameter("weight", channels, sizes.classes), g.parameter("bias", sizes.classes))
    if sizes.inference:
        g.output(logits, "logits", [sizes.batch, sizes.classes])
    else:
        nn.cross_entropy(g, logits, g.input("labels", [sizes.batch], INT64))


def _block(g: GraphBuilder, x: str, inputs: int, width: int, outputs: int, *, stride: int) -> str:
    """A basic block (width equals outputs) or a bottleneck, around a shortcut that is projected where shapes differ."""
    if width == outputs:
        y = g.add("Relu", _normed_conv(g, x, "conv1", "bn1", inputs, width, 3, stride=stride))
        y = _normed_conv(g, y, "conv2", "bn2", width, outputs, 3)
    else:
        y = g.add("Relu", _normed_conv(g, x, "conv1", "bn1", inputs, width, 1))
        y = g.add("Relu", _normed_conv(g, y, "conv2", "bn2", width, width, 3, stride=stride))
        y = _normed_conv(g, y, "conv3", "bn3", width, outputs, 1)
    if stride > 1 or inputs != outputs:
        x = _normed_conv(g, x, "downsample.0", "downsample.1", inputs, outputs, 1, stride=stride)
    return g.add("Relu", g.add("Add", y, x))


def _normed_conv(
    g: GraphBuilder, x: str, conv: str, norm: str, inputs: int, outputs: int, kernel: int, *, stride: int = 1
) -> str:
    """A convolution without bias that keeps the size (over the stride), and its batch normalisation."""
    with g.scope(conv, "Conv2d"):
        weight = g.parameter("weight", outputs, inputs, kernel, kernel)
        pads = [kernel // 2] * 4
        x = g.add("Conv", x, weight, kernel_shape=[kernel, kernel], strides=[stride, stride], pads=pads)
    with g.scope(norm, "BatchNorm2d"):
        operands = [g.parameter(n, outputs) for n in ("weight", "bias", "running_mean", "running_var")]
        return g.add("BatchNormalization", x, *operands, epsilon=EPSILON)
