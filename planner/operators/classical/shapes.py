"""Shapes of what classical models give, where ONNX does not say."""

from __future__ import annotations

from planner.frontends.facts.shapes import Inferred, Operands, infers, shape_of
from planner.ir import Op

__all__: list[str] = []


@infers("ai.onnx.ml::LinearClassifier")
def _linear_classifier(op: Op, operands: Operands) -> list[Inferred]:
    x = operands[0]
    if x is None or not x.shape:
        return [(None, None)] * 2
    labels = op.attributes.get("classlabels_ints")
    strings = op.attributes.get("classlabels_strings")
    scores = max(len(op.attributes.get("intercepts", ())), len(labels or strings or ()))
    return [("int64" if labels else "string", (x.shape[0],)), ("float32", (x.shape[0], scores))]


@infers("ai.onnx.ml::Normalizer")
def _normalizer(op: Op, operands: Operands) -> list[Inferred]:
    return [("float32", shape_of(operands, 0))]
