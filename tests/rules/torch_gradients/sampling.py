"""What reads features at computed places, folds, and causal convolutions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from tests.rules.torch_gradients.subject import Subject, f, i, indices, named, p, subject

__all__ = ["sampling"]


def sampling() -> Iterator[Subject]:
    fold = named(functional.fold, output_size=(4, 5), kernel_size=2)
    yield subject("Col2Im", [f(2, 24, 12), i(4, 5), i(2, 2)], lambda x, *_: fold(x), constants=(1, 2))
    for align in (False, True):

        def grid(theta: Any, _: Any, align: Any = align) -> Any:
            return functional.affine_grid(theta, (6, 2, 4, 8), align_corners=align)

        yield subject("AffineGrid", [f(6, 2, 3), i(6, 2, 4, 8)], grid, constants=(1,), align_corners=int(align))
        for padding in ("zeros", "border", "reflection"):
            for mode, named_in_torch in (("linear", "bilinear"), ("nearest", "nearest"), ("cubic", "bicubic")):
                yield subject(
                    "GridSample",
                    [f(2, 4, 6, 5), f(2, 4, 6, 2)],
                    named(functional.grid_sample, mode=named_in_torch, padding_mode=padding, align_corners=align),
                    mode=mode,
                    padding_mode=padding,
                    align_corners=int(align),
                )
    yield from _causal()
    yield from _regions()
    yield from _deformed()


def _causal() -> Iterator[Subject]:
    def convolve(x: Any, w: Any, b: Any = None, past: Any = None) -> Any:
        line = functional.pad(x, (3, 0)) if past is None else torch.cat([past, x], 2)
        return functional.conv1d(line, w, b, groups=6), line[:, :, -3:]

    def gated(*operands: Any) -> Any:
        y, present = convolve(*operands)
        return functional.silu(y), present

    operands = [f(2, 6, 8), f(6, 1, 4), f(6), f(2, 6, 3)]
    options: dict[str, Any] = {"opset": 27, "results": 2, "seeded": (0, 1)}
    yield subject("CausalConvWithState", operands, convolve, **options)
    yield subject("CausalConvWithState", operands[:2], convolve, **options)
    yield subject("CausalConvWithState", operands, gated, activation="silu", **options)


def _read(x: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    """Features of x [N, C, H, W] at places [N, H', W', 2] given in elements, rows first; zero outside."""
    sizes = torch.tensor(x.shape[2:], dtype=x.dtype)
    return functional.grid_sample(x, (2 * places / (sizes - 1) - 1).flip(-1), align_corners=True)


def _regions() -> Iterator[Subject]:
    """Two samples each way in every bin of a region, which lies within the image."""
    corners = np.concatenate([p(6, 2, low=1, high=4), p(6, 2, low=5, high=10)], axis=1)

    def meaning(x: torch.Tensor, regions: torch.Tensor, image: torch.Tensor) -> torch.Tensor:
        x0, y0, x1, y1 = regions.T - 0.5
        rows, columns = (
            low[:, None] + (high - low)[:, None] * (torch.arange(2 * bins) + 0.5) / (2 * bins)
            for low, high, bins in ((y0, y1, 2), (x0, x1, 3))
        )
        places = torch.stack([rows[:, :, None].expand(-1, -1, 6), columns[:, None].expand(-1, 4, -1)], -1)
        return functional.avg_pool2d(_read(x[image], places), 2)

    options: dict[str, Any] = {"output_height": 2, "output_width": 3, "sampling_ratio": 2, "fixed": (1,)}
    yield subject("RoiAlign", [f(4, 6, 12, 12), corners, indices(4, 6)], meaning, **options)


def _deformed() -> Iterator[Subject]:
    """Every element of the kernel reads its own displaced image; the columns are those of a plain convolution."""

    def meaning(x: Any, w: Any, offset: Any, b: Any, mask: Any) -> torch.Tensor:
        n, _, height, width = x.shape
        first = torch.stack(torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij"), -1)
        moved = offset.reshape(n, 9, 2, height, width).permute(1, 0, 3, 4, 2)
        taps = [_read(x, first + moved[t] + torch.tensor([t // 3 - 1, t % 3 - 1])) * mask[:, t, None] for t in range(9)]
        return torch.einsum("oct,tnchw->nohw", w.flatten(2), torch.stack(taps)) + b[:, None, None]

    operands = [f(2, 4, 5, 4), f(6, 4, 3, 3), f(2, 18, 5, 4), f(6), f(2, 9, 5, 4)]
    yield subject("DeformConv", operands, meaning, opset=22, pads=(1, 1, 1, 1))
