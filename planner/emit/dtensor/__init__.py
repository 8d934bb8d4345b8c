"""PyTorch without us: a plan as DTensor placements by parameter name, and the module that applies it."""

from planner.emit.dtensor.emitter import emit_dtensor, unsupported

__all__ = ["emit_dtensor", "unsupported"]
