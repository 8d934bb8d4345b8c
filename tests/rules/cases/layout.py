"""Small operators of one family: layout."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tests.rules.cases.values import f, i, n
from tests.rules.prover import Case, case

__all__ = ["layouts"]


def layouts() -> Iterator[Case]:
    for a, b in (
        ((4, 6, 12), (24, 12)),
        ((24, 12), (4, 6, 12)),
        ((4, 6, 12), (4, 6, 3, 4)),
        ((4, 6, 2, 4), (4, 6, 8)),
        ((6, 4), (4, 6)),
        ((4, 6), (1, 4, 6, 1)),
        ((12, 6), (6, 12)),
        ((2, 1, 6), (12,)),
        ((24,), (2, 3, 4)),
        ((6, 10), (4, 15)),
        ((12, 15), (18, -1, 2)),  # a leading factor of six, uneven beyond
        ((2, 6, 5), (4, 15)),
        ((2, 9, 4), (6, 12)),
        ((4, 12, 6), (0, 0, 3, 2)),
        ((2, 12, 36), (2, 12, 3, 4, 3)),  # queries, keys and values by heads
        ((2, 12, 3, 4, 3), (2, 12, 36)),
        ((24, 6, 2), (4, 6, 6, 2)),  # heads merged into the batch, and back
        ((2, 3, 12, 18), (2, 3, 4, 3, 6, 3)),  # patches
        ((2, 4, 6, 3, 3, 3), (2, 24, 27)),
        ((1, 1, 12), (12, 1, 1)),
        ((1, 12, 1), (1, 1, 3, 4)),
        ((12,), (1, 12)),
        ((7, 4), (4, 7)),
        ((8, 27), (6, 6, 6)),
    ):
        yield case("Reshape", [f(*a), i(*b)], constants=[1])
    yield case("Reshape", [f(4, 6), i(2, 12)])  # computed at run time
    yield case("Reshape", [f(4, 6).astype(np.float16), i(24)], constants=[1])
    yield case("Reshape", [n(9, 4, 6), i(2, 12)], constants=[1])
    yield case("Reshape", [f(4, 0, 6), i(4, 6, 0)], constants=[1], allowzero=1)
    yield case("Flatten", [f(4, 6, 2)], axis=-1)
    yield case("Flatten", [f(4, 6, 2)], axis=3)
    yield case("Flatten", [f(12)], axis=0)
    yield case("Transpose", [f(2, 6, 1, 4)], perm=(0, 2, 3, 1))
    yield case("Reshape", [f(4, 6, 12), i(0, -1)], constants=[1])
    yield case("Flatten", [f(4, 6, 2)], axis=1)
    yield case("Flatten", [f(4, 6, 2)], axis=2)
    yield case("Flatten", [f(4, 6, 2)], axis=0)
    yield case("Squeeze", [f(4, 1, 6), i(1)], constants=[1])
    yield case("Squeeze", [f(2, 1, 6)])
    yield case("Unsqueeze", [f(4, 6), i(0, 2)], constants=[1])
    yield case("Unsqueeze", [f(4, 6)], opset=11, axes=(1,))
    yield case("Transpose", [f(4, 6, 2)], perm=(2, 0, 1))
    yield case("Transpose", [f(4, 6)])
    yield case("Expand", [f(6, 1), i(4, 6, 12)], constants=[1])
    yield case("Concat", [f(4, 6), f(4, 2), f(4, 6)], axis=1)
    yield case("Split", [f(4, 6), i(2, 4)], axis=1, results=2, constants=[1])
    yield case("Split", [f(4, 6)], axis=-1, results=2, num_outputs=2)
    yield case("Slice", [f(4, 6, 12), i(0, 2), i(2**62, 8), i(0, 2), i(1, 2)], constants=[1, 2, 3, 4])
    yield case("Slice", [f(4, 6), i(-1), i(-(2**62)), i(1), i(-1)], constants=[1, 2, 3, 4])
    yield case("Slice", [f(4, 6), i(1), i(4)], constants=[1, 2])
    yield case("Slice", [f(4, 6)], opset=9, starts=(1,), ends=(3,), axes=(1,))
    yield case("Pad", [f(4, 6), i(0, 1, 0, 2)], constants=[1])
    yield case("Pad", [f(4, 6), i(0, 1, 0, 2), np.float32(1.5)], constants=[1, 2])
    yield case("Pad", [f(4, 6), i(0, 1, 0, 2)], constants=[1], mode="reflect")
    yield case("Pad", [f(4, 6)], opset=2, pads=(1, 0, 1, 0))
    yield case("Tile", [f(4, 6), i(1, 2)], constants=[1])
    yield case("Trilu", [f(4, 6, 6)], upper=0)
    yield case("DepthToSpace", [f(4, 24, 2, 3)], blocksize=2)
    yield case("DepthToSpace", [f(4, 24, 2, 3)], blocksize=2, mode="CRD")
    yield case("SpaceToDepth", [f(4, 6, 4, 6)], blocksize=2)
    yield case("ReverseSequence", [f(6, 4, 2), i(1, 2, 3, 6)], batch_axis=1, time_axis=0)
    yield case("Range", [i(0)[0], i(6)[0], i(1)[0]])
    yield case("Shape", [f(4, 6)])
