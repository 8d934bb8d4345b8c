"""Vision transformer: patches by convolution, a class token, pre-norm encoder."""

from __future__ import annotations

from dataclasses import dataclass

from planner.builder import layers as nn
from planner.builder.attention import self_attention
from planner.builder.graph import INT64, GraphBuilder
from planner.builder.sizes import Sizes, option, require_multiple

__all__ = ["VitSizes", "build_vit"]

EPSILON = 1e-6
CHANNELS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class VitSizes(Sizes):
    """ViT-B/16 for ImageNet where no option says otherwise: 86,567,656 parameters."""

    hidden: int = option(768, "width of the residual stream")
    heads: int = option(12, "number of attention heads")
    ffn: int | None = option(None, "width of the feed-forward layers; default: four times --hidden")
    image: int = option(224, "height and width of the image")
    patch: int = option(16, "height and width of a patch")
    classes: int = option(1000, "number of classes")

    @property
    def inner(self) -> int:
        return 4 * self.hidden if self.ffn is None else self.ffn

    @property
    def tokens(self) -> int:
        """Patches and the class token."""
        return (self.image // self.patch) ** 2 + 1

    def check(self) -> None:
        require_multiple("hidden", self.hidden, "heads", self.heads)
        require_multiple("image", self.image, "patch", self.patch)


def build_vit(g: GraphBuilder, sizes: VitSizes) -> None:
    """Inputs pixel_values (batch, 3, image, image) and labels (batch); output loss, or logits (batch, classes)."""
    width = sizes.hidden
    images = g.input("pixel_values", [sizes.batch, CHANNELS, sizes.image, sizes.image])
    with g.scope("patch_embed.proj", "Conv2d"):
        kernel, bias = g.parameter("weight", width, CHANNELS, sizes.patch, sizes.patch), g.parameter("bias", width)
        stride = [sizes.patch, sizes.patch]
        x = g.add("Conv", images, kernel, bias, kernel_shape=stride, strides=stride)
    x = g.add("Transpose", g.add("Reshape", x, g.constant([0, width, -1])), perm=[0, 2, 1])
    first = g.add("Expand", g.parameter("cls_token", 1, 1, width), g.constant([sizes.batch, 1, 1]))
    x = g.add("Concat", first, x, axis=1)
    x = g.add("Add", x, g.parameter("pos_embed", 1, sizes.tokens, width))
    for i in range(sizes.layers):
        with g.scope(f"blocks.{i}", "Block"):
            x = _block(g, x, sizes)
    x = nn.layer_norm(g, x, "norm", width, EPSILON)
    x = g.add("Gather", x, g.constant(0), axis=1)  # the class token
    logits = nn.linear(g, x, "head", width, sizes.classes)
    if sizes.inference:
        g.output(logits, "logits", [sizes.batch, sizes.classes])
    else:
        nn.cross_entropy(g, logits, g.input("labels", [sizes.batch], INT64))


def _block(g: GraphBuilder, x: str, sizes: VitSizes) -> str:
    width, depth = sizes.hidden, sizes.hidden // sizes.heads
    normed = nn.layer_norm(g, x, "norm1", width, EPSILON)
    with g.scope("attn", "Attention"):
        x = g.add("Add", x, self_attention(g, normed, "qkv", "proj", heads=sizes.heads, depth=depth))
    normed = nn.layer_norm(g, x, "norm2", width, EPSILON)
    with g.scope("mlp", "MLP"):
        return g.add("Add", x, nn.gelu_mlp(g, normed, "fc1", "fc2", width, sizes.inner))
