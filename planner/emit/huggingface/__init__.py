"""Hugging Face transformers: a plan as a DistributedConfig, and such a file read back."""

from planner.emit.huggingface.emitter import emit_huggingface, unsupported

__all__ = ["emit_huggingface", "unsupported"]
