"""Attention: ONNX's own, those of ONNX Runtime, and FlexAttention."""
