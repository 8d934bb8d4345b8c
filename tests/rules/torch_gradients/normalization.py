"""Normalisations, softmax and losses."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from tests.rules.torch_gradients.subject import Subject, f, indices, named, p, subject

__all__ = ["normalizations"]


def normalizations() -> Iterator[Subject]:
    for shape in ((8,), (6, 8)):
        layer = _layer_norm(shape)
        yield subject("LayerNormalization", [f(4, 6, 8), p(*shape), f(*shape)], layer, axis=-len(shape))
        rms = _rms_norm(shape)
        yield subject("RMSNormalization", [f(4, 6, 8), p(*shape)], rms, axis=-len(shape), opset=23)
    yield subject("LayerNormalization", [f(4, 6, 8), p(8)], _layer_norm((8,)), epsilon=0.25**4)
    yield subject("SimplifiedLayerNormalization", [f(4, 6, 8), p(8)], _rms_norm((8,)), opset=1)
    yield from _skip()
    yield from _batch()
    yield subject(
        "InstanceNormalization",
        [f(4, 6, 6, 4), p(6), f(6)],
        lambda x, w, b: functional.instance_norm(x, weight=w, bias=b),
    )

    def group(x: Any, w: Any, b: Any) -> Any:
        return functional.group_norm(x, 6, w, b)

    yield subject("GroupNormalization", [f(4, 12, 6, 2), p(12), f(12)], group, num_groups=6, opset=21)
    yield subject("LpNormalization", [f(4, 6)], lambda x: functional.normalize(x, dim=-1), axis=-1)
    yield subject("LpNormalization", [f(4, 6)], lambda x: functional.normalize(x, p=1.0, dim=0), axis=0, p=1)
    yield subject("MeanVarianceNormalization", [f(4, 6, 4, 2)], _mean_variance)
    for axis in (1, -1):
        yield subject("Softmax", [f(4, 6, 12)], named(torch.softmax, dim=axis), axis=axis)
        yield subject("LogSoftmax", [f(4, 6, 12)], named(torch.log_softmax, dim=axis), axis=axis)

    def joint(x: Any) -> Any:
        return torch.softmax(x.flatten(1), 1).reshape(x.shape)

    yield subject("Softmax", [f(4, 6, 2)], joint, axis=1, opset=11)
    yield from _losses()


def _layer_norm(shape: tuple[int, ...]) -> Any:
    return lambda x, w, b=None: functional.layer_norm(x, shape, w, b, eps=0.25**4 if b is None else 1e-5)


def _rms_norm(shape: tuple[int, ...]) -> Any:
    return lambda x, w: functional.rms_norm(x, shape, w, eps=1e-5)


def _mean_variance(x: torch.Tensor) -> torch.Tensor:
    mean = x.mean((0, 2, 3), keepdim=True)
    return (x - mean) / (((x - mean) ** 2).mean((0, 2, 3), keepdim=True).sqrt() + 1e-9)


def _skip() -> Iterator[Subject]:
    """A residual that joins before the normalisation; the last result is the sum."""
    domain = "com.microsoft::"

    def layer(x: torch.Tensor, skip: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> Any:
        return functional.layer_norm(x + skip, (8,), w, b, eps=1e-5), None, None, x + skip

    def simplified(x: torch.Tensor, skip: torch.Tensor, w: torch.Tensor) -> Any:
        return functional.rms_norm(x + skip, (8,), w, eps=1e-5), None, None, x + skip

    sums: dict[str, Any] = {"opset": 1, "results": [True, False, False, True], "seeded": (0, 3), "epsilon": 1e-5}
    yield subject(f"{domain}SkipLayerNormalization", [f(4, 6, 8), f(4, 6, 8), p(8), f(8)], layer, **sums)
    yield subject(f"{domain}SkipSimplifiedLayerNormalization", [f(4, 6, 8), f(4, 6, 8), p(8)], simplified, **sums)


def _batch() -> Iterator[Subject]:
    operands = [f(4, 6, 4, 2), p(6), f(6), f(6), p(6)]

    def still(x: torch.Tensor, *channels: torch.Tensor) -> torch.Tensor:
        """Torch's own function does not differentiate by the statistics."""
        w, b, mean, variance = (c[:, None, None] for c in channels)
        return (x - mean) * torch.rsqrt(variance + 1e-5) * w + b

    yield subject("BatchNormalization", operands, still)

    def moving(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor, mean: torch.Tensor, variance: torch.Tensor) -> Any:
        """Torch corrects the running variance by n/(n - 1), ONNX does not: only the first result is compared."""
        return functional.batch_norm(x, mean.clone(), variance.clone(), w, b, training=True)

    yield subject("BatchNormalization", operands, moving, training_mode=1, results=3, fixed=(3, 4))


def _losses() -> Iterator[Subject]:
    for reduction in ("mean", "sum", "none"):
        loss = named(functional.cross_entropy, reduction=reduction)
        yield subject("SoftmaxCrossEntropyLoss", [f(12, 6), indices(6, 12)], loss, reduction=reduction)
        labels = np.where(indices(4, 4, 6) == 0, 2, indices(6, 4, 6))
        weighted = _weighted(functional.cross_entropy, reduction)
        yield subject(
            "SoftmaxCrossEntropyLoss",
            [f(4, 6, 6), labels, p(6)],
            lambda x, t, w, loss=weighted: (loss(x, t, w), torch.log_softmax(x, 1)),
            reduction=reduction,
            ignore_index=2,
            results=2,
            seeded=(0, 1),
            fixed=(2,),
        )
        likelihood = _weighted(functional.nll_loss, reduction)
        options: dict[str, Any] = {"reduction": reduction, "ignore_index": 2, "fixed": (2,)}
        yield subject("NegativeLogLikelihoodLoss", [f(4, 6, 6), labels, p(6)], likelihood, **options)


def _weighted(loss: Any, reduction: str) -> Any:
    return lambda x, labels, w: loss(x, labels, weight=w, ignore_index=2, reduction=reduction)
