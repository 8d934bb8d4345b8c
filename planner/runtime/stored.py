"""What Inductor is to store where it would compute a value again for each of its readers.

Inductor writes down what a value is computed from, and lets every kernel that reads the value compute it, unless it is
made of more than four tensors.  PyTorch's own division into a forward and a backward graph says what is stored between
them; a step of ours is one graph, in which nothing says so.  Two kinds of values are better stored:

- what a product reads besides other readers: a product reads from memory, so that the value is stored in any case, and
  the gradient of a GELU was computed a second time for the sum that is the bias's gradient;
- the sum of two tensors that have to be stored until it is read: a residual sum, for which both terms were held.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

import torch
from torch import Tensor
from torch._inductor.custom_graph_pass import CustomGraphPass, get_hash_for_files
from torch.fx import Graph, Node

__all__ = ["StoredOnce"]

_ATEN: Final = torch.ops.aten
# What reads its operands from memory.
_PRODUCTS: Final = frozenset({_ATEN.mm, _ATEN.addmm, _ATEN.bmm, _ATEN.baddbmm, _ATEN.convolution})
# What gives the elements of its operand under other indices, without a kernel.
_VIEWS: Final = frozenset(
    {_ATEN.alias, _ATEN.permute, _ATEN.reshape, _ATEN.squeeze, _ATEN.t, _ATEN.transpose, _ATEN.unsqueeze, _ATEN.view,
     _ATEN._unsafe_view}
)  # fmt: skip
_STORE: Final = "inductor_realize_to_strides"  # Inductor's word on a node


class StoredOnce(CustomGraphPass):
    """Marks the values of a graph that Inductor is to store; runs on what is left once operators are decomposed."""

    def __call__(self, graph: Graph) -> None:
        read: dict[Node, frozenset[Node]] = {}  # the stored values, of a value's own size, that it is computed from
        for node in graph.nodes:
            if (kind := _kind(node)) in _VIEWS:
                read[node] = read.get(node.args[0], frozenset())
            elif not _elementwise(node):
                read[node] = frozenset((node,))
            elif _shared_with_product(node) or _sum_of_stored(node, kind, read):
                node.meta[_STORE] = True
                read[node] = frozenset((node,))
            else:
                read[node] = frozenset().union(*(read[x] for x in node.all_input_nodes if _size(x) == _size(node)))

    def uuid(self) -> bytes:
        return get_hash_for_files((__file__,))


def _kind(node: Node) -> object:
    return getattr(node.target, "overloadpacket", None)


def _elementwise(node: Node) -> bool:
    value = node.meta.get("val")
    tags = getattr(node.target, "tags", ())
    return isinstance(value, Tensor) and value.is_floating_point() and torch.Tag.pointwise in tags


def _size(node: Node) -> int:
    value = node.meta.get("val")
    return value.numel() if isinstance(value, Tensor) else 0


def _readers(node: Node) -> Iterator[Node]:
    for user in node.users:
        if _kind(user) in _VIEWS:
            yield from _readers(user)
        else:
            yield user


def _shared_with_product(node: Node) -> bool:
    by_product = {_kind(reader) in _PRODUCTS for reader in _readers(node)}
    return len(by_product) == 2


def _sum_of_stored(node: Node, kind: object, read: Mapping[Node, frozenset[Node]]) -> bool:
    terms = node.all_input_nodes
    if kind not in (_ATEN.add, _ATEN.sub) or len(terms) != 2 or any(_size(t) != _size(node) for t in terms):
        return False
    first, second = (read[t] for t in terms)
    return not first <= second and not second <= first and len(set(_readers(node))) > 1
