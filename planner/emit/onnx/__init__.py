"""ONNX: a model with its standard multi-device annotations, a check of such annotations, and these read back; one graph
per rank, with collectives as operators (`ranks`)."""

from planner.emit.onnx.annotate import annotated, emit_onnx
from planner.emit.onnx.check import annotation_problems

__all__ = ["annotated", "annotation_problems", "emit_onnx"]
