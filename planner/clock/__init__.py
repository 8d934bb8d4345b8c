"""Program x machine -> when everything happens: the time a step takes."""

from planner.clock.bound import compute_bound, overhead, step_bound
from planner.clock.configuration import Configuration
from planner.clock.costs import convert_cost, run_cost
from planner.clock.predict import Prediction, predict
from planner.clock.step import Timeline, play

__all__ = [
    "Configuration",
    "Prediction",
    "Timeline",
    "compute_bound",
    "convert_cost",
    "overhead",
    "play",
    "predict",
    "run_cost",
    "step_bound",
]
