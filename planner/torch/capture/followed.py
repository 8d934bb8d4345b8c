"""What a step computes without gradients, said by operators.

torch.export keeps what runs under `torch.no_grad()` as a graph of its own, and forgets what that ran under when it
decomposes operators; `detach_()` it takes for a tensor that is handed on.  What was computed without gradients would
get some.  Here all of it is detached before that.
"""

from __future__ import annotations

from collections.abc import Collection

import torch
from torch import Tensor
from torch.export import ExportedProgram
from torch.fx import GraphModule, Node
from torch.utils import _pytree as pytree

from planner.errors import InputError
from planner.torch.capture.places import place_of_node

__all__ = ["detach_what_is_not_followed"]

_GRAD = torch.ops.higher_order.wrap_with_set_grad_enabled
_PARTS = {_GRAD: 1, torch.ops.higher_order.wrap_with_autocast: 4}  # with the place of the graph among the arguments
_DETACH = torch.ops.aten.detach.default
_DETACH_IN_PLACE = torch.ops.aten.detach_.default


def detach_what_is_not_followed(program: ExportedProgram, name: str) -> None:
    """Changes the program's graphs in place.  InputError, which names the module, for what no operator can say."""
    signature, module = program.graph_signature, program.graph_module
    trained = {n for n, path in signature.inputs_to_parameters.items() if program.state_dict[path].requires_grad}
    _Part(module, trained, name).detach()


class _Part:
    """A graph of the program.  `followed`: nodes through which a gradient may come to a parameter, which begin as names
    of placeholders."""

    def __init__(self, module: GraphModule, followed: Collection[str], name: str) -> None:
        self.module, self.name = module, name
        self.given = [n for n in module.graph.nodes if n.op == "placeholder"]
        self.followed = {n for n in self.given if n.name in followed}

    def detach(self) -> None:
        for node in list(self.module.graph.nodes):
            if node.target == _DETACH_IN_PLACE:
                _detach_in_place(node)
            elif node.target in _PARTS:
                self._part(node)
            elif node.target != _DETACH and not self.followed.isdisjoint(node.all_input_nodes):
                self.followed.add(node)
        self.module.graph.lint()
        self.module.recompile()

    def _part(self, node: Node) -> None:
        at = _PARTS[node.target]
        inner = self.module.get_submodule(str(node.args[at].target))
        places = [n.name for n in inner.graph.nodes if n.op == "placeholder"]
        followed = {p for p, given in zip(places, node.args[at + 1 :], strict=True) if given in self.followed}
        part = _Part(inner, followed, self.name)
        part.detach()
        if node.target != _GRAD or node.args[0]:
            self.followed |= {node} if followed else set()
        elif followed:
            part.detach_results()

    def detach_results(self) -> None:
        self._refuse_writing()
        graph = self.module.graph
        (output,) = graph.find_nodes(op="output")
        for result in dict.fromkeys(pytree.tree_leaves(output.args)):
            if result in self.followed and result not in self.given and _is_real(result):
                with graph.inserting_before(output):
                    detached = graph.call_function(_DETACH, (result,))
                detached.meta = dict(result.meta)
                output.replace_input_with(result, detached)
        self.module.recompile()

    def _refuse_writing(self) -> None:
        """Into a tensor from outside: its values would change there, and its gradient not."""
        for node in self.module.graph.nodes:
            if isinstance(node.target, torch._ops.OpOverload):
                for argument, given in zip(node.target._schema.arguments, node.args, strict=False):
                    written = argument.alias_info is not None and argument.alias_info.is_write
                    if written and given in self.given and given in self.followed:
                        operator = node.target._schema.name.removeprefix("aten::")
                        raise InputError(
                            f"{self.name}: {operator} under torch.no_grad() writes into a tensor that has a gradient"
                            f"{place_of_node(node)}; compute a new tensor instead, or write into it where gradients "
                            "are followed"
                        )


def _detach_in_place(node: Node) -> None:
    """What reads the tensor from here on reads it without its gradient."""
    source = node.args[0]
    assert isinstance(source, Node)
    place = {n: k for k, n in enumerate(node.graph.nodes)}
    with node.graph.inserting_after(node):
        detached = node.graph.call_function(_DETACH, (source,))
    detached.meta = dict(node.meta)
    for user in [*node.users, *(u for u in source.users if place.get(u, 0) > place[node])]:
        for old in (node, source):
            user.replace_input_with(old, detached)
    node.graph.erase_node(node)


def _is_real(node: Node) -> bool:
    value = node.meta.get("val")
    return isinstance(value, Tensor) and (value.is_floating_point() or value.is_complex())
