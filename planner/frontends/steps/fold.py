"""Constant folding of one operator: small known operands → small known results.

ONNX's own reference implementation computes them, so no operator is written twice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, Generic, TypeVar

import numpy as np
import onnx
from onnx import helper

from planner.frontends.facts.chance import is_drawn
from planner.frontends.file.dtypes import content_of
from planner.frontends.file.nodes import node_of
from planner.frontends.steps.draft import CONTROL_FLOW, split_type
from planner.ir import Op

__all__ = ["FOLDED_BYTES", "fold", "fold_shape"]

FOLDED_BYTES = 64 * 1024
_REMEMBERED_BYTES = 4096  # of operands and results, up to which these are remembered

# With sub-graphs, or drawn in training; never folded, as what is always drawn.
_NEVER = CONTROL_FLOW | {"Dropout"}

Array = np.ndarray[Any, Any]
_Run = tuple[Op, tuple[str, ...], Mapping[str, Array]]  # with the results that are wanted, and the operands
_Held = TypeVar("_Held")


def fold_shape(op: Op, shape: Sequence[int]) -> Array:
    """Result of Shape or Size on a tensor of known shape."""
    if op.type == "Size":
        return np.array(int(np.prod(shape, dtype=np.int64)), dtype=np.int64)
    start, end = op.attributes.get("start", 0), op.attributes.get("end", len(shape))
    return np.array(tuple(shape)[slice(start, end)], dtype=np.int64)


def fold(op: Op, values: Mapping[str, Array], bytes_out: int) -> dict[str, Array] | None:
    """Values of all outputs, or None where the operator cannot or should not be computed now.

    `bytes_out` is the size of the results as inferred; above FOLDED_BYTES nothing is computed.
    """
    domain, name = split_type(op.type)
    if (
        domain
        or name in _NEVER
        or is_drawn(name)
        or bytes_out > FOLDED_BYTES
        or not all(t in values for t in op.inputs if t)
    ):
        return None
    if not onnx.defs.has(name, op.opset, ""):
        return None
    wanted = [o for o in op.outputs if o]
    plain, names = _renamed(op)
    feeds = {names[t]: values[t] for t in op.inputs if t}
    run = _Boxed[_Run]((plain, tuple(names[o] for o in wanted), feeds))
    small = bytes_out + sum(v.nbytes for v in feeds.values()) <= _REMEMBERED_BYTES
    if small:
        content = tuple((name, content_of(value)) for name, value in feeds.items())
        arrays = _folded(_key(plain), run, content)
    else:
        arrays = _results(_key(plain), run)
    return None if arrays is None else dict(zip(wanted, arrays, strict=True))


@lru_cache(maxsize=8192)
def _folded(key: str, run: _Boxed[_Run], content: tuple[object, ...]) -> tuple[Array, ...] | None:
    """Once for each distinct operator and its operands: layers repeat."""
    return _results(key, run)


def _results(key: str, run: _Boxed[_Run]) -> tuple[Array, ...] | None:
    op, wanted, feeds = run.held
    try:
        with np.errstate(all="ignore"):
            results = _evaluator(key, _Boxed(op)).run(list(wanted), feeds)
    except (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError):
        return None  # what the reference implementation cannot do stays an operator
    arrays = tuple(np.asarray(r) for r in results)
    return None if any(a.dtype == object or a.dtype.kind in "US" for a in arrays) else arrays


class _Boxed(Generic[_Held]):
    """Carries what is looked at past the cache key: equal keys mean equal contents."""

    def __init__(self, held: _Held) -> None:
        self.held = held

    def __hash__(self) -> int:
        return 0

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Boxed)


def _renamed(op: Op) -> tuple[Op, dict[str, str]]:
    """The operator with its tensors called by their places, and these names: many operators differ in names alone."""
    names = {t: f"t{k}" for k, t in enumerate(dict.fromkeys((*op.inputs, *op.outputs))) if t}
    inputs, outputs = (tuple(names.get(t, "") for t in each) for each in (op.inputs, op.outputs))
    return replace(op, name="folded", source="", inputs=inputs, outputs=outputs), names


def _key(op: Op) -> str:
    attributes = [
        (k, content_of(v) if isinstance(v, np.ndarray) else v)
        for k, v in sorted(op.attributes.items(), key=lambda kv: kv[0])
    ]
    return repr((op.type, op.opset, op.inputs, op.outputs, attributes))


@lru_cache(maxsize=2048)
def _evaluator(key: str, boxed: _Boxed[Op]) -> Any:
    from onnx.reference import ReferenceEvaluator  # slow to import, and many graphs fold nothing

    op = boxed.held
    empty = onnx.TypeProto()
    graph = helper.make_graph(
        [node_of(op)],
        "fold",
        [helper.make_value_info(t, empty) for t in dict.fromkeys(op.inputs) if t],
        [helper.make_value_info(t, empty) for t in op.outputs if t],
    )
    return ReferenceEvaluator(helper.make_model(graph, opset_imports=[helper.make_opsetid("", op.opset)]))
