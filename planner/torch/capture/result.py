"""What a captured step is: its graph, and what leads back from it to the module."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from planner.errors import InputError
from planner.ir import Graph
from planner.torch.capture.returned import Returned

__all__ = ["BufferUpdate", "Capture", "plain_of"]


@dataclass(frozen=True, slots=True)
class BufferUpdate:
    """A buffer that a step changes: the output of the graph that is its new value, or what is `added` to a count.

    `counted`: the tensor whose elements per channel a running variance was counted from; it is to be n / (n - 1) times
    what a step adds to it.
    """

    buffer: str
    output: str = ""
    added: int = 0
    counted: str = ""
    momentum: float = 0.0


@dataclass(frozen=True, slots=True, eq=False)
class Fixed:
    """An argument that has the same numbers in every step: its name, and its place among all leaves of a call."""

    name: str
    leaf: int
    numbers: Tensor = field(repr=False)

    def holds(self, given: Tensor) -> bool:
        """Whether a call has these numbers."""
        if given.shape != self.numbers.shape or given.dtype != self.numbers.dtype:
            return False
        same = (given.cpu() == self.numbers) | ((given != given).cpu() & (self.numbers != self.numbers))
        return bool(same.all())


@dataclass(frozen=True)
class Capture:
    """A step of a module.

    model       the serialised ModelProto: what is planned for; its parameters have the module's names
    name        the module's class
    inputs      names of the graph's inputs, in the order in which `flattened` has them
    parameters  trained parameters by name, and those that are `frozen`; `aliases`: further names of the same ones
    updates     buffers that the step changes
    constants   tensors of the graph that are known, by name
    kept        buffers whose numbers the graph has or is given once
    training    whether the module was in training mode; `mode_matters`: whether the step has operators to which that
                makes a difference
    positional  the number of positional arguments of the module; targets come behind them
    returned    where the loss is in what the module returns
    loss        the name of the loss, None where the step has none
    plain       what the module was called with that is no tensor; `arguments`: the names of its arguments, in order
    fixed       arguments whose numbers every step has
    """

    model: bytes
    name: str
    inputs: tuple[str, ...]
    parameters: tuple[str, ...]
    frozen: tuple[str, ...]
    aliases: Mapping[str, str]
    updates: tuple[BufferUpdate, ...]
    constants: Mapping[str, Tensor] = field(repr=False)
    training: bool
    loss: str | None
    structure: pytree.TreeSpec = field(repr=False)
    positional: int = 0
    returned: Returned = field(default_factory=Returned)
    mode_matters: bool = False
    kept: tuple[str, ...] = ()
    plain: tuple[Any, ...] = ()
    arguments: tuple[str, ...] = ()
    fixed: tuple[Fixed, ...] = ()

    def fed(self, arguments: tuple[Any, ...], keywords: Mapping[str, Any]) -> list[Tensor]:
        """The tensors of a call with the module's own arguments and the targets behind them, in the order of `inputs`.

        Arguments may be given by place or by name, whichever they were planned with.  InputError where they are not
        built alike.
        """
        listed, named, wanted = self.structure.children()
        own = max(len(arguments) - wanted.num_children, 0)
        given = {**dict(zip(self.arguments, arguments[:own], strict=False)), **keywords}
        places = self.arguments[: listed.num_children]
        names = list(named.context)
        known = own <= len(self.arguments) and set(given) == {*places, *names} and len(given) == own + len(keywords)
        if not known:
            return self.flattened(arguments[: self.positional], keywords, arguments[self.positional :])
        return self.flattened([given[n] for n in places], {n: given[n] for n in names}, arguments[own:])

    def paths(self, graph: Graph) -> dict[str, str]:
        """Parameter of the graph → the module's name of it."""
        return {t.name: graph.origins.get(t.name, t.name) for t in graph.parameters}

    def flattened(self, inputs: Sequence[Any], kwargs: Mapping[str, Any], targets: Sequence[Any]) -> list[Tensor]:
        """The tensors that a step reads, in the order of `inputs`.  InputError where they are not built alike."""
        given: Any = (tuple(inputs), dict(kwargs), tuple(targets))
        leaves, structure = pytree.tree_flatten(given)
        if structure != self.structure:
            leaves, structure = pytree.tree_flatten(_in_order(given, self.structure))
        if structure != self.structure:
            raise InputError(
                f"{self.name}: the step was planned for arguments, keywords and targets like "
                f"{pytree.treespec_pprint(self.structure)}, and is called with {pytree.treespec_pprint(structure)}; "
                "give it the same arguments, and the targets behind them"
            )
        plain = plain_of(leaves)
        if not _same(plain, self.plain):
            raise InputError(
                f"{self.name}: the step was planned with {list(self.plain)} for its arguments that are no tensors, and "
                f"is called with {list(plain)}; plan again for others"
            )
        for f in self.fixed:
            if not f.holds(leaves[f.leaf]):
                raise InputError(
                    f"{self.name}: {f.name} has other values than those that the step was planned with, where it was "
                    "said to be fixed; plan again for others"
                )
        apart = {f.leaf for f in self.fixed}
        return [leaf for i, leaf in enumerate(leaves) if isinstance(leaf, Tensor) and i not in apart]


def plain_of(leaves: Sequence[Any]) -> tuple[Any, ...]:
    """What of the arguments is no tensor."""
    return tuple(leaf for leaf in leaves if not isinstance(leaf, Tensor))


def _in_order(value: Any, spec: pytree.TreeSpec) -> Any:
    """With the keys of dictionaries in the order that they had when the step was planned."""
    children = spec.children()
    if isinstance(value, dict) and spec.type is type(value) and set(value) == set(spec.context):
        ordered = {k: _in_order(value[k], child) for k, child in zip(spec.context, children, strict=True)}
        return ordered if type(value) is dict else type(value)(ordered)
    if type(value) in (list, tuple) and spec.type is type(value) and len(value) == len(children):
        return type(value)(_in_order(v, child) for v, child in zip(value, children, strict=True))
    return value


def _same(found: Sequence[Any], wanted: Sequence[Any]) -> bool:
    """Objects that have no order of their own, such as caches, are alike where they are of one kind."""
    simple = (bool, int, float, str, type(None), torch.dtype, torch.device)
    return len(found) == len(wanted) and all(
        type(a) is type(b) and (a == b or not isinstance(a, simple)) for a, b in zip(found, wanted, strict=True)
    )
