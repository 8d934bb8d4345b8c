"""Gradients that a module writes itself: a plan derives them from the operators of the step.

torch.export follows what a `torch.autograd.Function` computes, and drops what its `backward` says.  So a function is
run here on random numbers of the same shapes, beside others that say the same by operators, under autograd.  Where the
gradients of its forward pass agree with its own (kernels that save memory), that is followed in its place.  Where they
are a factor for each element (straight-through estimators, reversed and bounded gradients), so are operators that have
this factor as their slope.  Else the function is refused.  Hooks that stand on parameters and modules are looked for
where a plan is applied (`planner.torch.guards`).
"""

from __future__ import annotations

import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, Final, TypeAlias

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import _SingleLevelFunction
from torch.utils import _pytree as pytree
from torch.utils.checkpoint import CheckpointFunction

from planner.errors import InputError
from planner.torch.capture.places import place_of_frames

__all__ = ["compare_own_gradients"]

_MOST_ELEMENTS: Final = 1 << 26  # of what a function reads: 256 MiB in single precision
_TOLERANCE: Final = 2e-3  # relative to the largest element; eight roundings of a narrow type where these are more
# Of what is read, and of the gradients of the results: a clipped gradient shows at large ones alone.
_SCALES: Final = ((1.0, 1.0), (1.0, 300.0), (300.0, 1.0), (1e-3, 1e-3))
# Whose functions hand gradients on as they are, or are operators themselves.
_TORCHS_OWN: Final = ("torch.nn.modules._functions", "torch._higher_order_ops")
_SPECIAL: Final = ("zeros", "all", "none", "ignored")
_PLAIN: Final = (Tensor, bool, int, float, str, type(None), torch.dtype, torch.device)
_NARROW: Final = (torch.bfloat16, torch.float16)
_APPLY: Final = "apply"  # a name, not an attribute: types take a method for one that stays
_Way: TypeAlias = Callable[[type[Function], Sequence[Any], dict[str, Any]], Any]
_ONE_AT_A_TIME: Final = threading.RLock()


@contextmanager
def compare_own_gradients(name: str) -> Iterator[None]:
    """Inside, and in this thread, a function whose gradient is not that of its operators raises InputError, which names
    the module as `name` says."""
    thread = threading.get_ident()
    known: dict[object, _Way | str] = {}

    def apply(cls: type[Function], *given: Any, **named: Any) -> Any:
        applied = super(_SingleLevelFunction, cls).apply
        if threading.get_ident() != thread or cls.__module__.startswith(_TORCHS_OWN):
            return applied(*given, **named)
        if cls is CheckpointFunction:  # what it calls, which it calls without gradients, and with them once more
            call, _, *rest = given
            return call(*rest, **named)
        tensors = [x for x in pytree.tree_leaves((given, named)) if isinstance(x, Tensor)]
        if not torch.is_grad_enabled() or not any(x.requires_grad for x in tensors):
            return applied(*given, **named)
        case = cls, repr(pytree.tree_map(_looks, (given, named)))
        plain = all(isinstance(x, _PLAIN) for x in pytree.tree_leaves((given, named)))
        if case not in known or not plain:
            with ThreadPoolExecutor(1) as other:  # where nothing of torch.export's modes is in force
                known[case] = other.submit(_by_operators, cls, applied, given, named).result()
        way = known[case]
        if isinstance(way, str):
            place = place_of_frames(traceback.extract_stack())
            raise InputError(
                f"{name}: {cls.__name__}, a torch.autograd.Function{place}, gives a gradient of its own: {way}. A plan "
                "takes gradients from operators: write it with these, as f(x).detach() + (x - x.detach()) * d for a "
                "gradient that is d times that of the result"
            )
        return way(cls, given, named)

    with _ONE_AT_A_TIME:
        before = _SingleLevelFunction.__dict__.get(_APPLY)
        # Where Function.apply goes on to, which modules hold on to themselves (`reverse = Reverse.apply`).
        setattr(_SingleLevelFunction, _APPLY, classmethod(apply))
        try:
            yield
        finally:
            if before is None:
                delattr(_SingleLevelFunction, _APPLY)
            else:
                setattr(_SingleLevelFunction, _APPLY, before)  # of an export around this one


def _by_operators(
    cls: type[Function], apply: Callable[..., Any], given: Sequence[Any], named: dict[str, Any]
) -> _Way | str:
    """What has its results and its gradients by operators; or why nothing has."""
    leaves, structure = pytree.tree_flatten((tuple(given), named))
    if sum(_elements(x) for x in leaves if isinstance(x, Tensor)) > _MOST_ELEMENTS:
        return "it reads too much for its gradient to be compared with that of its operators here"
    narrow = any(isinstance(x, Tensor) and x.dtype in _NARROW for x in leaves)
    whys: list[str] = []
    for way in (_forward, _element_by_element):
        for wide in (True, False) if narrow else (False,):  # in single precision first, where it takes that
            why = _compared(cls, way, apply, leaves, structure, wide)
            if why is None:
                return way
            whys.append(why)
    return whys[0]


