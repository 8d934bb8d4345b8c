"""Lanes: how long a task is likely to take, guessed when it comes, decides what it waits with.

The server reads no model, so that the guess goes by the size of the file without weights.  A guess that is too low
costs little: a task that outstays the lanes of short work goes on with the long ones (`rotation`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

__all__ = ["INTERACTIVE", "LANES", "LARGE", "LIGHT", "SMALL", "expected_s", "lane_of"]

INTERACTIVE: Final = 0  # a person waits
SMALL: Final = 1  # it is likely to end within seconds
LARGE: Final = 2
LIGHT: Final = (INTERACTIVE, SMALL)  # the lanes of short work
LANES: Final = (*LIGHT, LARGE)

SHORT_S: Final = 8.0  # of processor time, up to which work is short
# Seconds of processor time by kilobyte of graph, of the sample graphs on meshes of up to two axes (1 to 3 s each).
LEAST_S: Final = 0.5
SEARCH_S_A_KB: Final = 0.04
EVALUATION_S_A_KB: Final = 0.03
AXIS: Final = 8.0  # times as many strategies of an operator for each axis above two
WHOLE: Final = 3.0  # pipelines and uniform configurations beside the search of operators
USUAL_DEVICES: Final = 16


def lane_of(kind: str, options: Mapping[str, Any], size: int) -> int:
    """`size`: bytes of all inputs."""
    if kind in ("artifact", "diff", "transfer") and options.get("name") != "explain.json":
        return INTERACTIVE
    return SMALL if expected_s(kind, options, size) <= SHORT_S else LARGE


def expected_s(kind: str, options: Mapping[str, Any], size: int) -> float:
    """Processor time that the task is likely to take."""
    kilobytes = size / 1000
    match kind:
        case "plan":
            limit = options.get("time_limit")
            found = (LEAST_S + kilobytes * SEARCH_S_A_KB) * _breadth(options)
            return found if limit is None else min(found, float(limit))
        case "evaluation":
            return LEAST_S + kilobytes * EVALUATION_S_A_KB
        case "explanation" | "artifact":  # one search, and one more for each alternative
            return (LEAST_S + kilobytes * SEARCH_S_A_KB) * (1 + int(options.get("alternatives", 3)))
        case _:
            return 0.0


def _breadth(options: Mapping[str, Any]) -> float:
    """How many times as much there is to search as on a usual mesh."""
    mesh = options.get("mesh")
    if mesh is None:
        devices = max(2, int(options.get("devices", USUAL_DEVICES)))
        found = max(1.0, math.log2(devices) / math.log2(USUAL_DEVICES))  # as many meshes
    else:
        found = AXIS ** max(0, str(mesh).count("x") - 1)
    stages = int(options.get("stages", 1)) > 1 or options.get("space") == "whole" or options.get("strategy") is not None
    return found * (WHOLE if stages else 1.0)
