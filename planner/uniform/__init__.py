"""Uniform configurations: DP x CP x TP x PP, micro-batches, ZeRO, recomputation and schedule, the same for all layers;
all of them that there are for a job, which is the fastest that fits, and what single changes make of it."""

from planner.uniform.best import best_of
from planner.uniform.found import Found, Scored
from planner.uniform.front import time_memory_front
from planner.uniform.proof import Proven, prove
from planner.uniform.refine import refined
from planner.uniform.sample import Sample
from planner.uniform.space import Space, configurations

__all__ = [
    "Found",
    "Proven",
    "Sample",
    "Scored",
    "Space",
    "best_of",
    "configurations",
    "prove",
    "refined",
    "time_memory_front",
]
