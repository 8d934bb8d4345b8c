"""A plan for one micro-batch cut into pipeline stages, each on a mesh of its own of the same shape."""

from planner.planning.pipeline.cut import crossing_bytes, cut_points, stage_of_operators
from planner.planning.pipeline.plan import Parts, global_batch, in_parts, plan_in_parts
from planner.planning.pipeline.stages import Pipelined, pipelined

__all__ = [
    "Parts",
    "Pipelined",
    "crossing_bytes",
    "cut_points",
    "global_batch",
    "in_parts",
    "pipelined",
    "plan_in_parts",
    "stage_of_operators",
]
