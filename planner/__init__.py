"""Graph-level auto-parallel planner: an ONNX graph in, a verified parallel strategy out."""

import os

# Read when ONNX Runtime is imported, which then sends nothing home.
os.environ["ORT_DISABLE_TELEMETRY"] = "1"

__version__ = "0.1.0"
