"""Operators along a dimension, of tensors that have none.

PyTorch takes such a tensor for a vector of one element; ONNX does not.
"""

from __future__ import annotations

import functools
from typing import Any

from planner.torch.capture.registry import Translator
from planner.torch.capture.writer import Value, Writer

__all__ = ["as_vectors"]


def as_vectors(translate: Translator) -> Translator:
    """The translator, given vectors of one element for tensors without dimensions."""

    def wide(w: Writer, x: Any) -> Any:
        none = isinstance(x, Value) and not x.rank
        return w.op("Unsqueeze", x, w.integers([0]), shape=[1]) if none else x

    def narrow(w: Writer, x: Value, wanted: tuple[int, ...]) -> Value:
        return x if x.rank == len(wanted) else w.op("Squeeze", x, w.integers([0]), shape=wanted)

    @functools.wraps(translate)
    def translated(w: Writer, *operands: Any, **named: Any) -> Any:
        given, by_name = [wide(w, x) for x in operands], {k: wide(w, x) for k, x in named.items()}
        found = translate(w, *given, **by_name)
        if all(x is y for x, y in zip((*given, *by_name.values()), (*operands, *named.values()), strict=True)):
            return found  # of another shape than the operator's, where its translator calls this one
        if isinstance(found, Value):
            return narrow(w, found, w.result_shape())
        return tuple(narrow(w, x, s) for x, s in zip(found, w.result_shapes(), strict=True))

    return translated