def _compared(
    cls: type[Function], way: _Way, apply: Callable[..., Any], leaves: Sequence[Any], structure: Any, wide: bool
) -> str | None:
    """Why its gradients are not those of another way; None where they are."""
    why = ""
    for counted in (True, False):  # whole numbers: places, each once, and nothing but zeros where these are too many
        for positive in (False, True):
            case = _Case(leaves, structure, wide, counted, positive)
            try:
                alike = case.agrees(apply, lambda *a, **n: way(cls, a, n))
                for special in _SPECIAL if alike else ():
                    alike = alike and case.agrees_on(special, apply, lambda *a, **n: way(cls, a, n))
                return None if alike else "it is not that of what its forward pass computes, nor a factor per element"
            except _Undefined:
                why = "it is not a number for any that were tried"
            except Exception as error:  # whatever the user's code raises
                why = f"it could not be compared with that of its operators ({type(error).__name__}: {error})"
    return why


class _Undefined(Exception):
    """No number of the gradients is finite."""


class _Case:
    """Random numbers that a function reads."""

    def __init__(self, leaves: Sequence[Any], structure: Any, wide: bool, counted: bool, positive: bool) -> None:
        self.structure, self.wide, self.counted, self.positive = structure, wide, counted, positive
        self.leaves = leaves

    def agrees(self, *ways: Callable[..., Any]) -> bool:
        """Whether these give the same gradients at all scales, where they are finite."""
        defined = False
        for scale, of_results in _SCALES:
            numbers = self._drawn(scale)
            first, second = (self._gradients(way, numbers, of_results) for way in ways)
            if not self._alike(first, second):
                return False
            defined = defined or any(bool(x.isfinite().any()) or not x.numel() for x in first)
        if not defined:
            raise _Undefined
        return True

    def agrees_on(self, special: str, *ways: Callable[..., Any]) -> bool:
        """Whether these give the same gradients where numbers are special, which functions with gradients of their own
        often guard; or one of them fails, as of an index below zero."""
        numbers = [_specially(x, special) for x in self._drawn(1.0)]
        try:
            first, second = (self._gradients(way, numbers, 1.0) for way in ways)
        except Exception:  # whatever the user's code raises
            return True
        return self._alike(first, second)

    def _alike(self, first: Sequence[Tensor], second: Sequence[Tensor]) -> bool:
        for one, other in zip(first, second, strict=True):
            finite = one.isfinite() & other.isfinite()
            if bool((one.isfinite() != other.isfinite()).any()):
                return False
            one, other = one[finite], other[finite]
            most = max((float(x.abs().max()) for x in (one, other) if x.numel()), default=0.0)
            if one.numel() and float((one - other).abs().max()) > self._tolerance(one) * most:
                return False
        return True

    def _tolerance(self, x: Tensor) -> float:
        return max(_TOLERANCE, 8 * torch.finfo(x.dtype).eps)

    def _drawn(self, scale: float) -> list[Any]:
        generator = torch.Generator().manual_seed(0)
        return [self._like(x, scale, generator) if isinstance(x, Tensor) else x for x in self.leaves]

    def _like(self, x: Tensor, scale: float, generator: torch.Generator) -> Tensor:
        shape = tuple(map(_size, x.shape))
        if x.dtype is torch.bool:
            return torch.rand(shape, generator=generator) > 0.5
        if not (x.is_floating_point() or x.is_complex()):
            count = torch.arange(_elements(x)) if self.counted else torch.zeros(_elements(x))
            return count.reshape(shape).to(x.dtype)
        dtype = torch.float32 if self.wide and x.dtype in _NARROW else x.dtype
        drawn = scale * torch.randn(shape, generator=generator)
        return (drawn.abs() if self.positive else drawn).to(dtype).requires_grad_(x.requires_grad)

    def _gradients(self, way: Callable[..., Any], numbers: Sequence[Any], of_results: float) -> list[Tensor]:
        """Of the results, each times random numbers, by what is read."""
        own = [x.detach().clone().requires_grad_(x.requires_grad) if isinstance(x, Tensor) else x for x in numbers]
        given, named = pytree.tree_unflatten([_within(x) for x in own], self.structure)
        inputs = [x for x in own if isinstance(x, Tensor) and x.requires_grad]
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(0)  # of what the function itself draws
            results = way(*given, **named)
        generator = torch.Generator().manual_seed(1)
        total = torch.zeros(())
        for x in pytree.tree_leaves(results):
            if isinstance(x, Tensor) and (x.is_floating_point() or x.is_complex()):
                for part in (x.real, x.imag) if x.is_complex() else (x,):
                    weights = of_results * torch.randn(tuple(part.shape), generator=generator)
                    total = total + (part.float() * weights).sum() if x.requires_grad else total
        if not total.requires_grad:
            return [torch.zeros_like(x) for x in inputs]
        found = torch.autograd.grad(total, inputs, allow_unused=True)
        return [torch.zeros_like(x) if g is None else g for x, g in zip(inputs, found, strict=True)]


