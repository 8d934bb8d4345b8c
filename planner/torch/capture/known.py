"""Values that nothing fed or trained enters: they are computed once, when a module is captured.

Position ids, masks and rotary tables are made by dozens of operators from sizes alone.  What repeats along a dimension
is held once, so that a mask for a batch is no larger than a mask.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

__all__ = ["computed", "once"]

_MOST_ELEMENTS = 1 << 28


def computed(target: Any, arguments: Any, keywords: Any, results: tuple[Tensor, ...]) -> tuple[Tensor, ...] | None:
    """What the operator returns of known operands; None where that is drawn, or too large to be held."""
    tags = getattr(target, "tags", ())
    if torch.Tag.nondeterministic_seeded in tags or any(r.numel() > _MOST_ELEMENTS for r in results):
        return None
    # What repeats has other strides here than in the module.
    if target in (torch.ops.aten.view.default, torch.ops.aten._unsafe_view.default):
        target = torch.ops.aten.reshape.default
    with torch.no_grad():
        found = target(*arguments, **keywords)
    return tuple(once(f) for f in (found if isinstance(found, tuple | list) else (found,)))


def once(value: Tensor) -> Tensor:
    """Without what repeats."""
    for d in range(value.ndim):
        if value.shape[d] > 1:
            first = value.narrow(d, 0, 1)
            if value.stride(d) == 0 or bool((value == first).all()):
                value = first
    return value
