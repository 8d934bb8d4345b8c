"""PyTorch: a plan by fully qualified parameter name, as DTensor placements, and the module that applies it."""

from planner.emit.torch.emitter import emit_torch, unsupported

__all__ = ["emit_torch", "unsupported"]
