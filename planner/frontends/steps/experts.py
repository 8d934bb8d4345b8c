"""Per-token experts: a product whose weight every token chooses, as one operator of our own.

Graphs write `y[t] = W[i[t]] · x[t]` as a look-up of the weights of every token, a tensor of [tokens, out, in], and a
batched product with it.  No runtime makes that tensor: it groups the tokens by expert.  The pass finds the pattern by
its structure, in the spellings

    W[E, out, in] –GatherND, or Gather along 0–> [t…, out, in]  (the last two dimensions may be transposed)
    x[t…, in] –Unsqueeze, Reshape–> a column, or a row
    MatMul of the two in either order –Squeeze, Reshape–> [t…, out]
    or Einsum of the two, where x may lack some of t…
    Add of a bias [E, out] that is looked up by the same indices
    operators that change nothing, which torch's exporter leaves: a transpose into the same order, an Expand to the
    same shape, a Concat of one

and puts in its place

    planner::ExpertMatMul(x [t…, in], W, indices [t…] or [t…, 1], bias [E, out] or absent) -> [t…, out]
    transB   1: W is [E, out, in];  0: [E, in, out]

where x may have dimensions of one among t… (broadcast).  Its operator set is that of the operators it stands for:
`spelled_out` writes them again, for runtimes that know ONNX alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import onnx
from onnx import helper, numpy_helper

from planner.frontends.steps.draft import Draft
from planner.ir import Op, Role, Tensor

__all__ = ["EXPERT_MATMUL", "INDEX_VIEWS", "changes_nothing", "fuse_experts", "index_source", "spelled_out"]

EXPERT_MATMUL = "planner::ExpertMatMul"
_VIEWS = frozenset({"Flatten", "Identity", "Reshape", "Squeeze", "Unsqueeze"})
INDEX_VIEWS = _VIEWS | {"Cast"}
_AXES_OPERAND_SINCE = 13  # operator set in which the axes of Squeeze and Unsqueeze became an operand

Shape = tuple[int, ...]


@dataclass(slots=True)
class _Product:
    """The product of looked-up weights: `output` is [t…, out], computed where `last` stood."""

    x: str
    output: str
    trans_b: bool
    last: Op
    before: list[Op] = field(default_factory=list)  # views that x and the result need
    after: list[Op] = field(default_factory=list)


def fuse_experts(draft: Draft) -> None:
    """Replaces the pattern wherever it is complete and nothing else reads the looked-up weights."""
    matcher = _Matcher(draft)
    for op in draft.ops:
        if op.type in ("Gather", "GatherND"):
            matcher.match(op)
    if matcher.replaced:
        draft.ops = list(matcher.ops())


class _Matcher:
    def __init__(self, draft: Draft) -> None:
        self.draft = draft
        self.tensors = draft.tensors
        self.producer = {o: op for op in draft.ops for o in op.outputs if o}
        self.readers: dict[str, list[Op]] = {}
        for op in draft.ops:
            for t in op.inputs:
                if t:
                    self.readers.setdefault(t, []).append(op)
        self.replaced: dict[str, list[Op]] = {}  # last operator of a pattern → what takes its place

    def ops(self) -> Iterator[Op]:
        for op in self.draft.ops:
            yield from self.replaced.get(op.name, [op])

    def match(self, look_up: Op) -> None:
        tokens = self._tokens(look_up, rank=3)
        if not tokens:
            return
        weights, swapped = look_up.outputs[0], False
        reader = self._only_reader(weights)
        while reader is not None and (self._changes_nothing(reader) or self._swaps_last(reader, len(tokens))):
            weights, swapped = reader.outputs[0], swapped != self._swaps_last(reader, len(tokens))
            reader = self._only_reader(weights)
        if reader is None or len(reader.inputs) != 2:
            return
        product: _Product | None = None
        if reader.type == "MatMul":
            product = self._matmul(reader, weights, tokens, swapped)
        elif reader.type == "Einsum":
            product = self._einsum(reader, weights, tokens, swapped)
        if product is not None:
            self._replace(look_up, product, tokens)

    def _tokens(self, look_up: Op, rank: int) -> Shape | None:
        """t… of a look-up along the first dimension of floating-point data of that rank; None where it is another."""
        data, indices = (self.tensors[t] for t in look_up.inputs[:2])
        shape = self.tensors[look_up.outputs[0]].shape
        if data.shape is None or len(data.shape) != rank or not data.is_float or indices.shape is None or shape is None:
            return None
        if look_up.type == "Gather" and look_up.attributes.get("axis", 0) not in (0, -rank):
            return None
        if look_up.type == "GatherND" and (look_up.attributes.get("batch_dims", 0) or indices.shape[-1:] != (1,)):
            return None
        return shape[: len(shape) - rank + 1]

    def _only_reader(self, name: str) -> Op | None:
        readers = self.readers.get(name, [])
        return readers[0] if len(readers) == 1 and name not in self.draft.outputs else None

    def _changes_nothing(self, op: Op) -> bool:
        return changes_nothing(op, self.tensors)

    def _unchanged(self, name: str) -> str:
        """What the tensor is, but for operators that change nothing."""
        while (made := self.producer.get(name)) is not None and self._changes_nothing(made):
            name = made.inputs[0]
        return name

    def _swaps_last(self, op: Op, lead: int) -> bool:
        return op.type == "Transpose" and op.attributes.get("perm") == (*range(lead), lead + 1, lead)

    def _matmul(self, op: Op, weights: str, tokens: Shape, swapped: bool) -> _Product | None:
        """Weights times a column, or a row times weights."""
        left = op.inputs[0] == weights
        other, result = op.inputs[1 if left else 0], op.outputs[0]
        shape, made = self.tensors[other].shape, self.tensors[result].shape
        if shape is None or made is None or len(shape) != len(tokens) + 2 or made[:-2] != tokens:
            return None
        if shape[-1 if left else -2] != 1:
            return None  # several rows per token share one look-up: a batched product as it stands
        one = len(tokens) + (1 if left else 0)
        product = _Product("", "", left != swapped, op)
        product.x = self._flat(other, one, product, op)
        shape_left = (*made[:one], *made[one + 1 :])
        last = self._only_reader(result)
        if last is not None and last.type in _VIEWS and self.tensors[last.outputs[0]].shape == shape_left:
            product.output, product.last = last.outputs[0], last
        else:
            product.output = f"{result}.tokens"
            self.tensors[product.output] = replace(self.tensors[result], name=product.output, shape=shape_left)
            product.after.append(self._view("Unsqueeze", product.output, (one,), result, op))
        return product

    def _flat(self, column: str, one: int, product: _Product, op: Op) -> str:
        """The tokens whose view is a column or a row, squeezed if there is no such tensor."""
        shape = self.tensors[column].shape or ()
        shape_left = (*shape[:one], *shape[one + 1 :])
        made = self.producer.get(column)
        if made is not None and made.type in _VIEWS and self.tensors[made.inputs[0]].shape == shape_left:
            return made.inputs[0]
        flat = f"{column}.tokens"
        self.tensors[flat] = Tensor(flat, shape_left, self.tensors[column].dtype, Role.ACTIVATION)
        product.before.append(self._view("Squeeze", column, (one,), flat, op))
        return flat

    def _einsum(self, op: Op, weights: str, tokens: Shape, swapped: bool) -> _Product | None:
        """`t… o i, t… i -> t… o`, where x may lack some of t…."""
        left, arrow, result = str(op.attributes.get("equation", "")).replace(" ", "").partition("->")
        terms = left.split(",")
        if not arrow or "." in left + result or len(terms) != 2:
            return None
        at = op.inputs.index(weights)
        w, x = terms[at], terms[1 - at]
        lead, inner = w[: len(tokens)], w[len(tokens) :]
        if len(set(w)) != len(w) or len(inner) != 2 or result[:-1] != lead or result[-1:] not in inner:
            return None
        contracted = inner.replace(result[-1], "")
        if x != "".join(s for s in lead if s in x) + contracted:
            return None
        if self.tensors[op.outputs[0]].shape != (*tokens, (self.tensors[weights].shape or ())[w.index(result[-1])]):
            return None
        product = _Product(op.inputs[1 - at], op.outputs[0], (inner[1] == contracted) != swapped, op)
        missing = tuple(k for k, s in enumerate(lead) if s not in x)
        if missing:
            old = self.tensors[product.x]
            lacking = iter(old.shape or ())
            grown = tuple(1 if k in missing else next(lacking) for k in range(len(lead) + 1))
            product.x = f"{op.outputs[0]}.tokens"
            self.tensors[product.x] = Tensor(product.x, grown, old.dtype, Role.ACTIVATION)
            product.before.append(self._view("Unsqueeze", old.name, missing, product.x, op))
        return product

    def _view(self, kind: str, operand: str, axes: tuple[int, ...], result: str, place: Op) -> Op:
        inputs, attributes = (operand,), {"axes": axes}
        if place.opset >= _AXES_OPERAND_SINCE:
            name = f"{result}.axes"
            value = np.array(axes, dtype=np.int64)
            self.tensors[name] = Tensor(name, value.shape, "int64", Role.CONSTANT, value)
            return Op(result, kind, (operand, name), (result,), {}, place.opset, "", place.module)
        return Op(result, kind, inputs, (result,), attributes, place.opset, "", place.module)

    def _replace(self, look_up: Op, product: _Product, tokens: Shape) -> None:
        output, last, bias = product.output, product.last, ""
        added = None if product.after else self._bias(look_up, output, tokens)
        if added is not None:
            bias, last = added
            output = last.outputs[0]
        inputs = (product.x, *map(self._unchanged, look_up.inputs[:2]), *([bias] if bias else []))
        fused = Op(
            output,
            EXPERT_MATMUL,
            inputs,
            (output,),
            {"transB": int(product.trans_b)},
            look_up.opset,
            "",
            product.last.module,
        )
        self.replaced[last.name] = [*product.before, fused, *product.after]

    def _bias(self, look_up: Op, result: str, tokens: Shape) -> tuple[str, Op] | None:
        """A bias looked up by the same indices, and its addition, where there is one."""
        add = self._only_reader(result)
        if add is None or add.type != "Add" or add.inputs[0] == add.inputs[1]:
            return None
        other = add.inputs[1 if add.inputs[0] == result else 0]
        if self._only_reader(other) is not add:
            return None
        made = self.producer.get(other)
        while made is not None and self._changes_nothing(made) and self._only_reader(made.inputs[0]) is made:
            made = self.producer.get(made.inputs[0])
        if made is None or made.type not in ("Gather", "GatherND"):
            return None
        table, weights = self.tensors[made.inputs[0]], self.tensors[look_up.inputs[0]]
        sources = {index_source(self.producer, self.tensors, op.inputs[1]) for op in (made, look_up)}
        fits = self._tokens(made, rank=2) == tokens and self.tensors[other].shape == self.tensors[result].shape
        fits = fits and (table.shape or ())[:1] == (weights.shape or ())[:1]
        return (self._unchanged(table.name), add) if fits and len(sources) == 1 else None


def changes_nothing(op: Op, tensors: Mapping[str, Tensor]) -> bool:
    """Whether the result is the first operand as it is, whatever the size of the batch."""
    if op.type == "Concat":
        return len(op.inputs) == 1
    if op.type == "Expand":
        shape = tensors[op.inputs[0]].shape
        return shape is not None and 1 not in shape and shape == tensors[op.outputs[0]].shape
    if op.type == "Transpose":
        order = op.attributes.get("perm")
        return order is not None and tuple(order) == tuple(range(len(order)))
    return False


def index_source(producer: Mapping[str, Op], tensors: Mapping[str, Tensor], indices: str) -> str:
    """The tensor whose elements, in the same order, the indices are."""
    while (made := producer.get(indices)) and (made.type in INDEX_VIEWS or changes_nothing(made, tensors)):
        indices = made.inputs[0]
    return indices


def spelled_out(
    op: Op, tensors: Mapping[str, Tensor], opset: int
) -> tuple[list[onnx.NodeProto], list[onnx.TensorProto]]:
    """ExpertMatMul in the operators of ONNX's own operator set: nodes, and the constants that they read."""
    x, w, indices, bias = (*op.inputs, "")[:4]
    y = op.outputs[0]
    tokens = tensors[x].rank - 1
    column = bool(op.attributes["transB"])
    one = tokens + 1 if column else tokens
    axes = numpy_helper.from_array(np.array([one], dtype=np.int64), f"{y}.axes")
    by_operand = opset >= _AXES_OPERAND_SINCE

    def look_up(table: str, found: str) -> onnx.NodeProto:
        if tensors[indices].rank > tokens:
            return helper.make_node("GatherND", [table, indices], [found])
        return helper.make_node("Gather", [table, indices], [found], axis=0)

    def view(kind: str, operand: str, result: str) -> onnx.NodeProto:
        if by_operand:
            return helper.make_node(kind, [operand, axes.name], [result])
        return helper.make_node(kind, [operand], [result], axes=[one])

    factors = [f"{y}.weights", f"{y}.x"] if column else [f"{y}.x", f"{y}.weights"]
    product = f"{y}.product" if bias else y
    nodes = [
        look_up(w, f"{y}.weights"),
        view("Unsqueeze", x, f"{y}.x"),
        helper.make_node("MatMul", factors, [f"{y}.matmul"]),
        view("Squeeze", f"{y}.matmul", product),
    ]
    if bias:
        nodes += [look_up(bias, f"{y}.bias"), helper.make_node("Add", [product, f"{y}.bias"], [y])]
    return nodes, [axes] if by_operand else []