def _specially(x: Any, special: str) -> Any:
    """With zeros in every third place, with masks that hold everywhere or nowhere, or with labels that are ignored."""
    if not isinstance(x, Tensor) or not x.numel():
        return x
    if x.dtype is torch.bool:
        return torch.full_like(x, special == "all") if special in ("all", "none") else x
    third = (torch.arange(x.numel()) % 3 == 0).view(x.shape)
    if special == "zeros" and x.is_floating_point():
        return torch.where(third, 0.0, x.detach()).to(x.dtype).requires_grad_(x.requires_grad)
    if special == "ignored" and not x.is_floating_point() and not x.is_complex():
        return torch.where(third, -100, x)
    return x


def _looks(x: Any) -> Any:
    """What of an argument decides on a case; shapes alone of tensors, since numbers are not known yet."""
    return (tuple(map(_size, x.shape)), x.dtype, x.requires_grad) if isinstance(x, Tensor) else x


def _size(n: Any) -> int:
    """Of a dimension; that of the example where it is to stay a symbol."""
    if isinstance(n, Tensor):
        raise InputError(
            "a torch.autograd.Function of rows that a mask chooses, whose number depends on values; apply it to all "
            "rows, and choose afterwards"
        )
    return n if isinstance(n, int) else int(n.node.hint)


def _elements(x: Tensor) -> int:
    count = 1
    for n in x.shape:
        count *= _size(n)
    return count


def _within(x: Any) -> Any:
    """No leaf, which functions may not write into."""
    return x * 1 if isinstance(x, Tensor) and x.requires_grad else x


def _forward(cls: type[Function], given: Sequence[Any], named: dict[str, Any]) -> Any:
    """Its forward pass, which autograd follows."""
    if cls.setup_context is not Function.setup_context:
        return cls.forward(*given, **named)
    context = _Context(given)
    found = cls.forward(context, *given, **named)
    return pytree.tree_map(lambda x: x.detach() if any(x is y for y in context.constant) else x, found)


def _element_by_element(cls: type[Function], given: Sequence[Any], named: dict[str, Any]) -> Any:
    """Its result, whose slope by each operand is what its backward pass makes of ones.

    TypeError where that is no factor for each element.
    """
    context = _Context(given)
    with torch.no_grad():
        if cls.setup_context is not Function.setup_context:
            found = cls.forward(*given, **named)
            cls.setup_context(context, tuple(given), found)
        else:
            found = cls.forward(context, *given, **named)
        if not isinstance(found, Tensor) or context.changed:
            raise TypeError("several results, or one that is written into an operand")
        factors = cls.backward(context, torch.ones_like(found))
    result = found.detach()
    for x, factor in zip(given, factors if isinstance(factors, tuple) else (factors,), strict=False):
        if factor is None or not (isinstance(x, Tensor) and x.requires_grad):
            continue
        if factor.shape != found.shape or x.shape != found.shape:
            raise TypeError("a gradient of another shape than the result's")
        # Of scores of minus infinity nothing is left over, and none is added where the slope has no number.
        finite = x.detach().isfinite() & factor.detach().isfinite()
        followed = torch.where(finite, x, 0)
        slope = torch.where(finite, factor.detach(), 0).to(found.dtype)
        result = result + (followed - followed.detach()).to(found.dtype) * slope
    return result


class _Context:
    """What a forward pass may say to its backward pass."""

    def __init__(self, given: Sequence[Any]) -> None:
        self.needs_input_grad = tuple(isinstance(x, Tensor) and x.requires_grad for x in given)
        self.saved_tensors: tuple[Any, ...] = ()
        self.constant: tuple[Any, ...] = ()
        self.changed: tuple[Any, ...] = ()

    def save_for_backward(self, *tensors: Any) -> None:
        self.saved_tensors = tensors

    save_for_forward = save_for_backward

    def mark_dirty(self, *tensors: Any) -> None:
        self.changed = tensors

    def mark_non_differentiable(self, *tensors: Any) -> None:
        self.constant = tensors

    def set_materialize_grads(self, _: bool) -> None: ...
