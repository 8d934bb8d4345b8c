"""Which tensors are weights.

A PARAMETER is what the file holds as a weight, of any element type.  Quantised weights, their scales and zero points
are recognised by what reads them, see `planner.frontends.steps.quantized`.  Of floats it is a source of at least two
elements that reaches, unchanged but for views (Transpose, Reshape, Cast, …) and unary functions, a place where models
keep weights:

- a weight operand by definition, as the operator's family says (`planner.frontends.facts.weights`): filters and biases
  of convolutions, either factor of a product, scale and bias of normalisations (not running statistics), tables of
  Gather;
- any operand beside data of an operator of somebody's own domain;
- an operand of element-wise arithmetic with something that depends on the input: biases, norm scales,
  position embeddings.  Not when it is added to attention scores (masks, folded relative positions), and
  not when its name says that an exporter made it (`zeros`, `val_7`, `Constant_3`) and its value is inline.

What sub-graphs of control flow read is looked for inside them.  Graph inputs count when they are read as weights alone
can be (the right factor of a product, a filter, a scale) or have a module path for a name; in a graph that returns
gradients they must have one, too.  Everything else a graph is fed is INPUT; everything else fixed is CONSTANT.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace

from planner.frontends.facts.stated import Stated
from planner.frontends.facts.weights import places
from planner.frontends.steps.draft import Draft, Source, body_of, split_type
from planner.frontends.steps.quantized import quantised_weights
from planner.ir import Op, Role, Tensor

__all__ = ["assign_roles", "gradient_outputs", "stand_for_weights"]

_VIEWS = frozenset({
    "Cast", "CastLike", "Expand", "Flatten", "Identity", "Reshape", "Slice", "Split", "Squeeze", "Transpose",
    "Unsqueeze",
})  # fmt: skip
_UNARY = frozenset({"Exp", "Neg", "Sigmoid", "Softplus", "Tanh", "Abs", "Relu", "Reciprocal", "Sqrt"})
_ELEMENTWISE = frozenset({"Add", "Sub", "Mul", "Div", "Sum"})

# Names that exporters give what they made themselves: fills, folded casts, numbered values.
_MADE = re.compile(
    r"^(zeros|ones|full|fill|arange|eye|tril|triu|new_(zeros|ones|full)|_?to_copy|_tensor_constant|lifted_tensor|expand)"
    r"(_like)?(_?\d+)*$"
)
_ANONYMOUS = re.compile(
    r"^(val_|const|Constant|c_|scalar|onnx::|/.*Constant|\d+$|p2o\.pd_op\.(full|assign))", re.IGNORECASE
)
_MODULE_PATH = re.compile(r"^[A-Za-z_]\w*(\.\w+)*\.[A-Za-z_]\w*$")  # not torch's `input.1`


def assign_roles(draft: Draft, said: Stated) -> None:
    """Set the role of every source in `draft.tensors`; parameters lose their values, which planning never reads.

    Where the file names its parameters, nothing is looked for."""
    if said.parameters is not None:
        _as_stated(draft, said.parameters, said.frozen)
        return
    ops = _with_bodies(draft.ops)
    readers = _readers(ops)
    moving = _depends_on_input(draft, ops)
    to_softmax = _before_softmax(ops)
    gradients = gradient_outputs(draft.outputs, draft.tensors, draft.inputs)
    for name, source in draft.sources.items():
        t = draft.tensors.get(name)
        if t is None or not t.is_float or t.elements < 2:
            continue
        uses = list(_uses(name, readers, draft.tensors, moving))
        if source.fed:
            named = name in gradients and bool(_MODULE_PATH.match(name))
            trained = named or ((not gradients or name in gradients) and _fed_weight(t, uses))
        else:
            small = t.elements <= 16 or ("Constant" in name and _is_fill(source))  # states that begin at zero
            inline_made = source.inline and small and bool(_ANONYMOUS.match(name))
            trained = not _MADE.match(name) and any(
                _keeps_weights(op, k, v)
                or (not inline_made and _arithmetic(op, k, v, moving, to_softmax))
                or (not source.inline and t.rank >= 2 and _beside_data(op, moving))
                or (_is_foreign(op) and not moving.isdisjoint(op.inputs))
                for op, k, v in uses
            )
        if trained:
            draft.tensors[name] = replace(t, role=Role.PARAMETER, value=None)
    for name in _quantised(draft, ops, moving, to_softmax):
        t = draft.tensors[name]
        # Zero points are often one number throughout, which some runtimes demand.
        fill = t.value is not None and not t.is_float and t.rank < 2 and bool((t.value == t.value.flat[0]).all())
        draft.tensors[name] = replace(t, role=Role.PARAMETER, value=t.value if fill else None)


def _as_stated(draft: Draft, trained: Collection[str], frozen: Collection[str]) -> None:
    for name, source in draft.sources.items():
        t = draft.tensors.get(name)
        if t is None or source.fed:
            continue
        names = {name, source.origin}
        if t.is_float and not names.isdisjoint(trained):
            draft.tensors[name] = replace(t, role=Role.PARAMETER, value=None)
        elif not names.isdisjoint(frozen):
            draft.tensors[name] = replace(t, role=Role.PARAMETER, value=None, frozen=True)


def _is_fill(source: Source) -> bool:
    v = source.value
    return bool(source.fill) or (v is not None and v.size > 0 and bool((v == v.flat[0]).all()))


def _quantised(draft: Draft, ops: list[Op], moving: set[str], to_softmax: set[str]) -> set[str]:
    stored = (t for n, s in draft.sources.items() if not s.fed and (t := draft.tensors.get(n)) is not None)
    types = {t.name: t.dtype for t in stored if t.elements >= 2 and t.dtype != "bool"}

    def holds_weight(op: Op, k: int) -> bool:
        t = draft.tensors.get(op.inputs[k])
        return t is not None and (_keeps_weights(op, k, t) or _arithmetic(op, k, t, moving, to_softmax))

    return quantised_weights(ops, types, moving, holds_weight)


def _with_bodies(ops: Iterable[Op]) -> list[Op]:
    """The operators, and those inside the sub-graphs of control flow, which read outer tensors by name."""
    found: list[Op] = []
    for op in ops:
        found += _with_bodies(body_of(op))
        found.append(op)
    return found


def stand_for_weights(draft: Draft, fills: Iterable[str]) -> set[str]:
    """Those of the fills that weight operands (running statistics, too) read, directly or by views.

    Where there are any, the graph was stripped of its weights, and fills in arithmetic count as well.
    """
    ops = _with_bodies(draft.ops)
    readers, moving, to_softmax = _readers(ops), _depends_on_input(draft, ops), _before_softmax(ops)
    found, arithmetic = set(), set()
    for name in fills:
        for op, k, t in _uses(name, readers, draft.tensors, moving):
            if k in places(op).statistics or _keeps_weights(op, k, t):
                found.add(name)
            elif _arithmetic(op, k, t, moving, to_softmax):
                arithmetic.add(name)
    return found | arithmetic if found else found


def _is_foreign(op: Op) -> bool:
    """Of a domain that only its authors know: what it reads beside data, and is no scalar, counts as a weight."""
    domain = split_type(op.type)[0]
    return bool(domain) and not domain.startswith(("ai.onnx", "com.microsoft", "planner"))


def gradient_outputs(outputs: Iterable[str], tensors: Mapping[str, Tensor], inputs: Iterable[str]) -> dict[str, str]:
    """Tensor → the graph output that is its gradient, by the naming of ONNX Runtime and autodiff exporters."""
    known = set(tensors) | set(inputs)
    found = {}
    for o in outputs:
        for base in (o.removesuffix("_grad"), o.removeprefix("adj_"), o.removeprefix("grad_")):
            if base != o and base in known:
                found[base] = o
    return found


def _readers(ops: Iterable[Op]) -> dict[str, list[tuple[Op, int]]]:
    found: dict[str, list[tuple[Op, int]]] = {}
    for op in ops:
        for k, t in enumerate(op.inputs):
            if t:
                found.setdefault(t, []).append((op, k))
    return found


def _uses(
    name: str, readers: Mapping[str, list[tuple[Op, int]]], tensors: Mapping[str, Tensor], moving: set[str]
) -> Iterable[tuple[Op, int, Tensor]]:
    """(operator, operand position, tensor as it arrives) of every use behind views and unary functions."""
    pending, seen = [name], {name}
    while pending:
        t = pending.pop()
        for op, k in readers.get(t, ()):
            kind = split_type(op.type)[1]
            if (kind in _VIEWS and k == 0) or kind in _UNARY or _joins(op, k, moving):
                fresh = [o for o in op.outputs if o and o not in seen]
                seen.update(fresh)
                pending.extend(fresh)
            else:
                yield op, k, tensors.get(t, tensors[name])  # inside sub-graphs only sources have known shapes


def _joins(op: Op, k: int, moving: set[str]) -> bool:
    """Weights pass through dequantisation, and through concatenation with other weights (recurrent gates)."""
    kind = split_type(op.type)[1]
    return (kind == "DequantizeLinear" and k == 0) or (kind == "Concat" and moving.isdisjoint(op.inputs))


def _beside_data(op: Op, moving: set[str]) -> bool:
    """A stored table concatenated with data is a learned token (the class token of a ViT)."""
    return split_type(op.type)[1] == "Concat" and not moving.isdisjoint(op.inputs)


def _keeps_weights(op: Op, k: int, t: Tensor) -> bool:
    found = places(op)
    return k in found.weights and (k not in found.shared or t.rank >= 2)


def _arithmetic(op: Op, k: int, t: Tensor, moving: set[str], to_softmax: set[str]) -> bool:
    kind = split_type(op.type)[1]
    if kind not in _ELEMENTWISE or not any(o in moving for i, o in enumerate(op.inputs) if i != k):
        return False
    return not (op.outputs[0] in to_softmax and kind in ("Add", "Sub", "Sum") and t.rank >= 2)


def _fed_weight(t: Tensor, uses: list[tuple[Op, int, Tensor]]) -> bool:
    """Whether a graph input is a weight: its readers are weight operands where data cannot stand."""
    named = bool(_MODULE_PATH.match(t.name))
    if any(_must_be_weight(op, k, v) or (named and _keeps_weights(op, k, v)) for op, k, v in uses):
        return not any(k in places(op).data for op, k, _ in uses)
    return named and any(split_type(op.type)[1] in _ELEMENTWISE for op, _, _ in uses)


def _must_be_weight(op: Op, k: int, t: Tensor) -> bool:
    """Data does not stand there; of two factors, a matrix on the right is a weight."""
    found = places(op)
    return k in found.weights and (k not in found.shared or (k == 1 and t.rank == 2))


def _depends_on_input(draft: Draft, ops: Iterable[Op]) -> set[str]:
    moving = {n for n in draft.inputs if not _MODULE_PATH.match(n)}
    known = set(draft.tensors) | {o for op in ops for o in op.outputs}
    moving |= {t for op in ops for t in op.inputs if t not in known}  # what control flow hands to its bodies
    for op in ops:
        if any(t in moving for t in op.inputs):
            moving.update(o for o in op.outputs if o)
    return moving


def _before_softmax(ops: Iterable[Op]) -> set[str]:
    """Tensors that go into a Softmax through additions and views alone: attention scores."""
    scores: set[str] = set()
    for op in reversed(list(ops)):
        kind = split_type(op.type)[1]
        follows = kind in _VIEWS | {"Add", "Where", "Max", "Clip"} and any(o in scores for o in op.outputs)
        if kind == "Softmax" or follows:
            scores.update(t for t in op.inputs if t)
        elif kind == "Attention" and len(op.inputs) > 3:
            scores.add(op.inputs[3])
    return scores
