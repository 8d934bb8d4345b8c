"""Program → what one rank does in a pass: kernels, transfers and bytes, by unit of the model; no seconds."""

from planner.trace.count import trace
from planner.trace.workload import Exchange, Transfer, Unit, Workload

__all__ = ["Exchange", "Transfer", "Unit", "Workload", "trace"]
