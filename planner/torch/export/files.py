"""A step of a module as an ONNX model without weights.

The planner's own capture comes first: it is what `planner.torch.plan` plans, so that one file serves both, and it keeps
attention, norms and losses as one operator each.  PyTorch's exporter stands in where an operator has no translation
there, and for what the capture has no notion of: symbolic dimensions and other operator sets.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from torch import nn

from planner.errors import InputError
from planner.torch.capture import capture
from planner.torch.capture.captured import NoTranslationError
from planner.torch.export.onnx_exporter import exported_by_torch, is_installed

__all__ = ["Exporter", "Written", "written"]

Exporter = Literal["planner", "onnx"]


@dataclass(frozen=True)
class Written:
    """`reason`: why PyTorch's exporter wrote it where nobody asked for that."""

    data: bytes
    exporter: Exporter
    reason: str = ""


def written(
    module: nn.Module,
    inputs: Sequence[Any],
    kwargs: Mapping[str, Any],
    targets: Sequence[Any],
    loss: Any,
    *,
    exporter: Exporter | None = None,
    opset: int | None = None,
    dynamic: Mapping[tuple[str, int], str] | None = None,
) -> Written:
    """By the exporter that is named, or that can.  InputError where none can; the operator is named."""
    if exporter is None and (opset is not None or dynamic):
        exporter = "onnx"
    if exporter != "onnx":
        try:
            return Written(capture(module, inputs, kwargs, targets, loss).model, "planner")
        except NoTranslationError as error:
            if exporter is not None:
                raise
            if not is_installed():
                raise InputError(
                    f"{error}; or install PyTorch's exporter, which may know it: pip install 'graph-planner[export]'"
                ) from error
            reason = f"the planner's own has no translation of {error.operator}"
            return Written(exported_by_torch(module, inputs, kwargs, targets, loss), "onnx", reason)
    data = exported_by_torch(module, inputs, kwargs, targets, loss, opset=opset, dynamic=dynamic)
    return Written(data, "onnx")
