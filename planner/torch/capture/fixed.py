"""Arguments that have the same values in every step, and all that depends on nothing else, while torch.export follows a
module.

Modules read sizes from tensors: how many patches an image has, where a sample ends in a packed row.  torch.export has
no numbers for its inputs, and stops there.  Of what the caller says is fixed, the numbers are computed beside the
program, operator by operator, and code that asks for them is given them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import _disable_current_modes

from planner.torch.capture.followed import version_of

__all__ = ["FixedValues"]

_MOST_ELEMENTS: Final = 1 << 20  # of what is computed beside the program

# What Python is handed, or what has a size that values tell: torch.export cannot say it without numbers.
_OF_VALUES: Final = frozenset({
    "__array__", "__bool__", "__contains__", "__float__", "__index__", "__int__", "allclose", "argwhere", "bincount",
    "equal", "is_nonzero", "item", "masked_select", "nonzero", "numpy", "one_hot", "repeat_interleave", "tolist",
    "unique", "unique_consecutive",
})  # fmt: skip
_MADE: Final = frozenset({"arange", "as_tensor", "full", "linspace", "ones", "tensor", "zeros"})
_DRAWN: Final = frozenset({
    "bernoulli", "bernoulli_", "dropout", "exponential_", "multinomial", "normal", "normal_", "rand", "rand_like",
    "randint", "randint_like", "randn", "randn_like", "random_", "randperm", "uniform_",
})  # fmt: skip

_TAKES_SIZES: Final = frozenset({
    "__getitem__", "__setitem__", "chunk", "expand", "narrow", "repeat", "reshape", "split", "split_with_sizes", "view",
})  # fmt: skip
_IN_PLACE: Final = ("add", "and", "floordiv", "lshift", "mod", "mul", "or", "pow", "rshift", "sub", "truediv", "xor")


@dataclass(slots=True, eq=False)
class _Known:
    """A tensor as torch.export has it, held so that no other takes its place; its numbers, and how often it had been
    written when they were its own."""

    seen: Tensor
    numbers: Tensor
    version: int


class FixedValues(TorchFunctionMode):
    """`pairs`: tensors as torch.export has them, each with its numbers."""

    def __init__(self, pairs: Iterable[tuple[Tensor, Tensor]]) -> None:
        super().__init__()
        self.known: dict[int, _Known] = {}
        for seen, numbers in pairs:
            with _with_numbers():
                own = numbers.clone()
            self._know(seen, own)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if name in _TAKES_SIZES:
            args, kwargs = self._with_sizes(args), {k: self._with_sizes(v) for k, v in kwargs.items()}
        given = [x for x in pytree.tree_leaves((args, kwargs)) if isinstance(x, Tensor)]
        known = (
            all(self._is_known(x) for x in given)
            and name not in _DRAWN
            and not self._writes_elsewhere(name, args, kwargs)
        )
        if not known:
            return self._partly_known(func, name, args, kwargs)
        if given and (name in _OF_VALUES or _sized_by_values(name, args)):
            return pytree.tree_map(self._constant, self._computed(func, args, kwargs))
        if name == "__iter__":
            func, args = Tensor.unbind, (args[0], 0)
        found = func(*args, **kwargs)
        if given or name in _MADE:
            self._follow(func, name, args, kwargs, found)
        return iter(found) if name == "__iter__" else found

    def _partly_known(self, func: Any, name: str, args: Any, kwargs: Any) -> Any:
        """A call of which some tensors have no numbers; where those decide its size that have, it reads places."""
        if name == "__getitem__":
            args = args[0], tuple(p for i in _indices(args[1]) for p in self._places(i))
        elif name == "masked_select" and len(args) == 2 and args[0].shape == args[1].shape:
            return args[0][tuple(self._places(args[1]))]
        elif name == "repeat_interleave":
            repeats = kwargs["repeats"] if "repeats" in kwargs else args[1]
            if isinstance(repeats, Tensor) and self._is_known(repeats):
                return self._repeated(args[0], repeats, kwargs["dim"] if "dim" in kwargs else (*args[2:3], None)[0])
        found = func(*args, **kwargs)
        if self._writes_elsewhere(name, args, kwargs):
            self._forget(pytree.tree_leaves((args, kwargs)))
        return found

    def _forget(self, written: Iterable[Any]) -> None:
        """What lies in the memory of these, where nothing counts that they are written."""
        of = [self.known[id(x)].numbers for x in written if isinstance(x, Tensor) and id(x) in self.known]
        memory = {n.untyped_storage()._cdata for n in of}
        for key in [k for k, x in self.known.items() if x.numbers.untyped_storage()._cdata in memory]:
            del self.known[key]

    def _places(self, index: Any) -> list[Any]:
        """Of a known mask, the places where it holds along each of its dimensions; any other index as it is."""
        if not _is_mask(index) or not self._is_known(index):
            return [index]
        return [self._constant(p) for p in self._computed(lambda m: m.nonzero().unbind(1), (index,), {})]

    def _repeated(self, x: Tensor, repeats: Tensor, dim: int | None) -> Tensor:
        x, dim = (x.flatten(), 0) if dim is None else (x, dim)
        n = x.shape[dim]
        places = self._computed(lambda counts: torch.repeat_interleave(counts.expand(n)), (repeats,), {})
        return x.index_select(dim, self._constant(places))

    # Numbers

    def _is_known(self, x: Tensor) -> bool:
        if id(x) not in self.known:
            return _has_numbers(x)
        return self.known[id(x)].version == version_of(x)  # else it was written, by what is not followed here

    def _writes_elsewhere(self, name: str, args: Any, kwargs: Any) -> bool:
        """Whether a call writes where it is not followed: into tensors of the module itself, several at once, or the
        result's own place."""
        if "out" in kwargs or name == "__set__" or (name.startswith("_foreach_") and name.endswith("_")):
            return True
        return _writes(name) and bool(args) and isinstance(args[0], Tensor) and id(args[0]) not in self.known

    def _with_sizes(self, given: Any) -> Any:
        """With numbers in place of tensors without dimensions that are known, in slices and lists of sizes."""
        if isinstance(given, slice):
            return slice(*(self._with_sizes(n) for n in (given.start, given.stop, given.step)))
        if isinstance(given, tuple | list):
            return type(given)(self._with_sizes(n) for n in given)
        if not isinstance(given, Tensor) or given.ndim or given.is_floating_point() or given.dtype is torch.bool:
            return given
        return self._computed(Tensor.item, (given,), {}) if id(given) in self.known and self._is_known(given) else given

    def _numbers(self, x: Any) -> Any:
        if isinstance(x, Tensor):
            return self.known[id(x)].numbers if id(x) in self.known else x
        return torch.device("cpu") if isinstance(x, torch.device) else x

    def _know(self, seen: Any, numbers: Any) -> None:
        if isinstance(seen, Tensor) and isinstance(numbers, Tensor) and seen.shape == numbers.shape:
            self.known[id(seen)] = _Known(seen, numbers, version_of(seen))

    def _computed(self, func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        arguments, keywords = pytree.tree_map(self._numbers, (tuple(args), dict(kwargs)))
        if isinstance(keywords.get("device"), str | int):
            keywords["device"] = torch.device("cpu")
        with _with_numbers():
            return func(*arguments, **keywords)

    def _follow(self, func: Callable[..., Any], name: str, args: Any, kwargs: Any, found: Any) -> None:
        """Computes beside the program what the program computes: views are views of the numbers, and what is written
        into them is written there as well."""
        seen = pytree.tree_leaves(args[0] if name == "__setitem__" else found)
        if not any(isinstance(x, Tensor) for x in seen):
            return
        if sum(x.numel() for x in seen if isinstance(x, Tensor)) > _MOST_ELEMENTS:
            return
        with _with_numbers():
            before = torch.get_rng_state()
        computed = self._computed(func, args, kwargs)
        with _with_numbers():
            if not torch.equal(before, torch.get_rng_state()):  # it draws: others are drawn in the program
                torch.set_rng_state(before)
                return
        if _writes(name):
            memory = self._numbers(args[0]).untyped_storage()._cdata
            for of in self.known.values():
                if of.numbers.untyped_storage()._cdata == memory:
                    of.version = version_of(of.seen)
        if name != "__setitem__":
            for x, n in zip(seen, pytree.tree_leaves(computed), strict=True):
                self._know(x, n)

    def _constant(self, numbers: Any) -> Any:
        """A tensor of the program that has these numbers."""
        if not isinstance(numbers, Tensor):
            return numbers
        with _with_numbers():
            listed = numbers.tolist()
        made = torch.tensor(listed, dtype=numbers.dtype).reshape(numbers.shape)
        self._know(made, numbers)
        return made


@contextmanager
def _with_numbers() -> Iterator[None]:
    """Inside, operators compute, and are no part of the program."""
    with _disable_current_modes(), torch._C.DisableTorchFunction(), torch.no_grad():
        yield


def _sized_by_values(name: str, args: Any) -> bool:
    """Whether the result of a call, all of whose tensors are known, has a size that their values tell."""
    if name in _MADE:
        return True  # arange(n) of a tensor
    if name == "where":
        return len(args) == 1
    return name == "__getitem__" and any(_is_mask(i) for i in _indices(args[1]))


def _writes(name: str) -> bool:
    """Whether a call writes into its first operand: x[i] = y, x.add_(y), x += y."""
    if not name.startswith("__"):
        return name.endswith("_")
    return name == "__setitem__" or name in {f"__i{operation}__" for operation in _IN_PLACE}


def _has_numbers(x: Tensor) -> bool:
    return type(x) in (Tensor, torch.nn.Parameter) and not isinstance(x, FakeTensor) and not x.is_meta


def _indices(given: Any) -> tuple[Any, ...]:
    return given if isinstance(given, tuple) else (given,)


def _is_mask(i: Any) -> bool:
    return isinstance(i, Tensor) and i.dtype in (torch.bool, torch.uint8) and i.ndim > 0
