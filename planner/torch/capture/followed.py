"""What a step computes without gradients, said by operators while torch.export follows it.

torch.export forgets `torch.no_grad()` where it decomposes operators: what was computed without gradients would get
some.  Here such an operator reads what is detached, which is an operator as any other.  What none can say is refused:
numbers that are written into the memory of a tensor with a gradient where gradients are not followed, so that the one
changes and the other does not, and hooks on gradients.
"""

from __future__ import annotations

import traceback
from collections.abc import Iterable
from typing import Any

from torch import Tensor, detach_, is_grad_enabled
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from planner.errors import InputError
from planner.torch.capture.places import place_of_frames
from planner.torch.capture.unchecked import without_checks

__all__ = ["DetachUnfollowed", "version_of"]

_HOOKS = (Tensor.register_hook, Tensor.register_post_accumulate_grad_hook)
_DETACHES_IN_PLACE = (Tensor.detach_, detach_)


class DetachUnfollowed(TorchFunctionMode):
    """For the time of a module's call; errors name the module, as `name` says, and the line of its code."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name
        self.memory: dict[int, Any] = {}  # of tensors that have a gradient, held so that no other takes its place

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        func = without_checks(func)
        given = _tensors((args, kwargs))
        if func in _HOOKS:
            raise self._refused(
                "a hook on the gradient of a tensor would not run", "change gradients of parameters after backward()"
            )
        if func in _DETACHES_IN_PLACE and any(x.requires_grad for x in given):
            raise self._refused("detach_() is passed over by torch.export", "use detach()")
        self._note(given)
        if is_grad_enabled() or not any(x.requires_grad for x in given):
            return self._called(func, args, kwargs)
        if getattr(func, "__name__", "") == "__get__":  # an attribute: True of requires_grad, a view of mT
            return _detached(func(*args, **(kwargs or {})))
        return self._called(func, *pytree.tree_map(_detached, (args, kwargs)))

    def _called(self, func: Any, args: Any, kwargs: Any) -> Any:
        given = _tensors((args, kwargs))
        before = [(version_of(x), x.requires_grad) for x in given]
        found = func(*args, **(kwargs or {}))
        name = getattr(func, "__name__", "")
        together = name.startswith("_foreach_") and name.endswith("_")  # which count no version of fake tensors
        for x, (version, followed) in zip(given, before, strict=True):
            if (together or version_of(x) != version) and not followed and _place(x) in self.memory:
                raise self._refused(
                    "numbers are written into the memory of a tensor that has a gradient, which does not change with "
                    "them, under torch.no_grad() or behind detach()",
                    "write into a clone(), or where gradients are followed",
                )
        self._note(_tensors(found))
        return found

    def _note(self, tensors: Iterable[Tensor]) -> None:
        for x in tensors:
            if x.requires_grad:
                self.memory.setdefault(_place(x), x.untyped_storage())

    def _refused(self, what: str, instead: str) -> InputError:
        return InputError(f"{self.name}: {what}{place_of_frames(traceback.extract_stack())}; {instead}")


def _tensors(found: Any) -> list[Tensor]:
    return [x for x in pytree.tree_leaves(found) if isinstance(x, Tensor)]


def _detached(x: Any) -> Any:
    return x.detach() if isinstance(x, Tensor) and x.requires_grad else x


def version_of(x: Tensor) -> int:
    """How often its memory was written; tensors of inference mode, which no gradient comes to, do not count that."""
    return 0 if x.is_inference() else x._version


def _place(x: Tensor) -> int:
    """Which memory it lies in: views share theirs."""
    return x.untyped_storage()._cdata
