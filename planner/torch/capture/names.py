"""Names of a captured step: of what is fed to it, and of the modules that its operators belong to."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

from torch import Tensor, nn
from torch.fx import Node
from torch.utils import _pytree as pytree

__all__ = ["argument_names", "input_names", "module_path"]

_MODULE = "module"


def argument_names(module: nn.Module) -> tuple[str, ...]:
    """Those of the module's own arguments that have a name, in order."""
    try:
        given = inspect.signature(module.forward).parameters.values()
    except (TypeError, ValueError):
        return ()
    return tuple(p.name for p in given if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD))


def input_names(module: nn.Module, given: Any) -> Iterator[str]:
    """Names of the tensors that are fed: those of the module's own arguments, and `target`."""
    arguments = argument_names(module)
    for path, leaf in pytree.tree_flatten_with_path(given)[0]:
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
        yield "_".join([first, *map(str, rest[1:])])


def module_path(node: Node) -> str:
    """The path of the module that an operator belongs to."""
    stack = node.meta.get("nn_module_stack") or {}
    path = next((p for p, _ in reversed(list(stack.values()))), "")
    return str(path).removeprefix(_MODULE).removeprefix(".")
