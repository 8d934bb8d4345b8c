"""Sequences of tensors that are known when the model is imported, and casts to the type of another tensor.

TorchScript spells `chunk` and `unbind` as SplitToSequence and SequenceAt when it does not optimise.  With a known
position each element is a result of one Split; SequenceConstruct and ConcatFromSequence are lists of tensors and their
Concat.  CastLike to a tensor of known type is a Cast.  What depends on data stays as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Any

import numpy as np

from planner.frontends.file.dtypes import ELEM_TYPE
from planner.frontends.steps.draft import captured_by
from planner.ir import Op, Role, Tensor

__all__ = ["Sequences"]

Array = np.ndarray[Any, Any]
MAX_ELEMENTS = 10_000  # of one sequence; each is a result of a Split
_OPERAND_SINCE = 13  # operator set in which Split and Squeeze take sizes and axes as operands


class Sequences:
    """Rewrites operators one after the other, in topological order.

    `tensors` grows as the caller infers shapes, and gets constants that the new operators read; names in `needed` are
    read from elsewhere and stay.  Operators that make a sequence are held back until something reads the sequence
    itself.
    """

    def __init__(self, tensors: dict[str, Tensor], needed: Collection[str]) -> None:
        self.tensors, self.needed = tensors, needed
        self.elements: dict[str, tuple[str, ...]] = {}
        self.held: dict[str, Op] = {}
        self.other_name: dict[str, str] = {}

    def rewrite(self, op: Op) -> list[Op]:
        """What takes the place of the operator: nothing, itself, or others that give the same results."""
        if self.other_name:
            own = len(op.inputs) - len(captured_by(op))
            renamed = (self.other_name.get(t, t) if k < own else t for k, t in enumerate(op.inputs))
            op = replace(op, inputs=tuple(renamed))
        handler = _HANDLERS.get(op.type)
        made = None if handler is None else handler(self, op)
        if made is None:
            made = [op]
        return [*(self.held.pop(t) for t in dict.fromkeys(op.inputs) if t in self.held and op in made), *made]

    def rest(self) -> list[Op]:
        """Operators that make sequences which the graph returns."""
        return [op for t, op in self.held.items() if t in self.needed]

    def _constant(self, name: str, value: Array) -> str:
        self.tensors[name] = Tensor(name, value.shape, str(value.dtype), Role.CONSTANT, value)
        return name

    def _value(self, op: Op, k: int) -> Array | None:
        t = self.tensors.get(op.inputs[k]) if k < len(op.inputs) and op.inputs[k] else None
        return None if t is None else t.value

    def _split(self, op: Op) -> list[Op] | None:
        """SplitToSequence(x, sizes or the size of all but the last, absent: one each)."""
        x = self.tensors[op.inputs[0]]
        if not x.shape:
            return None
        axis = int(op.attributes.get("axis", 0)) % x.rank
        length, given = x.shape[axis], len(op.inputs) > 1 and bool(op.inputs[1])
        value = self._value(op, 1)
        if given and value is None:
            return None
        if value is None:
            sizes = [1] * length
        elif value.ndim == 0:
            each = int(value)
            if each < 1:
                return None
            sizes = [min(each, length - at) for at in range(0, length, each)]
        else:
            sizes = [int(v) for v in value]
        if sum(sizes) != length or not 0 < len(sizes) <= MAX_ELEMENTS:
            return None
        name = op.outputs[0]
        pieces = tuple(f"{name}.{k}" for k in range(len(sizes)))
        squeezed = not given and not op.attributes.get("keepdims", 1)
        cut = tuple(f"{p}.kept" for p in pieces) if squeezed else pieces
        if op.opset >= _OPERAND_SINCE:
            read = (x.name, self._constant(f"{name}.sizes", np.array(sizes, dtype=np.int64)))
            made = [_like(op, "Split", read, cut, {"axis": axis})]
        else:
            made = [_like(op, "Split", (x.name,), cut, {"axis": axis, "split": tuple(sizes)})]
        if squeezed:
            axes = self._constant(f"{name}.axes", np.array([axis], dtype=np.int64))
            for whole, piece in zip(cut, pieces, strict=True):
                if op.opset >= _OPERAND_SINCE:
                    made.append(_like(op, "Squeeze", (whole, axes), (piece,), {}))
                else:
                    made.append(_like(op, "Squeeze", (whole,), (piece,), {"axes": (axis,)}))
        self.elements[name], self.held[name] = pieces, op
        return made

    def _construct(self, op: Op) -> list[Op]:
        self.elements[op.outputs[0]], self.held[op.outputs[0]] = op.inputs, op
        return []

    def _at(self, op: Op) -> list[Op] | None:
        pieces, at = self.elements.get(op.inputs[0]), self._value(op, 1)
        if pieces is None or at is None or not -len(pieces) <= int(at.reshape(-1)[0]) < len(pieces):
            return None
        piece = pieces[int(at.reshape(-1)[0])]
        if op.outputs[0] in self.needed:
            return [_like(op, "Identity", (piece,), op.outputs, {})]
        self.other_name[op.outputs[0]] = piece
        return []

    def _length(self, op: Op) -> list[Op] | None:
        pieces = self.elements.get(op.inputs[0])
        if pieces is None:
            return None
        length = self._constant(f"{op.outputs[0]}.length", np.array(len(pieces), dtype=np.int64))
        return [_like(op, "Identity", (length,), op.outputs, {})]

    def _concat(self, op: Op) -> list[Op] | None:
        """ConcatFromSequence; with `new_axis` the elements are stacked."""
        pieces = self.elements.get(op.inputs[0])
        if pieces is None:
            return None
        axis = int(op.attributes.get("axis", 0))
        made: list[Op] = []
        if op.attributes.get("new_axis", 0):
            axes = self._constant(f"{op.outputs[0]}.axes", np.array([axis], dtype=np.int64))
            for k, piece in enumerate(pieces):
                grown = (f"{op.outputs[0]}.{k}",)
                if op.opset >= _OPERAND_SINCE:
                    made.append(_like(op, "Unsqueeze", (piece, axes), grown, {}))
                else:
                    made.append(_like(op, "Unsqueeze", (piece,), grown, {"axes": (axis,)}))
            pieces = tuple(o.outputs[0] for o in made)
        return [*made, _like(op, "Concat", pieces, op.outputs, {"axis": axis})]

    def _cast(self, op: Op) -> list[Op] | None:
        like = self.tensors.get(op.inputs[1])
        if like is None or any(k not in ("saturate", "round_mode") for k in op.attributes):
            return None
        saturate = {k: v for k, v in op.attributes.items() if op.opset >= 19}
        return [_like(op, "Cast", op.inputs[:1], op.outputs, {"to": ELEM_TYPE[like.dtype], **saturate})]


def _like(op: Op, kind: str, inputs: tuple[str, ...], outputs: tuple[str, ...], attributes: dict[str, Any]) -> Op:
    return replace(op, name=outputs[0], type=kind, inputs=inputs, outputs=outputs, attributes=attributes)


_HANDLERS: dict[str, Callable[[Sequences, Op], list[Op] | None]] = {
    "CastLike": Sequences._cast,
    "ConcatFromSequence": Sequences._concat,
    "SequenceAt": Sequences._at,
    "SequenceConstruct": Sequences._construct,
    "SequenceLength": Sequences._length,
    "SplitToSequence": Sequences._split,
}
