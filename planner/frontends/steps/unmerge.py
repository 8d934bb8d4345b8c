"""Undo what exporters merge: equal initializers that are distinct parameters.

torch's exporters keep one copy of tensors with equal values.  Freshly initialised biases are all zero and
norm scales all one, so one bias of `vit_b16` stands for 85; planned like that, all would be tied.  A layer that is
called several times reads one parameter several times, too, and that is a tie: its gradients add up.

The rule.  A source stays one tensor unless everything says that it stands for several:

- it is *light*: a vector, perhaps with dimensions of one.  Two random weight matrices are never equal by chance, so
  a source with two or more dimensions larger than one is truly tied (embedding and output projection);
- its value, where the file shows it, is one number throughout, as only initial values are: a trained vector is not
  equal to another by chance, either;
- every reader comes from a known module and uses it as a parameter is used (weight or bias), and there are two
  modules or parts at least.  Another call of a module is no other module: torch counts calls as `layer@1`, and the
  TorchScript exporter as `/layer/a_1`, where `a_1` is a module of its own only if a source is called `layer.a_1.…`;
- a name that is a path of a parameter (`encoder.norm.bias`) belongs to one of the modules that read it, or to one
  inside them.  Merging keeps the name of one of the merged, so a name of any other module is that of a parameter
  which its owner hands to others.

Each module and part then gets a parameter of its own.  The one that the original name belongs to keeps it; others are
called `<module>.<part>`, and `Source.origin` says which initializer of the file each comes from.

An `Identity` of a light source whose result has a module path for a name (TorchScript's form of the same merge) is a
parameter of that name; of a heavy one, or one whose values show that it is trained, a second name for the same tensor.
"""

from __future__ import annotations

import re
from dataclasses import replace

from planner.frontends.facts.weights import places
from planner.frontends.steps.draft import Draft, Source, captured_by, is_light, split_type
from planner.frontends.steps.roles import stand_for_weights
from planner.ir import Op, Role

__all__ = ["fill_sources", "unmerge"]

_PATH = re.compile(r"^[A-Za-z_]\w*(\.\w+)+$")
_CALLS = re.compile(r"@\d+")  # torch.export's count of further calls of a module
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
    modules = _Modules(draft)
    for name, uses in readers.items():
        if len(uses) > 1 and _may_be_merged(draft, name):
            _split(draft, name, uses, modules, renamed)
    if renamed:
        draft.rename_operands(lambda op, k, t: renamed.get((op.name, k), t))


def _split(
    draft: Draft, name: str, uses: list[tuple[Op, int]], modules: _Modules, renamed: dict[tuple[str, int], str]
) -> None:
    groups: dict[tuple[str, str], list[tuple[Op, int]]] = {}
    for op, k in uses:
        part = _part(op, k)
        if not part or not op.module:
            return  # a use that no parameter has, or of unknown origin: leave the source alone
        groups.setdefault((modules.of(op), part), []).append((op, k))
    if len(groups) < 2:
        return
    owner = _owner(name, list(groups))
    if owner is None:
        return
    for (module, part), members in groups.items():
        if (module, part) == owner:
            continue
        fresh = _fresh(draft, f"{module}.{part}")
        _copy(draft, name, fresh)
        renamed.update(((op.name, k), fresh) for op, k in members)


def _owner(name: str, groups: list[tuple[str, str]]) -> tuple[str, str] | None:
    """The module and part that the name belongs to; the first where it is no path, None where it is another's."""
    if not _PATH.match(name):
        return groups[0]
    holder, _, part = _CALLS.sub("", name).rpartition(".")
    ranked = sorted(groups, key=lambda g: (_kinship(holder, g[0]), g[1] != part))
    return ranked[0] if _kinship(holder, ranked[0][0]) < _STRANGERS else None


_STRANGERS = 3


def _kinship(holder: str, module: str) -> int:
    """0: the same; 1: but for a prefix of one of the paths (a wrapper's); 2: the holder is inside the module, whose own
    operators use its parameters (attention and its output projection); else strangers."""
    if holder == module:
        return 0
    if holder.endswith(f".{module}") or module.endswith(f".{holder}"):
        return 1
    return 2 if f".{holder}.".find(f".{module}.") >= 0 else _STRANGERS


class _Modules:
    """Paths of modules without the counters that exporters add for further calls."""

    def __init__(self, draft: Draft) -> None:
        self.called = {op.module for op in draft.ops if op.module}
        self.parents = {
            ".".join(parts[:n]) for m in self.called for parts in [m.split(".")] for n in range(len(parts) + 1)
        }
        self.owners = {
            ".".join(parts[:n])
            for s in draft.sources
            if _PATH.match(s)
            for parts in [s.split(".")]
            for n in range(len(parts))
        }
        self._known: dict[str, str] = {}

    def of(self, op: Op) -> str:
        path = _CALLS.sub("", op.module)
        return self._without_counters(path) if op.source.startswith("/") else path

    def _without_counters(self, path: str) -> str:
        """`layer.a` for TorchScript's `layer.a_1` where the first is a module and nothing belongs to the second."""
        if path not in self._known:
            parent, _, last = path.rpartition(".")
            parent = self._without_counters(parent) if parent else ""
            plain = re.sub(r"_\d+$", "", last)
            joined, first = (f"{parent}.{n}" if parent else n for n in (last, plain))
            repeated = plain != last and first in self.parents and not self._owns(joined)
            self._known[path] = first if repeated else joined
        return self._known[path]

    def _owns(self, path: str) -> bool:
        return any(o == path or o.endswith(f".{path}") for o in self.owners)


def _resolve_identities(draft: Draft) -> None:
    outer = {t for op in draft.ops for t in captured_by(op)} | set(draft.outputs)
    alias: dict[str, str] = {}
    ops = []
    for op in draft.ops:
        source = alias.get(op.inputs[0], op.inputs[0]) if op.inputs else ""
        merged = split_type(op.type) == ("", "Identity") and source in draft.sources and not draft.sources[source].fed
        if not merged or op.name in outer or not draft.tensors[source].is_float:
            ops.append(op)
        elif _may_be_merged(draft, source) and _PATH.match(op.name):
            _copy(draft, source, op.name)
        else:
            alias[op.name] = source
            draft.tensors.pop(op.name, None)
    draft.ops = ops
    if alias:
        draft.rename_operands(lambda _op, _k, t: alias.get(t, t))


def _part(op: Op, k: int) -> str:
    """`weight` or `bias` by the place of the operand; empty where light parameters do not stand."""
    kind = split_type(op.type)[1]
    if k in places(op).weights:
        return "bias" if k >= 2 else "weight"
    if kind in _ARITHMETIC:
        return "bias" if kind in _ADDS else "weight"
    return ""


def _may_be_merged(draft: Draft, name: str) -> bool:
    """A light source of the file that may hold an initial value."""
    s = draft.sources[name]
    return (
        draft.tensors[name].is_float and s.dims is not None and is_light(s.dims) and not s.fed and s.fill is not False
    )


def _fresh(draft: Draft, wanted: str) -> str:
    name, n = wanted, 1
    while name in draft.tensors or name in draft.sources:
        name, n = f"{wanted}_{n}", n + 1
    return name


def _copy(draft: Draft, source: str, name: str) -> None:
    s: Source = draft.sources[source]
    draft.sources[name] = replace(s, name=name, origin=s.origin or source)
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
