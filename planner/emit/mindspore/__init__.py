"""MindSpore: strategy files, rank tables, launch scripts, and the module that applies a plan to a network.

Names are loaded when they are first used: strategy files are read for checkpoints, too, without the rest.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from planner.emit.mindspore.emitter import emit_mindspore, unsupported
    from planner.emit.mindspore.parameter_names import check_parameter_names
    from planner.emit.mindspore.rank_table import read_rank_table
    from planner.emit.mindspore.strategy_map import read_strategy_map

__all__ = ["check_parameter_names", "emit_mindspore", "read_rank_table", "read_strategy_map", "unsupported"]

_HOME: Final = {
    "check_parameter_names": "parameter_names", "emit_mindspore": "emitter", "read_rank_table": "rank_table",
    "read_strategy_map": "strategy_map", "unsupported": "emitter",
}  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
