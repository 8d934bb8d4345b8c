"""A step of a module as an ONNX model without weights.

The planner's own capture comes first: it is what `planner.torch.plan` plans, so that one file serves both, and it keeps
attention, norms and losses as one operator each.  PyTorch's exporter stands in where an operator has no translation
there, and for what the capture has no notion of: symbolic dimensions and other operator sets.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import onnx
import torch
from torch import nn

from planner.errors import InputError, PlannerError
from planner.frontends.facts.stated import LOSS_KEY
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
    mode_by_loss: bool = False,
) -> Written:
    """By the exporter that is named, or that can.  InputError where none can; the operator is named.

    With `mode_by_loss`, a module that turns out to return its loss is put in training mode and exported so.
    """
    given = (module, inputs, kwargs, targets, loss, exporter, opset, dynamic)
    try:
        with _no_logs(), torch.device("cpu"):  # the user's code may have chosen another device for new tensors
            found = _written(*given)
            if mode_by_loss and not module.training and _has_loss(found.data):
                module.train()
                return _written(*given)
            return found
    except PlannerError:
        raise
    except Exception as error:  # of PyTorch, on what nobody has tried
        raise InputError(
            f"{type(module).__name__}: the export failed with {type(error).__name__}: "
            f"{' '.join(str(error).split())[:300]}; try --exporter onnx, or replace what the error names"
        ) from error


@contextmanager
def _no_logs() -> Iterator[None]:
    """PyTorch and its exporter log what they try in vain, with tracebacks; what counts is raised."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(before)


def _has_loss(data: bytes) -> bool:
    return any(p.key == LOSS_KEY for p in onnx.ModelProto.FromString(data).metadata_props)


def _written(
    module: nn.Module,
    inputs: Sequence[Any],
    kwargs: Mapping[str, Any],
    targets: Sequence[Any],
    loss: Any,
    exporter: Exporter | None,
    opset: int | None,
    dynamic: Mapping[tuple[str, int], str] | None,
) -> Written:
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
                    f"{error}; or install PyTorch's exporter, which may know it: pip install '.[export]' in the "
                    "repository"
                ) from error
            reason = f"the planner's own has no translation of {error.operator}"
            return Written(exported_by_torch(module, inputs, kwargs, targets, loss), "onnx", reason)
    data = exported_by_torch(module, inputs, kwargs, targets, loss, opset=opset, dynamic=dynamic)
    return Written(data, "onnx")
