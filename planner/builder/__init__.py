"""Model graphs of any size without weights: sizes -> ONNX."""

from planner.builder.architectures import ARCHITECTURES, Architecture, build
from planner.builder.graph import GraphBuilder
from planner.builder.sizes import Sizes

__all__ = ["ARCHITECTURES", "Architecture", "GraphBuilder", "Sizes", "build"]
