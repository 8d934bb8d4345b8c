"""HyperParallel: a ShardingPlan, the overrides of its planner, and the layouts that checkpoints are saved with."""

from planner.emit.hyper_parallel.emitter import emit_hyper_parallel, unsupported

__all__ = ["emit_hyper_parallel", "unsupported"]
