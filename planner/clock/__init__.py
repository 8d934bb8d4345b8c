"""Program x machine -> when everything happens: the time a step takes."""

from planner.clock.bound import compute_bound, least_of_choice, overhead, step_bound
from planner.clock.configuration import Configuration
from planner.clock.costs import convert_cost, run_cost
from planner.clock.predict import Prediction, predict
from planner.clock.step import StepTimes, step_of
from planner.clock.timeline import Timeline, play, usual, workload_of_plan

__all__ = [
    "Configuration",
    "Prediction",
    "StepTimes",
    "Timeline",
    "compute_bound",
    "convert_cost",
    "least_of_choice",
    "overhead",
    "play",
    "predict",
    "run_cost",
    "step_bound",
    "step_of",
    "usual",
    "workload_of_plan",
]
