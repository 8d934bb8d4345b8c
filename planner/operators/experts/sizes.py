"""How mixtures of experts carry a new size: tokens, hidden layers, and the number of experts.

The number of experts is the length of the dimension in which the router's TopK finds them.
"""

from __future__ import annotations

from collections.abc import Iterator

from planner.frontends.facts.sizes import carries
from planner.frontends.resized.carry import Carrier
from planner.frontends.steps.experts import EXPERT_MATMUL, INDEX_VIEWS, changes_nothing, index_source
from planner.ir import Op

__all__: list[str] = []


@carries("ExpertMatMul", beyond=True)
def _expert_matmul(c: Carrier, op: Op) -> None:
    x, weights, indices, bias = (*op.inputs, "")[:4]
    o = op.outputs[0]
    lead = len(c.before(o)) - 1
    out, inner = (1, 2) if op.attributes.get("transB", 0) else (2, 1)
    for axis in range(lead):
        places = [t for t in (x, indices) if c.before(t)[axis] != 1]
        size = c.wanted.get((o, axis))
        moved = [c.after(t)[axis] for t in places if c.after(t)[axis] != c.before(t)[axis]]
        size = moved[0] if size is None and moved else size
        for t in places if size is not None else ():
            c.demand(t, axis, size or 1, op)
    c.pass_up(op, o, lead, weights, out)
    for t, k, other, j in ((x, lead, weights, inner), (weights, inner, x, lead)):
        if c.after(t)[k] != c.before(t)[k]:
            c.demand(other, j, c.after(t)[k], op)
    if bias and c.after(weights)[out] != c.before(bias)[1]:
        c.demand(bias, 1, c.after(weights)[out], op)
    _experts(c, op, weights, indices, bias)
    tokens = [c.parts(x if c.before(x)[axis] != 1 else indices)[axis] for axis in range(lead)]
    c.factors[o] = (*tokens, c.parts(weights)[out])


def _experts(c: Carrier, op: Op, weights: str, indices: str, bias: str) -> None:
    """Weights, bias and the scores of the router that chooses among them have one number of experts."""
    held = [(t, 0) for t in (weights, bias) if t]
    router = c.graph.producers.get(index_source(c.graph.producers, c.graph.tensors, indices))
    if router is not None and router.type == "TopK":
        scores = router.inputs[0]
        axis = int(router.attributes.get("axis", -1)) % len(c.before(scores))
        if c.before(scores)[axis] == c.before(weights)[0]:
            held.append((scores, axis))
    moved = [c.after(t)[k] for t, k in held if c.after(t)[k] != c.before(t)[k]]
    for t, k in held if moved else ():
        c.demand(t, k, moved[0], op)


@carries("TopK", beyond=True)
def _top_k(c: Carrier, op: Op) -> None:
    """Both results are like the operand, but for the axis, of which a fixed number is taken.

    Experts that the indices choose follow the axis.
    """
    t = op.inputs[0]
    axis = int(op.attributes.get("axis", -1)) % len(c.before(t))
    if c.after(t)[axis] != c.before(t)[axis]:
        for reader in _choices(c, op.outputs[1]):
            for table in (reader.inputs[1], *reader.inputs[3:]):
                if table and c.before(table)[0] == c.before(t)[axis]:
                    c.demand(table, 0, c.after(t)[axis], reader)
    for o in op.outputs:
        if o:
            for k in range(len(c.before(t))):
                if k != axis:
                    c.pass_up(op, o, k, t, k)
            taken = c.before(o)[axis]
            c.factors[o] = (*c.parts(t)[:axis], ((taken, taken),), *c.parts(t)[axis + 1 :])


def _choices(c: Carrier, indices: str) -> Iterator[Op]:
    """Mixtures of experts that are steered by the indices, directly or by views of them."""
    for reader, operand in c.graph.consumers.get(indices, ()):
        if reader.type == EXPERT_MATMUL and operand == 2:
            yield reader
        elif operand == 0 and (reader.type in INDEX_VIEWS or changes_nothing(reader, c.graph.tensors)):
            yield from _choices(c, reader.outputs[0])
