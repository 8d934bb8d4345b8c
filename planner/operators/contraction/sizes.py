"""How products carry a new size."""

from __future__ import annotations

from planner.frontends.facts.sizes import carries
from planner.frontends.resized.broadcasting import broadcast_factors
from planner.frontends.resized.carry import Carrier, join
from planner.frontends.steps.draft import split_type
from planner.ir import Op

__all__: list[str] = []


@carries("MatMul", "FusedMatMul")
def _matmul(c: Carrier, op: Op) -> None:
    a, b, o = op.inputs[0], op.inputs[1], op.outputs[0]
    ra, rb = len(c.before(a)), len(c.before(b))
    if ra < 2 or rb < 2 or split_type(op.type)[1] == "FusedMatMul":
        return
    for t, k, other, j in ((a, ra - 1, b, rb - 2), (b, rb - 2, a, ra - 1)):
        if c.after(t)[k] != c.before(t)[k]:
            c.demand(other, j, c.after(t)[k], op)
    rank = len(c.before(o))
    c.pass_up(op, o, rank - 2, a, ra - 2)
    c.pass_up(op, o, rank - 1, b, rb - 1)
    batch = broadcast_factors(c, op, [a, b], rank - 2, 2, o)
    c.factors[o] = (*batch, c.parts(a)[ra - 2], c.parts(b)[rb - 1])


@carries("Gemm")
def _gemm(c: Carrier, op: Op) -> None:
    a, b, o = op.inputs[0], op.inputs[1], op.outputs[0]
    row, inner_a = (1, 0) if op.attributes.get("transA", 0) else (0, 1)
    inner_b, column = (1, 0) if op.attributes.get("transB", 0) else (0, 1)
    for t, k, other, j in ((a, inner_a, b, inner_b), (b, inner_b, a, inner_a)):
        if c.after(t)[k] != c.before(t)[k]:
            c.demand(other, j, c.after(t)[k], op)
    c.pass_up(op, o, 0, a, row)
    c.pass_up(op, o, 1, b, column)
    c.factors[o] = (c.parts(a)[row], c.parts(b)[column])
    bias = op.inputs[2] if len(op.inputs) > 2 else ""
    if bias:
        shape = c.before(bias)
        for k in range(len(shape)):
            size = join(c.factors[o][k + 2 - len(shape)])
            if shape[k] != 1 and size != shape[k]:
                c.demand(bias, k, size, op)


@carries("Einsum")
def _einsum(c: Carrier, op: Op) -> None:
    given, _, result = str(op.attributes.get("equation", "")).replace(" ", "").partition("->")
    terms, o = given.split(","), op.outputs[0]
    if "." in given or len(terms) != len(op.inputs):
        return
    places = [(label, t, k) for term, t in zip(terms, op.inputs, strict=True) for k, label in enumerate(term)]
    moved = {label: c.after(t)[k] for label, t, k in places if c.after(t)[k] != c.before(t)[k]}
    moved = {label: c.wanted[o, k] for k, label in enumerate(result) if (o, k) in c.wanted} | moved
    for label, t, k in places:
        if label in moved and c.before(t)[k] != 1:
            c.demand(t, k, moved[label], op)
