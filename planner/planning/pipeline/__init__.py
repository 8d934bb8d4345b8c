"""A plan for one micro-batch cut into pipeline stages, each on a mesh of its own of the same shape."""

from planner.planning.pipeline.cut import crossing_bytes, cut_points, stage_of_operators
from planner.planning.pipeline.stages import Pipelined, global_batch, micro_batches, pipelined

__all__ = [
    "Pipelined",
    "crossing_bytes",
    "cut_points",
    "global_batch",
    "micro_batches",
    "pipelined",
    "stage_of_operators",
]
