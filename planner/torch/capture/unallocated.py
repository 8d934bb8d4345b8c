"""Modules whose weights take no memory.

`without_weights` builds one: every parameter goes to the meta device when a module registers it, and everything else,
such as rotary tables in buffers, is computed as ever.  `stood_in` lets torch.export follow such a module, or one that
lies on the meta device altogether: tensors without numbers are fake ones of the CPU meanwhile, so that they meet those
that have numbers on one device.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

__all__ = ["has_numbers", "stood_in", "without_weights"]

_UNFILLED = frozenset({torch.empty, torch.rand, torch.randn})
_LARGE = 1 << 24  # elements; 64 MiB in single precision


def has_numbers(value: Any) -> bool:
    """Whether a tensor holds numbers, and not just a shape and a type."""
    return isinstance(value, Tensor) and not value.is_meta and not isinstance(value, FakeTensor)


class _Unfilled(TorchFunctionMode):
    """Large tensors that are drawn or left unfilled are made on the meta device: they are to be weights, which some
    machine may not have the memory for even one at a time.  Tables are computed from numbers and stay."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in _UNFILLED and kwargs.get("device") is None and kwargs.get("out") is None:
            size = kwargs.get("size", args[0] if len(args) == 1 and not isinstance(args[0], int) else args)
            if all(isinstance(n, int) for n in size) and math.prod(size) >= _LARGE:
                kwargs = {**kwargs, "device": "meta"}
        return func(*args, **kwargs)


@contextmanager
def without_weights() -> Iterator[None]:
    """Inside, parameters of new modules lie on the meta device.

    torch.device("meta") would take the numbers of everything else as well, and stop code that reads one of them.
    """
    register = nn.Module.register_parameter

    def registered(self: nn.Module, name: str, param: nn.Parameter | None) -> None:
        register(self, name, param)
        if param is not None and not param.is_meta:
            empty = type(param)(param.detach().to("meta"), requires_grad=param.requires_grad)
            empty.__dict__.update(param.__dict__)
            self._parameters[name] = empty

    setattr(nn.Module, "register_parameter", registered)  # noqa: B010  a method, for a while
    try:
        with _Unfilled():
            yield
    finally:
        setattr(nn.Module, "register_parameter", register)  # noqa: B010


@contextmanager
def stood_in(module: nn.Module, given: Any) -> Iterator[Any]:
    """`given` as the module takes it meanwhile: with fake tensors where the module or they have no numbers."""
    held = [*module.parameters(), *module.buffers(), *(x for x in pytree.tree_leaves(given) if isinstance(x, Tensor))]
    if not any(t.is_meta for t in held):
        yield given
        return
    mode = FakeTensorMode(allow_non_fake_inputs=True, shape_env=ShapeEnv())
    known: dict[int, Tensor] = {}

    def fake(t: Any) -> Any:
        if not isinstance(t, Tensor) or not t.is_meta:
            return t
        if id(t) not in known:
            with mode:
                made = torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device="cpu")
            known[id(t)] = nn.Parameter(made, t.requires_grad) if isinstance(t, nn.Parameter) else made
        return known[id(t)]

    before: list[tuple[dict[str, Any], str, Tensor]] = []
    for inner in module.modules():
        for stored in (inner._parameters, inner._buffers):
            before += [(stored, name, t) for name, t in stored.items() if t is not None and t.is_meta]
    try:
        for stored, name, t in before:
            stored[name] = fake(t)
        yield pytree.tree_map(fake, given)
    finally:
        for stored, name, t in before:
            stored[name] = t
