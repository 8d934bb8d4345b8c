"""What a parallel module must be told by an error, since it would compute something else without a word."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any
from weakref import WeakSet, WeakValueDictionary

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd
from torch.optim.optimizer import Optimizer, register_optimizer_step_pre_hook

from planner.errors import InputError, UsageError

__all__ = ["Kept", "check_autocast", "check_frozen", "check_hooks", "check_indices", "check_mode", "replaced"]

_REPLACED: WeakValueDictionary[int, Tensor] = WeakValueDictionary()  # parameters in whose place others stand
_SEEN: WeakSet[Optimizer] = WeakSet()


class Kept:
    """Buffers whose numbers the plan has taken over, which must stay as they are."""

    def __init__(self, module: nn.Module, names: Iterable[str]) -> None:
        self.kind = type(module).__name__
        self.held: list[tuple[str, dict[str, Any], str]] = []
        self.seen: list[tuple[Tensor, int, tuple[Any, ...]]] = []  # each with its version and its numbers, as a digest
        for name in names:
            owner, _, last = name.rpartition(".")
            inner = module.get_submodule(owner)
            stored: dict[str, Any] = inner._buffers
            value = stored[last]
            if value is not None and not value.is_meta and not value.is_inference():
                self.held.append((name, stored, last))
                self.seen.append((value, value._version, _digest(value)))

    def check(self) -> None:
        """UsageError where one of them has other numbers now."""
        for i, (name, stored, last) in enumerate(self.held):
            value, version, digest = self.seen[i]
            now: Tensor | None = stored.get(last)
            if now is not None and now is value and now._version == version:
                continue
            if now is None or _digest(now) != digest:
                raise UsageError(
                    f"{self.kind}: {name} has other numbers than when the plan was applied to the module, and is not "
                    "read anew; load weights and set buffers before planner.torch.plan"
                )
            self.seen[i] = now, now._version, digest


_WHOLE = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def _digest(value: Tensor) -> tuple[Any, ...]:
    """Shape and type, and the sum of the bits, which takes no memory: a second copy of a large one might not fit."""
    bits = value.detach().contiguous()
    whole = _WHOLE.get(bits.element_size())
    total = bits.sum() if whole is None else bits.view(whole).sum(dtype=torch.int64)
    return tuple(value.shape), value.dtype, total.item()


def check_frozen(kind: str, parameters: Mapping[str, Tensor]) -> None:
    """UsageError where one of the parameters that were frozen when the step was planned, by name, is to be trained."""
    for name, p in parameters.items():
        if p.requires_grad:
            raise UsageError(
                f"{kind}: {name} was frozen when the step was planned, and shall be trained now; plan again"
            )


def check_hooks(module: nn.Module) -> None:
    """UsageError for hooks that a parallel step would not run: gradients are there when the module's call returns."""
    kind = type(module).__name__
    for name, p in module.named_parameters():
        if p._backward_hooks or getattr(p, "_post_accumulate_grad_hooks", None):
            raise UsageError(
                f"{kind}: {name} has a hook, which does not run in a parallel step; remove it, and change gradients "
                "behind loss.backward()"
            )
    for name, inner in module.named_modules():
        if name and (inner._backward_hooks or inner._backward_pre_hooks):
            raise UsageError(f"{kind}: {name} has a backward hook, which does not run in a parallel step; remove it")


def check_mode(module: nn.Module, kind: str) -> None:
    """UsageError where a step that was planned in evaluation mode is to be trained, and training would do something
    else, as far as modules show it."""
    for path, inner in module.named_modules():
        drops = isinstance(inner, _DropoutNd) and inner.p > 0
        if inner.training and (drops or (isinstance(inner, _BatchNorm) and inner.track_running_stats)):
            raise UsageError(
                f"{kind}: the step was planned in evaluation mode, and {path or type(inner).__name__} does something "
                "else in training mode; call train() before planner.torch.plan"
            )


def check_indices(name: str, value: Tensor, below: int, ignored: Iterable[int]) -> None:
    """InputError for an index that no row has: a label of no class, a token of no word."""
    wrong = (value < 0) | (value >= below)
    left_out = sorted(set(ignored))
    for i in left_out:
        wrong &= value != i
    if bool(wrong.any()):
        also = f", or {left_out[0]} to be left out" if left_out else ""
        raise InputError(
            f"input {name}: expected numbers from 0 to {below - 1}{also}, found {int(value[wrong].flatten()[0])}"
        )


def check_autocast(device: torch.device, precision: torch.dtype | None, kind: str) -> bool:
    """Whether autocast is on, which the plan's own precision stands for; UsageError where that is another one."""
    if not torch.is_autocast_enabled(device.type):
        return False
    asked = torch.get_autocast_dtype(device.type)
    if asked != precision:
        name = {torch.bfloat16: "bf16", torch.float16: "fp16"}.get(asked, str(asked))
        raise UsageError(
            f"{kind}: the step is called inside of torch.autocast with {asked}, and was planned for another precision; "
            f"leave autocast out, and plan with precision={name!r} to compute so"
        )
    return True


def replaced(old: Tensor, new: Tensor) -> None:
    """Notes that another tensor stands in a parameter's place, so that an optimizer of the old one is found out."""
    if old is not new:
        _REPLACED[id(old)] = old


def _before_step(optimizer: Optimizer, *_: object) -> None:
    if optimizer in _SEEN:
        return
    if any(_REPLACED.get(id(p)) is p for group in optimizer.param_groups for p in group["params"]):
        raise UsageError(
            f"{type(optimizer).__name__}: it has parameters that planner.torch.parallelize has replaced, and would "
            "train nothing; make the optimizer of module.parameters() behind parallelize"
        )
    _SEEN.add(optimizer)


register_optimizer_step_pre_hook(_before_step)
