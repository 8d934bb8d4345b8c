"""Program → what one rank does and holds in a pass: kernels, transfers and bytes, by unit of the model; no seconds."""

from planner.trace.alone import kernels_alone
from planner.trace.count import trace, trace_levels
from planner.trace.lifetimes import Levels
from planner.trace.workload import Exchange, TracedCollective, Unit, Workload

__all__ = ["Exchange", "Levels", "TracedCollective", "Unit", "Workload", "kernels_alone", "trace", "trace_levels"]
