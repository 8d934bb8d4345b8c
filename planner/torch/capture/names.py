"""Names of a captured step: of what is fed to it, and of the modules that its operators belong to."""

from __future__ import annotations

import inspect
from collections.abc import Collection, Iterator
from typing import Any

from torch import Tensor, nn
from torch.fx import Node
from torch.utils import _pytree as pytree

from planner.errors import InputError
from planner.torch.capture.result import Fixed
from planner.torch.capture.unallocated import has_numbers

__all__ = ["argument_names", "fixed_arguments", "input_leaves", "input_names", "module_path"]

_MODULE = "module"


def argument_names(module: nn.Module) -> tuple[str, ...]:
    """Those of the module's own arguments that may be given by place and have a name, in order."""
    try:
        given = inspect.signature(module.forward).parameters.values()
    except (TypeError, ValueError):
        return ()
    return tuple(p.name for p in given if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD))


def input_names(module: nn.Module, given: Any) -> Iterator[str]:
    """Names of the tensors that are fed: those of the module's own arguments, and `target`."""
    return (name for _, _, name, _ in _tensors(module, given))


def input_leaves(module: nn.Module, given: Any) -> Iterator[int]:
    """Their places among the leaves of all arguments, in the same order."""
    return (leaf for leaf, *_ in _tensors(module, given))


def fixed_arguments(module: nn.Module, given: Any, names: Collection[str]) -> tuple[Fixed, ...]:
    """The tensors of arguments that have the same numbers in every step.

    InputError where a name is that of no argument with tensors, or a tensor has no numbers.
    """
    found: list[Fixed] = []
    known = list(_tensors(module, given))
    for name in [names] if isinstance(names, str) else names:
        named = [(leaf, full, x) for leaf, root, full, x in known if name in (root, full)]
        if not named:
            near = ", ".join(full for _, _, full, _ in known)
            raise InputError(f"{type(module).__name__}: fixed: no tensor is given as {name!r}; given are {near}")
        for leaf, full, x in named:
            if not has_numbers(x):
                raise InputError(f"{type(module).__name__}: fixed: {full} has no numbers; give it on the CPU")
            found.append(Fixed(full, leaf, x.detach().cpu().clone()))
    return tuple(found)


def _tensors(module: nn.Module, given: Any) -> Iterator[tuple[int, str, str, Tensor]]:
    """Each with its place among the leaves, the name of its argument, and its own."""
    arguments = argument_names(module)
    for leaf_index, (path, leaf) in enumerate(pytree.tree_flatten_with_path(given)[0]):
        if not isinstance(leaf, Tensor):
            continue
        places: list[Any] = [getattr(k, "idx", getattr(k, "key", None)) for k in path]
        kind, *rest = places
        if kind == 0:
            first = arguments[rest[0]] if rest[0] < len(arguments) else f"input_{rest[0]}"
        elif kind == 1:
            first = str(rest[0])
        else:
            first = "target" if len(given[2]) == 1 else f"target_{rest[0]}"
        yield leaf_index, first, "_".join([first, *map(str, rest[1:])]), leaf


def module_path(node: Node) -> str:
    """The path of the module that an operator belongs to."""
    stack = node.meta.get("nn_module_stack") or {}
    path = next((p for p, _ in reversed(list(stack.values()))), "")
    return str(path).removeprefix(_MODULE).removeprefix(".")
