"""PyTorch: a module of Python that attaches the plan to the user's own network, which our runtime then trains."""

from planner.emit.torch.emitter import emit_torch, unsupported

__all__ = ["emit_torch", "unsupported"]
