"""MindFormers (MindSpore Transformers): the sections of its YAML that say how a model is divided."""

from planner.emit.mindformers.emitter import emit_mindformers, unsupported

__all__ = ["emit_mindformers", "unsupported"]
