"""Sampling of a grid by torch's own operator, which says the same of places, padding and corners."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional as F

from planner.runtime.registry import Call, operator

__all__: list[str] = []

_MODES = {"linear": "bilinear", "bilinear": "bilinear", "nearest": "nearest", "cubic": "bicubic", "bicubic": "bicubic"}


@operator("GridSample")
def _grid_sample(c: Call) -> Tensor | None:
    """Torch samples images and volumes, cubically images alone."""
    mode, rank = _MODES[c.attr("mode", "linear")], c.x.ndim - 2
    if not c.x.is_floating_point() or rank not in (2, 3) or (mode == "bicubic" and rank == 3):
        return None
    padding, corners = c.attr("padding_mode", "zeros"), bool(c.attr("align_corners", 0))
    return F.grid_sample(c.x, c.inputs[1], mode=mode, padding_mode=padding, align_corners=corners)
