"""Transposes that exporters write on fewer dimensions.

torch's exporter merges samples and heads before it transposes the keys of an attention, and takes them apart again:
(n, h, s, d) → (n·h, s, d) → (n·h, d, s) → (n, h, d, s).  On the way a rank of several samples and some of the heads
holds no block of the merged dimension, so that no layout says what it has, and keys would be gathered.  Dimensions that
are merged and taken apart alike need not be merged: the three operators are one Transpose, under the name of the last.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from planner.frontends.steps.draft import DOMAINS, Draft, captured_by, replace_op, split_type
from planner.ir import Op

__all__ = ["transpose_unmerged"]

_Groups = list[list[int]]  # dimensions of a tensor that are merged, by the dimension that they become


def transpose_unmerged(draft: Draft) -> None:
    """Replaces each Reshape behind a Transpose of merged dimensions, in place, where nothing else reads what lies
    between; what is not read any more, the graph leaves out."""
    made = {op.outputs[0]: op for op in draft.ops if op.outputs}
    reads = Counter(t for op in draft.ops for t in op.inputs) + Counter(draft.outputs)
    outer = {t for op in draft.ops for t in captured_by(op)}

    def before(op: Op, kind: str) -> Op | None:
        """The operator that makes the first operand, if it is of the kind and for this one alone."""
        source = made.get(op.inputs[0])
        alone = source is not None and reads[op.inputs[0]] == 1 and op.inputs[0] not in outer
        return source if source is not None and alone and _is(source, kind) else None

    for i, op in enumerate(draft.ops):
        transpose = before(op, "Transpose") if _is(op, "Reshape") else None
        merge = before(transpose, "Reshape") if transpose is not None else None
        if transpose is None or merge is None:
            continue
        permutation = _unmerged(draft, merge, transpose, op)
        if permutation is not None:
            changes = {"type": "Transpose", "inputs": merge.inputs[:1], "attributes": {"perm": permutation}}
            draft.ops[i] = replace_op(op, **changes)


def _is(op: Op, kind: str) -> bool:
    domain, name = split_type(op.type)
    return name == kind and domain in DOMAINS and len(op.outputs) == 1


def _unmerged(draft: Draft, merge: Op, transpose: Op, apart: Op) -> tuple[int, ...] | None:
    """The permutation of the dimensions before the merge that the three operators are; None where they are none."""
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
