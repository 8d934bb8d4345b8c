"""Losses that `--loss` names: those of everyday models, of what a module returns and of targets."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from torch import Tensor
from torch.nn import functional
from torch.utils import _pytree as pytree

from planner.errors import InputError

__all__ = ["LOSSES", "WITHOUT_TARGETS"]


def _first(found: Any) -> Tensor:
    """The scores in what a module returned: `logits` where they have this name, else the first tensor of floats."""
    scores = found.get("logits") if isinstance(found, Mapping) else getattr(found, "logits", None)
    if isinstance(scores, Tensor):
        return scores
    for leaf in pytree.tree_leaves(found):
        if isinstance(leaf, Tensor) and leaf.dtype.is_floating_point:
            return leaf
    raise InputError("the module returns no tensor of floats; expected one to take the loss of")


def _cross_entropy(found: Any, labels: Tensor) -> Tensor:
    """Classes are the last dimension of the scores, as language models and classifiers have them."""
    scores = _first(found)
    return functional.cross_entropy(scores.reshape(-1, scores.shape[-1]), labels.reshape(-1))


def _mse(found: Any, wanted: Tensor) -> Tensor:
    return functional.mse_loss(_first(found), wanted)


def _mean(found: Any) -> Tensor:
    return _first(found).mean()


def _sum(found: Any) -> Tensor:
    floats = [x for x in pytree.tree_leaves(found) if isinstance(x, Tensor) and x.dtype.is_floating_point]
    if not floats:
        raise InputError("the module returns no tensor of floats; expected some to sum up")
    total = floats[0].sum()
    for x in floats[1:]:
        total = total + x.sum()
    return total


LOSSES: Final[Mapping[str, Callable[..., Tensor]]] = {
    "cross_entropy": _cross_entropy,
    "mean": _mean,
    "mse": _mse,
    "sum": _sum,
}
WITHOUT_TARGETS: Final = frozenset({"mean", "sum"})
