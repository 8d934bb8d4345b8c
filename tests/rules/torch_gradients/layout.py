"""What moves elements, and resizing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from tests.rules.torch_gradients.subject import Subject, f, i, named, subject

__all__ = ["layouts"]


def layouts() -> Iterator[Subject]:
    yield subject("Reshape", [f(4, 12), i(4, 3, -1)], lambda x, _: x.reshape(4, 3, 4), constants=(1,))
    yield subject("Reshape", [f(4, 2, 6), i(-1, 6)], lambda x, _: x.reshape(8, 6), constants=(1,))
    yield subject("Flatten", [f(4, 6, 2)], named(torch.flatten, start_dim=1), axis=1)
    yield subject("Squeeze", [f(4, 1, 6), i(1)], lambda x, _: x.squeeze(1), constants=(1,))
    yield subject("Unsqueeze", [f(4, 6), i(0, -1)], lambda x, _: x[None, :, :, None], constants=(1,))
    yield subject("Transpose", [f(4, 6, 2)], named(torch.permute, dims=(2, 0, 1)), perm=(2, 0, 1))
    yield subject("Expand", [f(6, 1), i(4, 6, 12)], lambda x, _: x.expand(4, 6, 12), constants=(1,))
    yield subject("Tile", [f(4, 6), i(2, 3)], lambda x, _: x.tile(2, 3), constants=(1,))
    yield from _cut_and_joined()
    yield from _padded()
    yield from _blocks()
    yield from _resized()


def _cut_and_joined() -> Iterator[Subject]:
    yield subject("Concat", [f(4, 12), f(4, 6)], lambda a, b: torch.cat([a, b], 1), axis=1)
    yield subject("Concat", [f(4, 6)] * 3, lambda *parts: torch.cat(parts), axis=0)
    third = named(torch.chunk, chunks=3, dim=-1)
    yield subject("Split", [f(4, 36)], third, axis=-1, num_outputs=3, results=3, seeded=(0, 1, 2))

    def halves(x: Any, _: Any) -> Any:
        return torch.split(x, (4, 8), 1)

    yield subject("Split", [f(6, 12), i(4, 8)], halves, axis=1, results=2, constants=(1,), seeded=(0, 1))
    for starts, ends, axes, steps, region in (
        ([6], [12], [1], [1], np.s_[:, 6:12]),
        ([0], [12], [1], [2], np.s_[:, ::2]),
        ([1, 0], [3, 99], [0, 1], [1, 3], np.s_[1:3, ::3]),
    ):
        operands = [f(4, 12), i(*starts), i(*ends), i(*axes), i(*steps)]
        yield subject("Slice", operands, lambda x, *_, region=region: x[region], constants=(1, 2, 3, 4))
    backwards = [f(4, 12), i(-1), i(-99), i(1), i(-1)]
    yield subject("Slice", backwards, lambda x, *_: x.flip(1), constants=(1, 2, 3, 4))
    yield subject("ReverseSequence", [f(6, 4, 2), i(6, 1, 2, 3)], _reversed, time_axis=0, batch_axis=1)
    yield subject("Trilu", [f(2, 6, 4), i(1)[0]], lambda x, _: x.triu(1), constants=(1,))
    yield subject("Trilu", [f(2, 6, 4)], torch.tril, upper=0)


def _reversed(x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    columns = [torch.cat([x[:n, b].flip(0), x[n:, b]]) for b, n in enumerate(lengths.tolist())]
    return torch.stack(columns, 1)


def _padded() -> Iterator[Subject]:
    for mode, named_in_torch in (
        ("constant", "constant"),
        ("reflect", "reflect"),
        ("edge", "replicate"),
        ("wrap", "circular"),
    ):

        def meaning(x: Any, _: Any, mode: Any = named_in_torch) -> Any:
            return functional.pad(x, (3, 3), mode=mode)

        yield subject("Pad", [f(2, 4, 12), i(0, 0, 3, 0, 0, 3)], meaning, constants=(1,), mode=mode)

    def shifted(x: Any, _: Any) -> Any:
        return functional.pad(x, (-1, 1, 2, 0))

    yield subject("Pad", [f(4, 12), i(2, -1, 0, 1)], shifted, constants=(1,))

    def smaller(x: Any, _: Any) -> Any:
        return functional.pad(x[3:9], (3, 3))

    yield subject("CenterCropPad", [f(12, 6), i(6, 12)], smaller, constants=(1,))


def _blocks() -> Iterator[Subject]:
    """Torch keeps a channel's block together (CRD), ONNX may put it outermost (DCR)."""
    crd = named(functional.pixel_shuffle, upscale_factor=2)
    yield subject("DepthToSpace", [f(2, 8, 4, 6)], crd, blocksize=2, mode="CRD")
    yield subject(
        "DepthToSpace",
        [f(2, 8, 4, 6)],
        lambda x: crd(x.unflatten(1, (4, 2)).transpose(1, 2).flatten(1, 2)),
        blocksize=2,
    )
    apart_again = named(functional.pixel_unshuffle, downscale_factor=2)
    yield subject(
        "SpaceToDepth",
        [f(2, 2, 4, 12)],
        lambda x: apart_again(x).unflatten(1, (2, 4)).transpose(1, 2).flatten(1, 2),
        blocksize=2,
    )


def _resized() -> Iterator[Subject]:
    twice = np.array([1, 1, 2, 2], np.float32)
    for mode, onnx_options, torch_options in (
        ("nearest", {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}, {}),
        ("linear", {}, {"mode": "bilinear"}),
        ("linear", {"coordinate_transformation_mode": "align_corners"}, {"mode": "bilinear", "align_corners": True}),
        ("cubic", {}, {"mode": "bicubic"}),
    ):
        resize = _interpolate(torch_options)
        operands = [f(2, 2, 4, 6), None, twice]
        yield subject("Resize", operands, resize, mode=mode, constants=(2,), fixed=(2,), **onnx_options)
    old: dict[str, Any] = {"constants": (1,), "fixed": (1,), "opset": 9, "mode": "nearest"}
    yield subject("Upsample", [f(2, 2, 4, 6), twice], _interpolate({}), **old)


def _interpolate(options: dict[str, Any]) -> Any:
    return lambda x, *_: functional.interpolate(x, scale_factor=2, **options)
