"""Which operators and tensors of a graph a pin means.

A pattern is a glob (`*`, `?`, `[abc]`; `*` crosses dots and slashes) that must match a whole name.  Operators go by the
name of their first output, their name in the file, their module path, and the module path with the first output's name
behind it; slashes and dots between modules mean the same.  A pattern that is a name, to the letter, means that name.
"""

from __future__ import annotations

import difflib
import fnmatch
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property

from planner.errors import InputError
from planner.ir import Graph, Op, Role
from planner.planning.constraints.values import OperatorPin, ParameterPin, TensorPin

__all__ = ["Selector", "counted", "near_names"]

MOST_COMPARED = 30_000
_WILD = re.compile(r"[*?\[]")


def counted(names: Iterable[str], most: int = 6) -> str:
    """`a, b and 3 more`."""
    items = list(names)
    more = f" and {len(items) - most} more" if len(items) > most else ""
    return ", ".join(items[:most]) + more


class Selector:
    """The names of one graph; `fixed` holds the operators that compute with constants alone."""

    def __init__(self, graph: Graph, fixed: frozenset[str]) -> None:
        self.graph, self.fixed = graph, fixed

    def operators(self, pin: OperatorPin) -> list[Op]:
        """Those meant, in graph order.  InputError, with names that come near, where there are none.

        What is computed from constants alone is whole anyway: only a pin that would split it is an error.
        """
        criteria = (
            (pin.types, self._by_type, "type"),
            (pin.match, self._by_name, "name"),
            (pin.reads, self._by_weight, "parameter read"),
        )
        sets = [
            set(self._named(pin.where, p, names, f"operator by {what}", _no_hint)) for p, names, what in criteria if p
        ]
        chosen = [self.graph.producers[n] for n in sorted(set.intersection(*sets), key=self._position.__getitem__)]
        if not chosen:
            patterns = " and ".join(f"{p!r}" for p in (*pin.types, *pin.match, *pin.reads))
            raise InputError(f"constraints {pin.where}: no operator is all of {patterns}; drop one of these patterns")
        free = [op for op in chosen if op.name not in self.fixed]
        if not free and pin.strategy.splits:
            raise InputError(
                f"constraints {pin.where}: {counted(op.name for op in chosen)}: computed from constants alone, once "
                f"for all steps and whole on every rank; pin an operator that reads it"
            )
        return free

    def tensors(self, pin: TensorPin) -> list[str]:
        """Inputs and computed tensors.  InputError where there are none; parameters have pins of their own."""
        known = {
            n: (n,)
            for n, t in self.graph.tensors.items()
            if t.shape is not None and (t.role is Role.INPUT or n in self._computed)
        }
        found = set(self._named(pin.where, pin.match, known, "tensor", self._parameter_instead))
        return [n for n in known if n in found]

    def parameters(self, pin: ParameterPin) -> list[str]:
        """InputError where there are none."""
        found = set(self._named(pin.where, pin.match, self._parameters, "parameter", _no_hint))
        return [n for n in self._parameters if n in found] if len(found) > 1 else [*found]

    def _parameter_instead(self, patterns: Sequence[str]) -> str:
        if any(t.name == p for t in self.graph.parameters for p in patterns):
            return "; it is a parameter: pin it under `parameters`"
        return ""

    @cached_property
    def _parameters(self) -> Mapping[str, tuple[str, ...]]:
        return {t.name: (t.name,) for t in self.graph.parameters if t.name in self.graph.consumers}

    @cached_property
    def _position(self) -> Mapping[str, int]:
        return {op.name: i for i, op in enumerate(self.graph.ops)}

    @cached_property
    def _computed(self) -> frozenset[str]:
        return frozenset(t for op in self.graph.ops if op.name not in self.fixed for t in op.outputs if t)

    @cached_property
    def _by_name(self) -> Mapping[str, tuple[str, ...]]:
        return {
            op.name: tuple(dict.fromkeys(filter(None, (op.name, op.source, op.module, f"{op.module}.{op.name}"))))
            for op in self.graph.ops
        }

    @cached_property
    def _by_type(self) -> Mapping[str, tuple[str, ...]]:
        return {op.name: (op.type,) for op in self.graph.ops}

    @cached_property
    def _by_weight(self) -> Mapping[str, tuple[str, ...]]:
        """Operator → the parameters it reads, directly or as other operators have transposed or cast them."""
        origin: dict[str, tuple[str, ...]] = {t.name: (t.name,) for t in self.graph.parameters}
        found: dict[str, tuple[str, ...]] = {}
        for op in self.graph.ops:
            found[op.name] = tuple(p for t in op.inputs for p in origin.get(t, ()))
            others = [t for t in op.inputs if t and t not in origin]
            if found[op.name] and all(self.graph.tensors[t].role is Role.CONSTANT for t in others):
                origin.update((t, found[op.name]) for t in op.outputs if t)
        return found

    def _named(
        self,
        where: str,
        patterns: tuple[str, ...],
        names: Mapping[str, tuple[str, ...]],
        what: str,
        hint: Callable[[Sequence[str]], str],
    ) -> list[str]:
        found: dict[str, None] = {}
        for pattern in patterns:
            hits = _hits(pattern, names)
            if not hits:
                near = near_names(pattern, sorted({n for own in names.values() for n in own}))
                raise InputError(f"constraints {where}: no {what} matches {pattern!r}{hint((pattern,)) or near}")
            found.update(dict.fromkeys(hits))
        return list(found)


def _no_hint(_: Sequence[str]) -> str:
    return ""


def _hits(pattern: str, names: Mapping[str, tuple[str, ...]]) -> list[str]:
    if pattern in names.get(pattern, ()):
        return [pattern]
    exact = [key for key, own in names.items() if pattern in own]
    if exact:
        return exact
    wild = re.compile(fnmatch.translate(pattern.replace("/", ".").lstrip(".")))
    return [key for key, own in names.items() if any(wild.match(n.replace("/", ".").lstrip(".")) for n in own)]


def near_names(pattern: str, names: Sequence[str]) -> str:
    """`; did you mean …?`: names some part of which, between dots, looks like the pattern without its wildcards."""
    core = _WILD.sub("", pattern).lower().replace("/", ".").strip(".]")
    parts = core.count(".") + 1
    by_part: dict[str, list[str]] = {}
    for name in names if len(names) <= MOST_COMPARED else ():
        split = name.lower().replace("/", ".").split(".")
        for i in range(max(1, len(split) - parts + 1)):
            by_part.setdefault(".".join(split[i : i + parts]), []).append(name)
    parts_near = [core] if core in by_part else difflib.get_close_matches(core, by_part, n=3, cutoff=0.6)
    near = [n for part in parts_near for n in by_part[part]]
    if near:
        return f"; did you mean {counted(dict.fromkeys(near), 4)}?"
    return f"; among {len(names)} there are {counted(names, 4)}" if names else "; there is none at all"
