"""Normalisations in MindSpore: nn.LayerNorm, nn.RMSNorm and nn.BatchNorm2d."""

from __future__ import annotations

from planner.emit.mindspore.primitives import Primitive, primitives

__all__: list[str] = []

primitives(
    {
        "LayerNormalization": Primitive("LayerNorm", (0, 1, 2), normalises=True),
        "RMSNormalization": Primitive("RmsNorm", (0, 1), normalises=True),
        "BatchNormalization": Primitive("BatchNorm", (0, 1, 2, 3, 4)),
    }
)
