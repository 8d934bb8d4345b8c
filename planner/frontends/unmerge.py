"""Undo what exporters merge: equal initializers that are distinct parameters.

torch's exporter keeps one copy of tensors with equal values.  Freshly initialised biases are all zero and
norm scales all one, so one bias of `vit_b16` stands for 85; planned like that, all would be tied.

The rule.  Two random weight matrices are never equal by chance, so a source with two or more dimensions
larger than one stays as it is: read in several places it is truly tied (embedding and output projection).
A light one (a vector, perhaps with dimensions of one) is equal by its constant value, so its consumers are
grouped by the module they come from and the part they play (weight or bias), and every group gets a
parameter of its own.  The group that the original name belongs to keeps it; others are called
`<module>.<part>`.  Without module paths nothing is known and nothing is split.  An `Identity` of a light
source whose result has a module path for a name (TorchScript's form of the same merge) is a parameter of
that name; of a heavy one it is a second name for the same tensor.
"""

from __future__ import annotations

import re
from dataclasses import replace

from planner.frontends.draft import Draft, Source, captured_by, split_type
from planner.frontends.roles import is_weight_slot, stand_for_weights
from planner.ir import Op, Role, Tensor

__all__ = ["fill_sources", "unmerge"]

_PATH = re.compile(r"^[A-Za-z_]\w*(\.\w+)+$")
_ADDS = frozenset({"Add", "Sub", "Sum"})
_ARITHMETIC = _ADDS | {"Mul", "Div"}


def unmerge(draft: Draft) -> None:
    """Split light shared sources and resolve identities of sources, in place."""
    _resolve_identities(draft)
    readers: dict[str, list[tuple[Op, int]]] = {}
    for op in draft.ops:
        for k, t in enumerate(op.inputs):
            if t in draft.sources:
                readers.setdefault(t, []).append((op, k))
    renamed: dict[tuple[str, int], str] = {}
    for name, uses in readers.items():
        if len(uses) > 1 and _is_light(draft.tensors[name]) and not draft.sources[name].fed:
            _split(draft, name, uses, renamed)
    if renamed:
        draft.rename_operands(lambda op, k, t: renamed.get((op.name, k), t))


def _split(draft: Draft, name: str, uses: list[tuple[Op, int]], renamed: dict[tuple[str, int], str]) -> None:
    groups: dict[tuple[str, str], list[tuple[Op, int]]] = {}
    for op, k in uses:
        part = _part(op, k)
        if not part or not op.module:
            return  # a use that no parameter has, or of unknown origin: leave the source alone
        groups.setdefault((op.module, part), []).append((op, k))
    if len(groups) < 2:
        return
    owner = next((g for g in groups if f"{g[0]}.{g[1]}" == name or name.startswith(f"{g[0]}.")), next(iter(groups)))
    for (module, part), members in groups.items():
        if (module, part) == owner:
            continue
        fresh = _fresh(draft, f"{module}.{part}")
        _copy(draft, name, fresh)
        renamed.update(((op.name, k), fresh) for op, k in members)


def _resolve_identities(draft: Draft) -> None:
    outer = {t for op in draft.ops for t in captured_by(op)} | set(draft.outputs)
    alias: dict[str, str] = {}
    kept = []
    for op in draft.ops:
        source = alias.get(op.inputs[0], op.inputs[0]) if op.inputs else ""
        merged = split_type(op.type) == ("", "Identity") and source in draft.sources and not draft.sources[source].fed
        if not merged or op.name in outer or not draft.tensors[source].is_float:
            kept.append(op)
        elif _is_light(draft.tensors[source]) and _PATH.match(op.name):
            _copy(draft, source, op.name)
        else:
            alias[op.name] = source
            draft.tensors.pop(op.name, None)
    draft.ops = kept
    if alias:
        draft.rename_operands(lambda _op, _k, t: alias.get(t, t))


def _part(op: Op, k: int) -> str:
    """`weight` or `bias` by the place of the operand; empty where light parameters do not stand."""
    kind = split_type(op.type)[1]
    if is_weight_slot(op, k):
        return "bias" if k >= 2 or (kind == "Gemm" and k == 2) else "weight"
    if kind in _ARITHMETIC:
        return "bias" if kind in _ADDS else "weight"
    return ""


def _is_light(t: Tensor) -> bool:
    return t.is_float and t.shape is not None and t.elements >= 2 and sum(d > 1 for d in t.shape) == 1


def _fresh(draft: Draft, wanted: str) -> str:
    name, n = wanted, 1
    while name in draft.tensors or name in draft.sources:
        name, n = f"{wanted}_{n}", n + 1
    return name


def _copy(draft: Draft, source: str, name: str) -> None:
    s: Source = draft.sources[source]
    draft.sources[name] = replace(s, name=name)
    draft.tensors[name] = replace(draft.tensors[source], name=name)


def fill_sources(draft: Draft) -> None:
    """Turn fills that stand for weights (graphs stripped of theirs, `ConstantOfShape` instead) into sources."""
    fills = {
        op.name
        for op in draft.ops
        if op.type == "ConstantOfShape" and op.inputs[0] in draft.sources and draft.tensors[op.name].is_float
    }
    weights = stand_for_weights(draft, sorted(fills)) if fills else set()
    for name in weights:
        t = draft.tensors[name]
        draft.sources[name] = Source(name, t.shape, t.dtype, fed=False)
        draft.tensors[name] = replace(t, role=Role.CONSTANT)
    draft.ops = [op for op in draft.ops if op.name not in weights]
