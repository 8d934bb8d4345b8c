"""Program → what one rank does and holds in a pass: kernels, transfers and bytes, by unit of the model; no seconds."""

from planner.trace.alone import kernels_alone
from planner.trace.count import trace, trace_levels
from planner.trace.exchanges import ExchangeCounts, ExchangeKey, Exchanges, WeightMove, weight_moves
from planner.trace.facts import facts_of
from planner.trace.lifetimes import Levels
from planner.trace.workload import Exchange, TracedCollective, Unit, Workload

__all__ = [
    "Exchange",
    "ExchangeCounts",
    "ExchangeKey",
    "Exchanges",
    "Levels",
    "TracedCollective",
    "Unit",
    "WeightMove",
    "Workload",
    "facts_of",
    "kernels_alone",
    "trace",
    "trace_levels",
    "weight_moves",
]
