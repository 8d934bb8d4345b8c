"""ONNX: a model with its standard multi-device annotations, and a check of such annotations."""

from planner.emit.onnx.annotate import annotated, emit_onnx
from planner.emit.onnx.check import annotation_problems

__all__ = ["annotated", "annotation_problems", "emit_onnx"]
