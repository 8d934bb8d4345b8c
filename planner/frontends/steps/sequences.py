"""Sequences of tensors that are known when the model is imported, and casts to the type of another tensor.

TorchScript spells `chunk` and `unbind` as SplitToSequence and SequenceAt when it does not optimise, and lists that grow
as SequenceEmpty and SequenceInsert.  With a known position each element is a result of one Split; SequenceConstruct and
ConcatFromSequence are lists of tensors and their Concat.  CastLike to a tensor of known type is a Cast.  What depends
on data stays as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import replace
from typing import Any

import numpy as np

from planner.frontends.file.dtypes import ELEM_TYPE, array_dtype_name
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
        return [*(self._released(op.inputs) if op in made else ()), *made]

    def rest(self) -> list[Op]:
        """Operators that make sequences which the graph returns."""
        return self._released(t for t in tuple(self.held) if t in self.needed)

    def _released(self, names: Iterable[str]) -> list[Op]:
        """Operators that make these sequences, behind those whose sequences they read."""
        out: list[Op] = []
        for t in names:
            op = self.held.pop(t, None)
            if op is not None:
                out += [*self._released(op.inputs), op]
        return out

    def _hold(self, op: Op, elements: tuple[str, ...]) -> list[Op]:
        self.elements[op.outputs[0]], self.held[op.outputs[0]] = elements, op
        return []

    def _position(self, op: Op, k: int, count: int, default: int) -> int | None:
        """The position that operand `k` says, from 0 on; None where it is not known, or is outside of 0 to `count`."""
        if k >= len(op.inputs) or not op.inputs[k]:
            return default
        value = self._value(op, k)
        if value is None:
            return None
        at = int(value.reshape(-1)[0])
        return at % count if -count <= at < 0 else at if 0 <= at <= count else None

    def _constant(self, name: str, value: Array) -> str:
        self.tensors[name] = Tensor(name, value.shape, array_dtype_name(value.dtype), Role.CONSTANT, value)
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
        # The standard ignores `keepdims` where a size is given; `unbind` by TorchScript gives 1 and means it, and ONNX
        # Runtime does what that means.
        squeezed = not op.attributes.get("keepdims", 1) and (value is None or (value.ndim == 0 and set(sizes) == {1}))
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
        self._hold(op, pieces)
        return made

    def _construct(self, op: Op) -> list[Op]:
        return self._hold(op, op.inputs)

    def _empty(self, op: Op) -> list[Op]:
        return self._hold(op, ())

    def _identity(self, op: Op) -> list[Op] | None:
        pieces = self.elements.get(op.inputs[0])
        return None if pieces is None else self._hold(op, pieces)

    def _insert(self, op: Op) -> list[Op] | None:
        """SequenceInsert(sequence, tensor, position, absent: behind the last)."""
        pieces = self.elements.get(op.inputs[0])
        at = None if pieces is None else self._position(op, 2, len(pieces), len(pieces))
        if pieces is None or at is None or len(pieces) >= MAX_ELEMENTS:
            return None
        return self._hold(op, (*pieces[:at], op.inputs[1], *pieces[at:]))

    def _erase(self, op: Op) -> list[Op] | None:
        """SequenceErase(sequence, position, absent: the last)."""
        pieces = self.elements.get(op.inputs[0])
        at = None if pieces is None else self._position(op, 1, len(pieces), len(pieces) - 1)
        if pieces is None or at is None or not 0 <= at < len(pieces):
            return None
        return self._hold(op, (*pieces[:at], *pieces[at + 1 :]))

    def _at(self, op: Op) -> list[Op] | None:
        pieces = self.elements.get(op.inputs[0])
        at = None if pieces is None else self._position(op, 1, len(pieces), -1)
        if pieces is None or at is None or not 0 <= at < len(pieces):
            return None
        piece = pieces[at]
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
        if not pieces:
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
    "Identity": Sequences._identity,
    "SequenceAt": Sequences._at,
    "SequenceConstruct": Sequences._construct,
    "SequenceEmpty": Sequences._empty,
    "SequenceErase": Sequences._erase,
    "SequenceInsert": Sequences._insert,
    "SequenceLength": Sequences._length,
    "SplitToSequence": Sequences._split,
}
