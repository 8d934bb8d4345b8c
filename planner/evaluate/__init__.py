"""A known parallel configuration priced on a graph, whatever its architecture: the plan made of it, by the clock."""

from planner.clock import Configuration, Prediction, predict
from planner.evaluate.configured import (
    Prices,
    layout_of,
    program_of_configuration,
    traced_as,
    workload_of_configuration,
)

__all__ = [
    "Configuration",
    "Prediction",
    "Prices",
    "layout_of",
    "predict",
    "program_of_configuration",
    "traced_as",
    "workload_of_configuration",
]
