"""Lines of the user's code, for messages: those that are neither PyTorch's nor ours."""

from __future__ import annotations

import os
import re
import traceback
from collections.abc import Sequence
from pathlib import Path

import torch
from torch.fx import Node

import planner

__all__ = ["place_of_frames", "place_of_node"]

_OTHERS = (str(Path(torch.__file__).parent) + os.sep, str(Path(planner.__file__).parent) + os.sep, "<")
_LINE = re.compile(r'File "(.+)", line (\d+)')


def place_of_frames(frames: Sequence[traceback.FrameSummary]) -> str:
    """` (file:line)` of the innermost frame of the user's; nothing where there is none."""
    own = [f for f in frames if not f.filename.startswith(_OTHERS)]
    return f" ({own[-1].filename}:{own[-1].lineno})" if own else ""


def place_of_node(node: Node) -> str:
    """The same of what torch.export has written down of a node."""
    found = [f for f in _LINE.findall(str(node.meta.get("stack_trace") or "")) if not f[0].startswith(_OTHERS)]
    return f" ({found[-1][0]}:{found[-1][1]})" if found else ""
