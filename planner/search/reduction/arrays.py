"""Interned arrays: equal content gets equal numbers, so work on repeated layers is done once.

Deep networks repeat one block dozens of times, and pricing hands out the *same* array objects for every
repetition.  Arrays are recognised by object identity first and by content digest second; every
operation on them is memoised under the numbers of its operands.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Hashable
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

__all__ = ["Array", "Interner"]

Array = NDArray[Any]
T = TypeVar("T")


class Interner:
    """Numbers for arrays.  Interned arrays must not be written to."""

    def __init__(self) -> None:
        self.arrays: list[Array] = []
        self._by_object: dict[int, int] = {}
        self._by_digest: dict[tuple[Any, ...], int] = {}
        self._alive: list[Array] = []  # identities are only valid while the objects live
        self._memo: dict[Hashable, Any] = {}

    def __getitem__(self, number: int) -> Array:
        return self.arrays[number]

    def add(self, array: Array) -> int:
        """The number of `array`."""
        known = self._by_object.get(id(array))
        if known is not None:
            return known
        contiguous = np.ascontiguousarray(array)
        digest = hashlib.blake2b(contiguous.data if contiguous.size else b"", digest_size=20).digest()
        key = (array.shape, array.dtype.str, digest)
        number = self._by_digest.setdefault(key, len(self.arrays))
        if number == len(self.arrays):
            self.arrays.append(contiguous)
        self._by_object[id(array)] = number
        self._alive.append(array)
        return number

    def once(self, key: Hashable, compute: Callable[[], T]) -> T:
        """`compute()`, remembered under `key`."""
        if key not in self._memo:
            self._memo[key] = compute()
        found: T = self._memo[key]
        return found

    def derive(self, key: Hashable, compute: Callable[[], Array]) -> int:
        """The number of the array `compute()`, remembered under `key`."""
        return self.once(key, lambda: self.add(compute()))

    def take(self, number: int, axis: int, index: int) -> int:
        """`array` with only the entries `index` (an interned index array) along `axis`."""
        return self.derive(
            ("take", number, axis, index), lambda: np.take(self.arrays[number], self.arrays[index], axis=axis)
        )

    def plus(self, a: int, b: int) -> int:
        """Sum of two arrays of one shape."""
        if a > b:
            a, b = b, a
        return self.derive(("plus", a, b), lambda: self.arrays[a] + self.arrays[b])

    def transposed(self, number: int) -> int:
        return self.derive(("T", number), lambda: np.ascontiguousarray(self.arrays[number].T))

    def low(self, number: int) -> float:
        return self.once(("low", number), lambda: float(self.arrays[number].min()))

    def high(self, number: int) -> float:
        """Largest finite entry (0 where there is none)."""

        def largest() -> float:
            finite = self.arrays[number][np.isfinite(self.arrays[number])]
            return float(finite.max()) if finite.size else 0.0

        return self.once(("high", number), largest)
