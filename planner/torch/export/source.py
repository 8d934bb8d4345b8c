"""The step that is exported: a module in its mode, the arguments of one call, and the loss."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from planner.errors import InputError, UsageError
from planner.nearest import did_you_mean
from planner.torch.export.configurations import configured
from planner.torch.export.losses import LOSSES, WITHOUT_TARGETS
from planner.torch.export.modules import built, named_object

__all__ = ["Given", "Source", "of_code", "of_configuration"]


@dataclass(frozen=True)
class Given:
    """What the options say: tensors by place and by name, those that the loss reads, further arguments of the call."""

    listed: tuple[Tensor, ...] = ()
    named: Mapping[str, Tensor] = field(default_factory=dict)
    targets: tuple[Tensor, ...] = ()
    call: Mapping[str, Any] = field(default_factory=dict)
    loss: str | None = None
    mode: str | None = None
    dropout: bool = True
    dtype: str | None = None


@dataclass(frozen=True)
class Source:
    """The arguments of `planner.torch.capture.capture`."""

    module: nn.Module
    listed: tuple[Tensor, ...]
    named: Mapping[str, Any]
    targets: tuple[Tensor, ...]
    loss: Callable[..., Tensor] | None
    mode_by_loss: bool = False  # whether it is put in training mode where it turns out to return a loss


def of_code(text: str, arguments: Mapping[str, Any], given: Given) -> Source:
    """A step of a module of the user's code, which is named as `package.module:function`."""
    return _step(built(text, arguments), given, trains=None)


def of_configuration(
    where: Path,
    given: Given,
    *,
    batch: int,
    sequence: int | None,
    architecture: str | None,
    settings: Mapping[str, Any],
) -> Source:
    """A step of a model of transformers; inputs that are given take the place of those that it is known to read."""
    found = configured(where, batch=batch, sequence=sequence, architecture=architecture, settings=settings)
    if given.listed or given.named:
        return _step(found.module, given, trains="labels" in given.named)
    return _step(found.module, replace(given, named=found.inputs), trains=found.trains)


def _step(module: nn.Module, given: Given, *, trains: bool | None) -> Source:
    """`trains`: whether the module returns a loss, None where nobody knows before it is captured."""
    loss = None if given.loss is None else _loss(given.loss, len(given.targets))
    module.train((loss is not None or bool(trains)) if given.mode is None else given.mode == "training")
    if not given.dropout:
        _drop_nothing(module)
    named = {**given.named, **given.call}
    listed = given.listed
    if given.dtype is not None:
        dtype = getattr(torch, given.dtype)
        module = module.to(dtype)
        listed = tuple(_as(x, dtype) for x in listed)
        named = {n: _as(x, dtype) for n, x in named.items()}
    by_loss = loss is None and given.mode is None and trains is None
    return Source(module, listed, named, given.targets, loss, by_loss)


def _loss(name: str, targets: int) -> Callable[..., Tensor]:
    if name in LOSSES:
        wanted = 0 if name in WITHOUT_TARGETS else 1
        if targets != wanted:
            raise UsageError(
                f"--loss {name}: expected {wanted} tensors of --targets, found {targets}"
                + ("; give --targets 'int64[…]'" if wanted else "; leave --targets out")
            )
        return LOSSES[name]
    if ":" not in name:
        raise UsageError(
            f"--loss {name!r:.80}: expected one of {', '.join(LOSSES)}, or package.module:function"
            + did_you_mean(name, LOSSES)
        )
    found = named_object(name, "--loss")
    if isinstance(found, type) and issubclass(found, nn.Module):
        found = found()
    if not callable(found):
        raise InputError(f"--loss {name}: expected a function, found {type(found).__name__}")
    return found


def _drop_nothing(module: nn.Module) -> None:
    """Dropouts of torch, and numbers that modules of other libraries call so."""
    for inner in module.modules():
        for name, value in list(vars(inner).items()):
            if isinstance(value, int | float) and not isinstance(value, bool) and _drops(inner, name):
                setattr(inner, name, 0.0)


def _drops(inner: nn.Module, name: str) -> bool:
    kind = type(inner).__name__.lower()
    return "dropout" in name or name == "drop_prob" or (name == "p" and ("drop" in kind or "stochastic" in kind))


def _as(value: Any, dtype: torch.dtype) -> Any:
    return value.to(dtype) if isinstance(value, Tensor) and value.dtype.is_floating_point else value
