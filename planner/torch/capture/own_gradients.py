"""Gradients that a module writes itself, which a plan cannot hold: it derives them from the operators of the step.

torch.export follows what a `torch.autograd.Function` computes, and drops what its `backward` says; hooks on gradients
it drops as well.  So a function is run here on random numbers of the same shapes, beside its own forward pass under
autograd: where the gradients agree (kernels that save memory) nothing is lost, and else it is refused.  Hooks that
stand on parameters and modules are looked for where a plan is applied (`planner.torch.guards`).
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.autograd.function import _SingleLevelFunction
from torch.utils import _pytree as pytree
from torch.utils.checkpoint import CheckpointFunction

from planner.errors import InputError
from planner.torch.capture.places import place_of_frames

__all__ = ["refuse_own_gradients"]

_MOST_ELEMENTS = 1 << 26  # of what a function reads: 256 MiB in single precision
_TOLERANCE = 2e-3  # relative to the largest element
_OF_HOOKS = "torch.nn.modules._functions"  # hand gradients on as they are


@contextmanager
def refuse_own_gradients(module: nn.Module) -> Iterator[None]:
    """Inside, what would give a tensor another gradient than its operators do raises InputError."""
    name = type(module).__name__
    hooked = Tensor.register_hook
    known: dict[object, str | None] = {}
    checking = False

    def apply(cls: type[Function], *given: Any, **named: Any) -> Any:
        applied = super(_SingleLevelFunction, cls).apply
        nonlocal checking
        if cls is CheckpointFunction:  # what it calls, which it calls without gradients, and with them once more
            call, _, *rest = given
            return call(*rest, **named)
        if not checking and cls.__module__ != _OF_HOOKS:
            checking = True
            try:
                case = cls, repr(pytree.tree_map(_looks, (given, named)))
                if case not in known:
                    with ThreadPoolExecutor(1) as other:  # where nothing of torch.export's modes is in force
                        known[case] = other.submit(_difference, cls, applied, given, named).result()
            finally:
                checking = False
            why = known[case]
            if why is not None:
                place = place_of_frames(traceback.extract_stack())
                raise InputError(
                    f"{name}: {cls.__name__}, a torch.autograd.Function{place}, gives a gradient of its own: "
                    f"{why}. A plan takes gradients from operators: write it with these, as x + (f(x) - x).detach() "
                    "for a straight-through estimator, or (1 + c) * x.detach() - c * x for a gradient times -c"
                )
        return applied(*given, **named)

    def register_hook(self: Tensor, hook: Callable[[Tensor], Tensor | None]) -> Any:
        if checking:
            return hooked(self, hook)
        place = place_of_frames(traceback.extract_stack())
        raise InputError(
            f"{name}: a hook on the gradient of a tensor{place} is not carried into a plan, which would train "
            "without it; change gradients of parameters after backward() instead"
        )

    # Where Function.apply goes on to, which modules hold on to themselves (`reverse = Reverse.apply`).
    setattr(_SingleLevelFunction, "apply", classmethod(apply))  # noqa: B010  a method, for a while
    setattr(Tensor, "register_hook", register_hook)  # noqa: B010
    try:
        yield
    finally:
        delattr(_SingleLevelFunction, "apply")
        setattr(Tensor, "register_hook", hooked)  # noqa: B010


def _difference(
    cls: type[Function], apply: Callable[..., Any], given: Sequence[Any], named: dict[str, Any]
) -> str | None:
    """Why its gradients are not those of its operators; None where they are."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        leaves, structure = pytree.tree_flatten((tuple(given), named))
        if sum(x.numel() for x in leaves if isinstance(x, Tensor)) > _MOST_ELEMENTS:
            return "it reads too much for its gradient to be compared with that of its operators here"
        numbers = [_drawn(x) if isinstance(x, Tensor) else x for x in leaves]
        found = []
        for of in (apply, lambda *a, **n: _forward(cls, a, n)):
            own = [x.clone().requires_grad_(x.requires_grad) if isinstance(x, Tensor) else x for x in numbers]
            taken, keywords = pytree.tree_unflatten([_within(x) for x in own], structure)
            try:
                results = of(*taken, **keywords)
                found.append(_gradients(results, [x for x in own if isinstance(x, Tensor) and x.requires_grad]))
            except Exception as error:  # whatever the user's code raises
                return f"it could not be compared with that of its operators ({type(error).__name__}: {error})"
    for one, other in zip(*found, strict=True):
        most = max(float(one.abs().max()), float(other.abs().max())) if one.numel() else 0.0
        if not float((one - other).abs().max() if one.numel() else 0.0) <= _TOLERANCE * most:
            return "it is not that of what its forward pass computes"
    return None


def _looks(x: Any) -> Any:
    """What of an argument decides on a case; shapes alone of tensors, since numbers are not known yet."""
    return (tuple(x.shape), x.dtype, x.requires_grad) if isinstance(x, Tensor) else x


def _drawn(x: Tensor) -> Tensor:
    shape = tuple(int(n) for n in x.shape)
    if not (x.is_floating_point() or x.is_complex()):
        return torch.zeros(shape, dtype=x.dtype)
    drawn = torch.randn(shape, dtype=torch.float32).to(x.dtype)
    return drawn.requires_grad_(x.requires_grad)


def _within(x: Any) -> Any:
    """No leaf, which functions may not write into."""
    return x * 1 if isinstance(x, Tensor) and x.requires_grad else x


def _forward(cls: type[Function], given: Sequence[Any], named: dict[str, Any]) -> Any:
    """Its forward pass, which autograd follows."""
    if cls.setup_context is not Function.setup_context:
        return cls.forward(*given, **named)
    return cls.forward(_Context(given), *given, **named)


class _Context:
    """What a forward pass may say to its backward pass, which nobody asks here."""

    def __init__(self, given: Sequence[Any]) -> None:
        self.needs_input_grad = tuple(isinstance(x, Tensor) and x.requires_grad for x in given)
        self.saved_tensors: tuple[Any, ...] = ()

    def save_for_backward(self, *tensors: Any) -> None:
        self.saved_tensors = tensors

    save_for_forward = save_for_backward

    def mark_dirty(self, *_: Any) -> None: ...

    def mark_non_differentiable(self, *_: Any) -> None: ...

    def set_materialize_grads(self, _: bool) -> None: ...


def _gradients(results: Any, inputs: Sequence[Tensor]) -> list[Tensor]:
    """Of the results, each times random numbers, by the inputs."""
    generator = torch.Generator().manual_seed(1)
    total = torch.zeros((), dtype=torch.float32)
    for x in pytree.tree_leaves(results):
        if isinstance(x, Tensor) and (x.is_floating_point() or x.is_complex()):
            weights = torch.randn(tuple(x.shape), generator=generator)
            if x.requires_grad:
                total = total + (x.real.float() * weights).sum()
    if not total.requires_grad:
        return [torch.zeros_like(x) for x in inputs]
    found = torch.autograd.grad(total, inputs, allow_unused=True)
    return [torch.zeros_like(x) if g is None else g for x, g in zip(inputs, found, strict=True)]
