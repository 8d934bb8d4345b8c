"""A known parallel configuration priced on a graph, whatever its architecture.

`trace` counts what one rank does for a micro-batch (no machine), `predict` prices it (no graph).
"""

from planner.evaluate.configuration import Configuration
from planner.evaluate.predict import Prediction, predict
from planner.evaluate.trace import trace
from planner.evaluate.workload import Workload

__all__ = ["Configuration", "Prediction", "Workload", "predict", "trace"]
