"""MindSpore: strategy files, rank tables, launch scripts, and the module that applies a plan to a network."""

from planner.emit.mindspore.emitter import emit_mindspore, unsupported
from planner.emit.mindspore.parameter_names import check_parameter_names
from planner.emit.mindspore.rank_table import read_rank_table
from planner.emit.mindspore.strategy_map import read_strategy_map

__all__ = ["check_parameter_names", "emit_mindspore", "read_rank_table", "read_strategy_map", "unsupported"]
