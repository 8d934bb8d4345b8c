"""Graph-level auto-parallel planner: an ONNX graph in, a verified parallel strategy out."""

__version__ = "0.1.0"
