"""A tensor of the graph: name, shape, element type and the part it plays."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

__all__ = ["ITEM_BYTES", "Role", "Tensor"]

# Bytes of one element as it is computed with: sub-byte types take a byte, as runtimes unpack them first.
ITEM_BYTES: dict[str, int] = {
    "float64": 8, "float32": 4, "float16": 2, "bfloat16": 2,
    "float8e4m3fn": 1, "float8e4m3fnuz": 1, "float8e5m2": 1, "float8e5m2fnuz": 1, "float8e8m0": 1,
    "float6e2m3": 1, "float6e3m2": 1, "float4e2m1": 1,
    "int64": 8, "int32": 4, "int16": 2, "int8": 1, "int4": 1, "int2": 1,
    "uint64": 8, "uint32": 4, "uint16": 2, "uint8": 1, "uint4": 1, "uint2": 1,
    "bool": 1, "string": 8, "complex64": 8, "complex128": 16,
}  # fmt: skip

# Types that are stored in less than a byte, with their bits.
_NARROW: dict[str, int] = {
    "float6e2m3": 6, "float6e3m2": 6, "int4": 4, "uint4": 4, "float4e2m1": 4, "int2": 2, "uint2": 2,
}  # fmt: skip


class Role(StrEnum):
    """What a tensor is for."""

    PARAMETER = "parameter"  # a weight of any type; those that are trained have a gradient and optimizer state
    INPUT = "input"  # fed at every step; the loader can deliver it in any layout
    ACTIVATION = "activation"  # computed by an operator
    CONSTANT = "constant"  # fixed: masks, tables, running statistics, shape arithmetic


@dataclass(frozen=True, slots=True, eq=False)
class Tensor:
    """`shape` is None only where it depends on data; `value` is kept for small constants alone.  `parts`: how many
    equal parts readers take each dimension apart into; empty where they take none.  `frozen`: of a parameter, whether
    the file says that it is never trained."""

    name: str
    shape: tuple[int, ...] | None
    dtype: str
    role: Role
    value: np.ndarray | None = None
    parts: tuple[int, ...] = ()
    frozen: bool = False

    @property
    def rank(self) -> int:
        return len(self.shape or ())

    @property
    def elements(self) -> int:
        """Number of elements; 0 where the shape depends on data."""
        return 0 if self.shape is None else math.prod(self.shape)

    @property
    def bytes(self) -> int:
        return self.elements * ITEM_BYTES[self.dtype]

    @property
    def stored_bytes(self) -> int:
        """Bytes as it is stored: elements of less than a byte are packed."""
        return -(-self.elements * _NARROW[self.dtype] // 8) if self.dtype in _NARROW else self.bytes

    @property
    def is_float(self) -> bool:
        return self.dtype.startswith(("float", "bfloat"))

    @property
    def is_quantised(self) -> bool:
        """Of a type that only stores numbers: integers, and floats of a byte or less."""
        return not self.is_float or ITEM_BYTES[self.dtype] < 2
