"""Checks of values, `assert (x > 0).all()` or `if ids.max() >= n: raise IndexError(…)`, left out of a step.

torch.export has no numbers, and cannot say which way such a branch goes.  Where one way of it does nothing but raise,
warn or print, what a step computes lies on the other way alone, and that is followed.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, Final

import torch
from torch._subclasses.fake_tensor import DataDependentOutputException
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode
from torch.overrides import TorchFunctionMode

from planner.torch.capture.branches import OURS, TORCH, may_be_caught, way_that_goes_on

__all__ = ["checks_left_out"]

_UNKNOWN: Final = (DataDependentOutputException, GuardOnDataDependentSymNode)
_TRUTHS: Final = frozenset({"__bool__", "__contains__", "is_nonzero"})
_EQUAL: Final = frozenset({"allclose", "equal"})  # which torch.export writes down before it stops at them
_HANDS_ON: Final = frozenset({"__bool__", "__contains__", "__torch_function__", "handle_torch_function"})
_LOG: Final = "torch.fx.experimental.symbolic_shapes"  # which warns of every truth that has no number


@contextmanager
def checks_left_out(places: list[str]) -> Iterator[None]:
    """Inside, a branch whose condition has no numbers goes the way that does not raise; `places` gets its lines."""
    log, of_truths = logging.getLogger(_LOG), torch.SymBool.__bool__
    level = log.level

    def truth(number: torch.SymBool) -> bool:
        try:
            return of_truths(number)
        except _UNKNOWN:
            way = _way(places)
            if way is None:
                raise
            return way

    log.setLevel(logging.ERROR)
    torch.SymBool.__bool__ = truth  # type: ignore[method-assign, unused-ignore]
    try:
        with _Truths(places):
            yield
    finally:
        torch.SymBool.__bool__ = of_truths  # type: ignore[method-assign, unused-ignore]
        log.setLevel(level)


class _Truths(TorchFunctionMode):
    """What asks a tensor for a truth."""

    def __init__(self, places: list[str]) -> None:
        super().__init__()
        self.places = places

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        if func is torch._assert:
            return self._asserted(*args, **(kwargs or {}))
        if name in _EQUAL and (way := _way(self.places)) is not None:
            return way
        try:
            return func(*args, **(kwargs or {}))
        except _UNKNOWN:
            if name not in _TRUTHS or (way := _way(self.places)) is None:
                raise
            return way

    def _asserted(self, condition: Any, message: Any) -> None:
        try:
            torch._assert(condition, message)
        except _UNKNOWN:
            frame = _asking(sys._getframe(1))
            while frame is not None and frame.f_code is torch._assert.__code__:
                frame = frame.f_back
            asking = _asking(frame)
            if may_be_caught(AssertionError, asking, OURS):
                raise
            _note(self.places, asking)


def _way(places: list[str]) -> bool | None:
    """The truth with which the branch that asks for it goes on; None where it is no check."""
    frame = _asking(sys._getframe(1))
    truth = None if frame is None else way_that_goes_on(frame)
    if truth is not None:
        _note(places, frame)
    return truth


def _note(places: list[str], frame: FrameType | None) -> None:
    if frame is not None and (place := f"{frame.f_code.co_filename}:{frame.f_lineno}") not in places:
        places.append(place)


def _asking(frame: FrameType | None) -> FrameType | None:
    """The frame whose code asks: not ours, nor what hands calls on to the modes of torch."""
    while frame is not None:
        code = frame.f_code
        hands_on = code.co_name in _HANDS_ON and code.co_filename.startswith(TORCH)
        if not code.co_filename.startswith(OURS) and not hands_on:
            return frame
        frame = frame.f_back
    return None
