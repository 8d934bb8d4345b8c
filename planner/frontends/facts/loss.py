"""Does the graph end in a loss, and which output is it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from planner.frontends.steps.draft import split_type
from planner.ir import Op, Role, Tensor
from planner.plugins import load_operators

__all__ = ["find_loss", "holds_backward", "is_loss_of_scores", "losses"]

_REDUCTIONS = frozenset({"ReduceMean", "ReduceSum"})
_PASSED = frozenset({"Add", "Cast", "Div", "Identity", "Mul", "Neg", "Reshape", "Squeeze", "Sub", "Sum", "Unsqueeze"})
_LABEL_WORDS = ("label", "target")

_LOSSES: dict[str, bool] = {}


def losses(*types: str, of_scores: bool = False) -> None:
    """Register operator types, with their domain where it is not ONNX's own, whose first result is a loss.

    `of_scores`: the softmax is made inside, of a score for each class.  Families register theirs beside the shapes of
    their results (`planner.plugins`).  ValueError for a type that is registered already."""
    for t in types:
        if t in _LOSSES:
            raise ValueError(f"{t} is a loss twice; keep one")
        _LOSSES[t] = of_scores


def is_loss_of_scores(type_: str) -> bool:
    """Whether operators of this type make a loss of scores."""
    load_operators("shapes")
    return _LOSSES.get(type_, False)


def holds_backward(ops: Sequence[Op], outputs: Sequence[str], tensors: Mapping[str, Tensor]) -> bool:
    """Whether gradients are computed in the graph: gradient operators, or outputs shaped like the parameters."""
    if any(split_type(op.type)[1].removesuffix("_13").endswith("Grad") for op in ops):
        return True
    parameters = [t for t in tensors.values() if t.role is Role.PARAMETER]
    named = sum(o.endswith("_grad") or o.startswith(("adj_", "grad_")) for o in outputs)
    return bool(parameters) and 2 * named >= len(parameters)


def find_loss(
    ops: Sequence[Op], inputs: Sequence[str], outputs: Sequence[str], tensors: Mapping[str, Tensor]
) -> str | None:
    """The scalar float output that is a loss: a cross-entropy, or a mean or sum over what labels enter.

    Labels are inputs called so, or any of several inputs when they all meet in the reduction and none is
    left for another output.  None when there is none, or when the graph holds its own backward.
    """
    if holds_backward(ops, outputs, tensors):
        return None
    producers = {o: op for op in ops for o in op.outputs if o}
    labels = {t for t in inputs if tensors[t].role is Role.INPUT and any(w in t.lower() for w in _LABEL_WORDS)}
    for o in outputs:
        t = tensors[o]
        if not t.is_float or t.shape is None or t.elements != 1 or o not in producers:
            continue
        if _ends_in_loss(o, producers, tensors, labels):
            return o
    return None


def _ends_in_loss(o: str, producers: Mapping[str, Op], tensors: Mapping[str, Tensor], labels: set[str]) -> bool:
    load_operators("shapes")
    pending, seen = [o], set()
    while pending:
        name = pending.pop()
        if name in seen or name not in producers:
            continue
        seen.add(name)
        op = producers[name]
        kind = split_type(op.type)[1]
        if (op.type in _LOSSES or kind in _LOSSES) and name == op.outputs[0]:
            return True
        if kind in _REDUCTIONS and labels & _ancestors(name, producers):
            return True
        if kind in _PASSED:  # arithmetic on scalars: weighted sums of losses, division by a count
            pending.extend(t for t in op.inputs if t and tensors[t].elements == 1)
    return False


def _ancestors(name: str, producers: Mapping[str, Op]) -> set[str]:
    pending, seen = [name], {name}
    while pending:
        op = producers.get(pending.pop())
        fresh = [t for t in op.inputs if t and t not in seen] if op else []
        seen.update(fresh)
        pending.extend(fresh)
    return seen
