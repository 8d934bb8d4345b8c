"""Transposes that exporters write on merged dimensions, which are taken apart again behind them.

torch's exporter merges samples and heads before it transposes the keys of an attention:
(n, h, s, d) → (n·h, s, d) → (n·h, d, s) → (n, h, d, s).  A rank that has several samples, and some of the heads of
each, holds no block of the merged dimension: no layout says what it has, and its keys would be gathered.  Dimensions
that are merged and taken apart alike need not be merged: the three operators are one Transpose, under the name of the
last.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from planner.frontends.steps.draft import DOMAINS, Draft, replace_op, split_type
from planner.ir import Op

__all__ = ["transpose_apart"]

_Groups = list[list[int]]  # dimensions of a tensor that are merged, by the dimension that they become


def transpose_apart(draft: Draft) -> None:
    """Replaces such operators, in place, where nothing else reads what lies between."""
    made = {op.outputs[0]: op for op in draft.ops}
    reads = Counter(t for op in draft.ops for t in op.inputs) + Counter(draft.outputs)  # sub-graphs' among them

    def before(op: Op, kind: str) -> Op | None:
        """The operator that makes the first operand, if it is of the kind and for this one alone."""
        source = made.get(op.inputs[0]) if reads[op.inputs[0]] == 1 else None
        return source if source is not None and _is(source, kind) else None

    gone: set[str] = set()
    for i, op in enumerate(draft.ops):
        transpose = before(op, "Transpose") if _is(op, "Reshape") else None
        merge = before(transpose, "Reshape") if transpose is not None else None
        if transpose is None or merge is None:
            continue
        order = _unmerged(draft, merge, transpose, op)
        if order is not None:
            draft.ops[i] = replace_op(op, type="Transpose", inputs=merge.inputs[:1], attributes={"perm": order})
            gone |= {merge.name, transpose.name}
    draft.ops = [op for op in draft.ops if op.name not in gone]


def _is(op: Op, kind: str) -> bool:
    domain, name = split_type(op.type)
    return name == kind and domain in DOMAINS and len(op.outputs) == 1


def _unmerged(draft: Draft, merge: Op, transpose: Op, apart: Op) -> tuple[int, ...] | None:
    """The order of the dimensions before the merge that the three operators bring about; None where there is none."""
    whole, merged, result = (draft.tensors[t].shape for t in (merge.inputs[0], merge.name, apart.name))
    if whole is None or merged is None or result is None:
        return None
    groups = _groups(whole, merged)
    if groups is None or all(len(g) == 1 for g in groups):
        return None
    order = transpose.attributes.get("perm") or tuple(reversed(range(len(merged))))
    permutation = tuple(d for m in order for d in groups[m])
    return permutation if tuple(whole[d] for d in permutation) == tuple(result) else None


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
