"""What a user's file has: functions that make modules, which `planner export` names."""

from __future__ import annotations

import os
from typing import Any

import torch
from torch import Tensor, nn

from tests.torch.models import CASES, Scaled

__all__ = ["Loss", "Reading", "Scaled", "failing", "gpt", "huge", "number", "ready", "resnet", "strange"]


def gpt() -> nn.Module:
    return CASES["gpt"]().module


def resnet() -> nn.Module:
    return CASES["resnet"]().module


def huge(width: int, layers: int = 2) -> nn.Module:
    """Of more weights than any machine has memory for."""
    return nn.Sequential(*(nn.Linear(width, width) for _ in range(layers)))


class Reading(nn.Module):
    """Its code reads a weight while it is made, so that this has to be there."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)
        self.scale = float(self.inner.weight.abs().max())

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x) * self.scale


class Strange(nn.Module):
    """With an operator that the planner's capture has no translation of."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.bitwise_left_shift(x, 1).float().mean()


class Branching(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x if x.sum() > 0 else -x


def strange() -> nn.Module:
    return Strange()


def branching() -> nn.Module:
    return Branching()


def failing() -> nn.Module:
    raise RuntimeError("no such table")


def number() -> int:
    return 3


class Loss(nn.Module):
    """A loss as a class, as torch has its own."""

    def forward(self, found: Any, wanted: Tensor) -> Tensor:
        return (found - wanted).abs().mean()


ready = nn.Linear(4, 4)


class OwnLoss(nn.Module):
    """A module that returns its loss, behind its scores where that is wanted."""

    def __init__(self, scores: bool = False) -> None:
        super().__init__()
        self.inner, self.drop, self.norm, self.scores = nn.Linear(8, 10), nn.Dropout(0.1), nn.BatchNorm1d(10), scores

    def forward(self, x: Tensor, y: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        found = self.norm(self.drop(self.inner(x)))
        loss = nn.functional.cross_entropy(found, y)
        return (found, loss) if self.scores else loss


def elsewhere(folder: str) -> nn.Module:
    """Code that changes what holds for all code: the current folder, and the device of new tensors."""
    os.chdir(folder)
    torch.set_default_device("meta")
    return nn.LayerNorm(4)
