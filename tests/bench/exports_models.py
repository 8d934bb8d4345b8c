"""Models of torchvision and timm, as a user's file would make them for `planner export`."""

from __future__ import annotations

from torch import nn

__all__ = ["convnext_tiny", "deit_small", "efficientnet_b0", "resnet50", "swin_tiny"]


def resnet50() -> nn.Module:
    from torchvision.models import resnet50 as made

    return made()


def convnext_tiny() -> nn.Module:
    from torchvision.models import convnext_tiny as made

    return made()


def swin_tiny() -> nn.Module:
    from torchvision.models import swin_t as made

    return made()


def efficientnet_b0() -> nn.Module:
    import timm

    return timm.create_model("efficientnet_b0")


def deit_small() -> nn.Module:
    import timm

    return timm.create_model("deit_small_patch16_224")
