"""Program x machine -> when everything happens: the time a step takes."""

from planner.clock.bound import compute_bound, least_of_choice, overhead, step_bound
from planner.clock.configuration import CONTEXTS, Configuration, Context
from planner.clock.costs import redistribution_cost, run_cost
from planner.clock.measured import extrapolated
from planner.clock.memory import Held, held_by_rank
from planner.clock.mixed import MixedPrediction, predict_mixed
from planner.clock.predict import Prediction, device_for, interval, predict, seconds_in_sequence
from planner.clock.relaxation import Relaxation, Weights, busy, held_up, relaxation, rounding, started
from planner.clock.step import StepTimes, step_of
from planner.clock.timeline import Timeline, held_of_plan, levels_of_plan, play, usual, workload_of_plan

__all__ = [
    "CONTEXTS",
    "Configuration",
    "Context",
    "Held",
    "MixedPrediction",
    "Prediction",
    "Relaxation",
    "StepTimes",
    "Timeline",
    "Weights",
    "busy",
    "compute_bound",
    "device_for",
    "extrapolated",
    "held_by_rank",
    "held_of_plan",
    "held_up",
    "interval",
    "least_of_choice",
    "levels_of_plan",
    "overhead",
    "play",
    "predict",
    "predict_mixed",
    "redistribution_cost",
    "relaxation",
    "rounding",
    "run_cost",
    "seconds_in_sequence",
    "started",
    "step_bound",
    "step_of",
    "usual",
    "workload_of_plan",
]
