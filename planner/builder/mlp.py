"""A perceptron: the smallest graph that has data, tensor and optimizer parallelism to find."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

from planner.builder import layers as nn
from planner.builder.graph import INT64, GraphBuilder
from planner.builder.sizes import MAX_LAYERS, Sizes, option

__all__ = ["MlpSizes", "build_mlp"]


@dataclass(frozen=True, slots=True, kw_only=True)
class MlpSizes(Sizes):
    """`layers` linear layers with a ReLU between them."""

    layers: int = option(4, "number of linear layers", most=MAX_LAYERS)
    features: int = option(1024, "width of the input")
    hidden: int = option(4096, "width between layers")
    classes: int = option(1000, "number of classes")


def build_mlp(g: GraphBuilder, sizes: MlpSizes) -> None:
    """Inputs features (batch, features) and labels (batch); output loss, or logits (batch, classes) for inference."""
    x = g.input("features", [sizes.batch, sizes.features])
    widths = [sizes.features, *[sizes.hidden] * (sizes.layers - 1), sizes.classes]
    for i, (inputs, outputs) in enumerate(itertools.pairwise(widths)):
        x = nn.linear(g, g.add("Relu", x) if i else x, f"layers.{i}", inputs, outputs)
    if sizes.inference:
        g.output(x, "logits", [sizes.batch, sizes.classes])
    else:
        nn.cross_entropy(g, x, g.input("labels", [sizes.batch], INT64))
