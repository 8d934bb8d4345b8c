"""Small operators of one family: movement along one dimension."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from tests.rules.cases.values import f, i, n
from tests.rules.prover import Case, case

__all__ = ["movements"]


def movements() -> Iterator[Case]:
    yield from _slices()
    yield from _concatenations()
    yield from _paddings()
    yield from _blocks()
    yield from _creations()


def _slices() -> Iterator[Case]:
    def one(x: np.ndarray, starts: Any, ends: Any, axes: Any, steps: Any, **attributes: Any) -> Case:
        return case("Slice", [x, i(*starts), i(*ends), i(*axes), i(*steps)], constants=[1, 2, 3, 4], **attributes)

    yield one(f(4, 24), [0], [12], [1], [1])  # the rotary halves
    yield one(f(4, 24), [12], [2**62], [-1], [1])
    yield one(f(12, 4), [0], [2**62], [0], [2])  # every other one, in place
    yield one(f(12, 4), [1], [12], [0], [2])
    yield one(f(12, 4), [3], [12], [0], [3])
    yield one(f(4, 12), [-1], [-(2**62)], [1], [-1])  # reversed
    yield one(f(24, 4), [-2], [0], [0], [-2])
    yield one(f(4, 13), [1], [2**62], [1], [1])  # what follows the first
    yield one(f(4, 12), [0], [1], [1], [1])  # the class token: a pending sum
    yield one(f(4, 12), [-1], [2**62], [1], [1])
    yield one(f(4, 48, 2), [3], [6], [1], [1])
    yield one(f(12, 48), [4, 12], [8, 36], [0, 1], [1, 2])  # two dimensions at once
    yield one(f(24, 12), [0, 6], [1, 2**62], [0, 1], [1, 1])
    yield one(n(99, 4, 12), [6], [12], [1], [1])
    yield one(n(99, 4, 12), [0], [1], [1], [1])
    yield one(f(4, 12).astype(np.float16), [6], [12], [1], [1])
    yield one(f(4, 12, 6), [2, 0], [8, 4], [1, 2], [1, 3])
    yield one(f(4, 12), [5], [5], [1], [1])  # nothing at all
    yield case("Slice", [f(4, 12, 6)], opset=9, starts=(6, 0), ends=(12, 2), axes=(1, 2))
    yield case("Slice", [f(12, 6)], opset=1, starts=(4, -6), ends=(-2, 9))
    yield case("Slice", [f(4, 12), i(0, 6), i(4, 12)])  # computed at run time
    yield case(
        "com.microsoft::SliceGrad", [f(4, 6), i(4, 12), i(6), i(12), i(1), i(1)], constants=[1, 2, 3, 4, 5], opset=1
    )
    yield case(
        "com.microsoft::SliceGrad", [f(4, 6), i(4, 12), i(1), i(12), i(1), i(2)], constants=[1, 2, 3, 4, 5], opset=1
    )
    yield case(
        "com.microsoft::SliceGrad", [f(4, 6), i(4, 12), i(-1), i(-99), i(1), i(-2)], constants=[1, 2, 3, 4, 5], opset=1
    )
    yield case(
        "com.microsoft::SliceGrad", [f(6, 4), i(12, 24), i(3, 4), i(9, 8), i(0, 1)], constants=[1, 2, 3, 4], opset=1
    )


def _concatenations() -> Iterator[Case]:
    yield case("Concat", [f(4, 12), f(4, 12)], axis=-1)
    yield case("Concat", [f(4, 12, 2), f(4, 6, 2), f(4, 18, 2)], axis=1)
    yield case("Concat", [f(12, 4)] * 4, axis=0)
    yield case("Concat", [n(9, 4, 12), n(9, 4, 0), n(9, 4, 12)], axis=1)
    yield case("Concat", [f(4, 1), f(4, 11)], axis=1)
    yield case("Concat", [f(4, 6)], axis=1)
    yield case("Concat", [n(9, 4, 12), n(9, 4, 24)], axis=1)
    yield case("Concat", [f(12), f(12)], opset=3, axis=0)
    yield case("Split", [f(4, 36)], axis=-1, results=3, num_outputs=3)  # queries, keys and values
    yield case("Split", [f(4, 2, 32), i(16, 8, 8)], axis=2, results=3, constants=[1])  # with fewer key and value heads
    yield case("Split", [f(12, 4), i(12)], axis=0, results=1, constants=[1])
    yield case("Split", [f(4, 12)], axis=1, results=4, opset=13)
    yield case("Split", [f(4, 12)], axis=1, results=2, opset=11, split=(8, 4))
    yield case("Split", [f(4, 10)], axis=1, results=3, num_outputs=3)
    yield case("Split", [f(4, 12), i(6, 6)], axis=1, results=2)  # lengths computed at run time
    yield case("Split", [f(4, 36).astype(np.float16)], axis=1, results=3, num_outputs=3)


def _paddings() -> Iterator[Case]:
    for mode in ("constant", "reflect", "edge", "wrap"):
        yield case("Pad", [f(4, 12), i(0, 3, 0, 3)], constants=[1], mode=mode)
        yield case("Pad", [f(4, 12), i(0, 4, 0, 8)], constants=[1], mode=mode)
    yield case("Pad", [f(2, 4, 6, 12), i(0, 0, 1, 2, 0, 0, 1, 2)], constants=[1])
    yield case("Pad", [f(2, 4, 6, 6), i(0, 0, 3, 3, 0, 0, 3, 3), np.float32(1.5)], constants=[1, 2])
    yield case("Pad", [f(4, 12), i(0, 3, 0, 3), np.float32(-1e4)], constants=[1, 2])
    yield case("Pad", [f(4, 12), i(0, 3, 0, 3), np.float32(2)], constants=[1])  # its value is computed
    yield case("Pad", [f(4, 12), i(0, -1, 0, 1)], constants=[1])  # a shift by one
    yield case("Pad", [f(4, 12), i(0, 3, 0, -3)], constants=[1], mode="edge")
    yield case("Pad", [f(4, 12, 6), i(6, 6), None, i(-2)], constants=[1, 3], opset=18)
    yield case("Pad", [f(12, 4)], opset=2, pads=(6, 0, 0, 0), value=0.5)
    yield case("Pad", [f(12, 4), i(6, 1, 6, 1)])  # computed at run time
    yield case("Pad", [n(9, 12, 4), i(6, 0, 0, 0), np.int64(7)], constants=[1, 2])
    yield case("CenterCropPad", [f(12, 6), i(6, 12)], constants=[1])
    yield case("CenterCropPad", [f(4, 12, 6), i(8, 6)], constants=[1], axes=(1, 2))
    yield case("CenterCropPad", [f(4, 12, 9), i(9)], constants=[1], axes=(-2,))
    yield case("Tile", [f(4, 6), i(6, 2)], constants=[1])
    yield case("Tile", [f(4, 6), i(4, 1)])
    yield case("Tile", [f(1, 6, 2), i(12, 1, 3)], constants=[1])
    yield case("Tile", [n(9, 6), i(4)], constants=[1])


def _blocks() -> Iterator[Case]:
    for mode in ("DCR", "CRD"):
        yield case("DepthToSpace", [f(2, 48, 4, 6)], blocksize=2, mode=mode)
        yield case("DepthToSpace", [f(4, 54, 1, 2)], blocksize=3, mode=mode)
    yield case("DepthToSpace", [f(2, 16, 4, 4)], blocksize=2, opset=1)
    yield case("SpaceToDepth", [f(2, 12, 4, 12)], blocksize=2)
    yield case("SpaceToDepth", [f(2, 6, 9, 6)], blocksize=3)
    yield case("SpaceToDepth", [f(2, 6, 4, 6)], blocksize=2, mode="CRD", opset=28)
    yield case("Trilu", [f(6, 4)])
    yield case("Trilu", [f(2, 6, 12), np.int64(-2)])
    yield case("Trilu", [f(2, 12, 6), np.int64(3)], upper=0, constants=[1])
    yield case("Trilu", [n(9, 6, 6)], upper=0)
    yield case("ReverseSequence", [f(4, 6, 2), i(6, 1, 2, 3)], batch_axis=0, time_axis=1)
    yield case("Expand", [f(4, 1, 6), i(1, 12, 1)], constants=[1])
    yield case("Expand", [f(6), i(4, 12, 6)])
    yield case("Expand", [np.float32(2), i(4, 6)], constants=[1])
    yield case("Squeeze", [f(2, 1, 4, 1, 6)])
    yield case("Squeeze", [f(1, 12)], opset=11)
    yield case("Squeeze", [f(6, 1, 2)], opset=11, axes=(-2,))
    yield case("Reshape", [f(4, 12)], opset=1, shape=(4, 3, -1))
    yield case("Reshape", [f(4, 12)], opset=1, shape=(0, 2, 6))


def _creations() -> Iterator[Case]:
    yield case("EyeLike", [f(4, 6)])
    yield case("EyeLike", [f(12, 6)], k=-2, dtype=7)
    yield case("EyeLike", [n(9, 6, 6)], k=1)
    yield case("ConstantOfShape", [i(4, 6)], constants=[0], value=np.array([2.5], np.float32))
    yield case("ConstantOfShape", [i(12)], value=np.array([7], np.int64))
    yield case("Range", [i(3)[0], i(27)[0], i(2)[0]])
    yield case("Range", [i(5)[0], i(-7)[0], i(-1)[0]])
    yield case("Range", [np.float32(0.5), np.float32(6.5), np.float32(0.5)])
    yield case("Shape", [f(4, 6, 2)], start=1, end=-1)
    yield case("Shape", [f(4, 6, 2)], opset=13)
    yield case("Size", [f(4, 6)])
    yield case("OneHot", [n(12, 4, 6), np.int64(12), f(2)], constants=[1])
    yield case("OneHot", [n(12, 4, 6) - 6, i(6), i(0, 1)], axis=0)
    yield case("OneHot", [n(12, 6), np.float32(12), f(2)], axis=-1)
    yield case("OneHot", [4 * f(4, 6), np.float32(12), f(2)], constants=[1], axis=0)  # cut off
