"""Program x machine -> when everything happens: the time a step takes."""

from planner.clock.bound import compute_bound, overhead, step_bound
from planner.clock.costs import convert_cost, run_cost
from planner.clock.step import Timeline, play

__all__ = ["Timeline", "compute_bound", "convert_cost", "overhead", "play", "run_cost", "step_bound"]
