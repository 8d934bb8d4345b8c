"""MindFormers (MindSpore Transformers): the sections of its YAML that say how a model is divided."""

from planner.emit.mindformers.emitter import emit_mindformers, untold

__all__ = ["emit_mindformers", "untold"]
