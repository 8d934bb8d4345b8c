"""Operators that exporters write on merged dimensions, which are taken apart again behind them.

A rank that has several samples, and of each some of the heads or positions, holds no block of samples and heads, or
samples and positions, as one dimension: no layout says what it has, and what was divided would be gathered.  Operators
that treat merged dimensions alike need not merge them:

- a transpose that torch's exporter writes for the keys of an attention,
  (n, h, s, d) → (n·h, s, d) → (n·h, d, s) → (n, h, d, s), is one Transpose of four dimensions;
- a product of rows, (n, s, k) → (n·s, k) → Gemm → (n, s, m), as of GPT-2's `Conv1D`, is a MatMul and an Add.

What is read afterwards keeps its name.  The MatMul's result has one of its own, since in the file no tensor is like it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from planner.frontends.steps.draft import DOMAINS, Draft, captured_by, replace_op, split_type
from planner.ir import Op

__all__ = ["leave_apart"]

_Groups = list[list[int]]  # dimensions of a tensor that are merged, by the dimension that they become


def leave_apart(draft: Draft) -> None:
    """Replaces such operators, in place, where nothing else reads what lies between."""
    _Merged(draft).replace()


class _Merged:
    def __init__(self, draft: Draft) -> None:
        self.draft = draft
        self._made = {op.outputs[0]: op for op in draft.ops if op.outputs}
        self._reads = Counter(t for op in draft.ops for t in op.inputs) + Counter(draft.outputs)
        self._outer = {t for op in draft.ops for t in captured_by(op)}

    def replace(self) -> None:
        ops: list[Op] = []
        gone: set[str] = set()
        for op in self.draft.ops:
            between = self._before(op) if _is(op, "Reshape") else None
            merge = self._before(between) if between is not None else None
            own = None
            if between is not None and merge is not None and _is(merge, "Reshape"):
                own = self._transposed(merge, between, op) or self._multiplied(merge, between, op)
                gone |= {merge.name, between.name} if own else set()
            ops += own or [op]
        self.draft.ops = [op for op in ops if op.name not in gone]

    def _before(self, op: Op) -> Op | None:
        """The operator that makes the first operand, for this one alone."""
        name = op.inputs[0]
        return self._made.get(name) if self._reads[name] == 1 and name not in self._outer else None

    def _shape(self, name: str) -> tuple[int, ...] | None:
        return self.draft.tensors[name].shape

    def _transposed(self, merge: Op, transpose: Op, apart: Op) -> list[Op] | None:
        whole, merged, result = (self._shape(t) for t in (merge.inputs[0], merge.name, apart.name))
        if not _is(transpose, "Transpose") or whole is None or merged is None or result is None:
            return None
        groups = _groups(whole, merged)
        if groups is None or all(len(g) == 1 for g in groups):
            return None
        order = transpose.attributes.get("perm") or tuple(reversed(range(len(merged))))
        permutation = tuple(d for m in order for d in groups[m])
        if tuple(whole[d] for d in permutation) != tuple(result):
            return None
        return [replace_op(apart, type="Transpose", inputs=merge.inputs[:1], attributes={"perm": permutation})]

    def _multiplied(self, merge: Op, product: Op, apart: Op) -> list[Op] | None:
        whole, merged, result = (self._shape(t) for t in (merge.inputs[0], merge.name, apart.name))
        if not _is(product, "Gemm") or whole is None or merged is None or result is None:
            return None
        plain = {"alpha": 1.0, "beta": 1.0, "transA": 0}
        if any(product.attributes.get(name, value) != value for name, value in plain.items()):
            return None
        rows = _groups(whole, merged) == [list(range(len(whole) - 1)), [len(whole) - 1]]
        columns = (self._shape(product.name) or ())[-1:]
        if not rows or len(whole) < 3 or tuple(result) != (*whole[:-1], *columns):
            return None
        bias = product.inputs[2] if len(product.inputs) > 2 else ""
        if bias and self._shape(bias) not in (columns, (1, *columns)):
            return None
        weight, before = product.inputs[1], list[Op]()
        if product.attributes.get("transB"):
            turned = self._turned(product)
            weight, before = turned.name, [turned]
        changes = {"type": "MatMul", "inputs": (merge.inputs[0], weight), "attributes": {}}
        if not bias:
            return [*before, replace_op(apart, **changes)]
        name = self._named(f"{product.name}.unmerged", result, product.name)
        added = replace_op(apart, type="Add", inputs=(name, bias), attributes={})
        return [*before, replace_op(product, name=name, outputs=(name,), **changes), added]

    def _turned(self, product: Op) -> Op:
        """The transpose of a Gemm's weight."""
        weight = self.draft.tensors[product.inputs[1]]
        shape = None if weight.shape is None else tuple(reversed(weight.shape))
        name = self._named(f"{product.name}.weight", shape, product.name)
        changes = {"inputs": (weight.name,), "outputs": (name,), "attributes": {"perm": (1, 0)}}
        return replace_op(product, name=name, type="Transpose", source="", **changes)

    def _named(self, wanted: str, shape: tuple[int, ...] | None, like: str) -> str:
        """A new tensor of the shape, for the rest like another; its name, the wanted one if no other has it."""
        name = wanted
        while name in self.draft.tensors or name in self.draft.sources:
            name += "_"
        self.draft.tensors[name] = replace(self.draft.tensors[like], name=name, shape=shape)
        return name


def _is(op: Op, kind: str) -> bool:
    domain, name = split_type(op.type)
    return name == kind and domain in DOMAINS and len(op.outputs) == 1


def _groups(whole: Sequence[int], merged: Sequence[int]) -> _Groups | None:
    """Which neighbouring dimensions each of the `merged` ones consists of; None where one is not made of whole ones."""
    groups: _Groups = []
    taken = 0
    for size in merged:
        group: list[int] = []
        elements = 1
        while taken < len(whole) and (not group or elements < size):
            elements *= whole[taken]
            group.append(taken)
            taken += 1
        if elements != size or not group:
            return None
        groups.append(group)
    return groups if taken == len(whole) else None
