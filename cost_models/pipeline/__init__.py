"""One training step of a pipeline, and what gathers and sums beside it: plain numbers in, seconds and bytes out.

- `chunk`: what one virtual stage costs per micro-batch
- `orders`: the order of passes of each schedule
- `dependencies`: what each pass waits for, and what is in flight
- `longest`: the longest path through the passes, by the kernels in use
- `simulate`: seconds, bubbles, memory and timeline of a step
- `overlap`: gradient sums beside the backward pass, gathering of parameters beside computing
"""

from __future__ import annotations

from .chunk import ChunkTimes
from .dependencies import dependencies
from .orders import (
    SCHEDULES,
    Schedule,
    chunks_of_schedule,
    device_order,
    holders_of_chunks,
    interleaved_group,
    is_split,
    stage_numbers,
)
from .overlap import (
    GradientBucket,
    OverlapRun,
    gradient_buckets,
    gradient_sync,
    zero3_backward,
    zero3_forward,
)
from .run import Pass, PipelineCost, PipelineRun, Timeline
from .simulate import longest_path, pipeline_seconds, simulate

__all__ = [
    "SCHEDULES",
    "ChunkTimes",
    "GradientBucket",
    "OverlapRun",
    "Pass",
    "PipelineCost",
    "PipelineRun",
    "Schedule",
    "Timeline",
    "chunks_of_schedule",
    "dependencies",
    "device_order",
    "gradient_buckets",
    "gradient_sync",
    "holders_of_chunks",
    "interleaved_group",
    "is_split",
    "longest_path",
    "pipeline_seconds",
    "simulate",
    "stage_numbers",
    "zero3_backward",
    "zero3_forward",
]
