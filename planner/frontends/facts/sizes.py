"""Which function carries a new size through an operator (see `planner.frontends.resized.rebind` for the method).

A handler gets the walk's state and the operator, after its operands have their new shapes.  It may rewrite constant
operands, demand sizes of operands, and state the factors of the result.  Types without a handler take what shape
inference gives.  Families register theirs (`planner.plugins`).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from planner.frontends.resized.carry import Carrier
from planner.frontends.steps.draft import split_type
from planner.ir import Op
from planner.plugins import load_operators

__all__ = ["Handler", "carries", "handle", "shaped_like_first"]

Handler = Callable[[Carrier, Op], None]

_HANDLERS: dict[str, Handler] = {}
_BEYOND: set[str] = set()
_SHARED_DOMAINS = ("com.microsoft", "planner")  # whose types carry sizes as ONNX's own of the same name do


def carries(*types: str, beyond: bool = False) -> Callable[[Handler], Handler]:
    """Register a handler for operator types, with their domain where it is not ONNX's own.

    `beyond`: what it does depends on more than the operator's own operands.

    One of ONNX's own stands for the type of the same name in ONNX Runtime's domain and ours, too, unless that has a
    handler.  ValueError for a type that has one already."""

    def register(handler: Handler) -> Handler:
        for t in types:
            if t in _HANDLERS:
                raise ValueError(f"operator {t} has two handlers of sizes; keep one")
            _HANDLERS[t] = handler
        _BEYOND.update(types if beyond else ())
        return handler

    return register


def shaped_like_first(*types: str, others: tuple[int, ...] = ()) -> None:
    """Register types whose result is shaped like operand 0, and so are the operands `others`."""
    carries(*types)(partial(_same_shape, others=others))


def handle(c: Carrier, op: Op) -> None:
    """Carries the sizes of the operator's operands, where a family says how."""
    if not _BEYOND.isdisjoint((op.type, split_type(op.type)[1])):
        c.settled = False
    if any(isinstance(v, bytes) for v in op.attributes.values()):
        c.refuse(f"{op.type} '{op.name}' stops the new size: it holds a sub-graph with sizes of its own.")
        return
    load_operators("sizes")
    domain, name = split_type(op.type)
    handler = _HANDLERS.get(op.type)
    if handler is None and domain in _SHARED_DOMAINS:
        handler = _HANDLERS.get(name)
    if handler is not None:
        handler(c, op)


def _same_shape(c: Carrier, op: Op, others: tuple[int, ...]) -> None:
    t, o = op.inputs[0], op.outputs[0]
    for axis in range(len(c.before(t))):
        c.pass_up(op, o, axis, t, axis)
        for other in (op.inputs[k] for k in others if k < len(op.inputs) and op.inputs[k]):
            if len(c.before(other)) == len(c.before(t)) and c.before(other)[axis] == c.before(t)[axis]:
                c.demand(other, axis, c.after(t)[axis], op)
    c.factors[o] = c.parts(t)
