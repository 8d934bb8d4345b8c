"""Element types by the names that formats have for them."""

from __future__ import annotations

from typing import Any, Final

import ml_dtypes
import numpy as np

__all__ = ["MINDSPORE", "SAFETENSORS", "TORCH", "element_type", "name_in", "weight_type"]

Type = np.dtype[Any]


def _table(**types: Any) -> dict[str, Type]:
    return {name: np.dtype(t) for name, t in types.items()}


SAFETENSORS: Final = _table(
    BOOL=np.bool_, U8=np.uint8, I8=np.int8, U16=np.uint16, I16=np.int16, U32=np.uint32, I32=np.int32, U64=np.uint64,
    I64=np.int64, F16=np.float16, BF16=ml_dtypes.bfloat16, F32=np.float32, F64=np.float64,
    F8_E4M3=ml_dtypes.float8_e4m3fn, F8_E5M2=ml_dtypes.float8_e5m2, F8_E4M3FNUZ=ml_dtypes.float8_e4m3fnuz,
    F8_E5M2FNUZ=ml_dtypes.float8_e5m2fnuz, F8_E8M0=ml_dtypes.float8_e8m0fnu, C64=np.complex64,
)  # fmt: skip
MINDSPORE: Final = _table(
    Bool=np.bool_, UInt8=np.uint8, Int8=np.int8, UInt16=np.uint16, Int16=np.int16, UInt32=np.uint32, Int32=np.int32,
    UInt64=np.uint64, Int64=np.int64, Float16=np.float16, BFloat16=ml_dtypes.bfloat16, Float32=np.float32,
    Float64=np.float64, Complex64=np.complex64, Complex128=np.complex128,
)  # fmt: skip
TORCH: Final = _table(
    bool=np.bool_, uint8=np.uint8, int8=np.int8, uint16=np.uint16, int16=np.int16, uint32=np.uint32, int32=np.int32,
    uint64=np.uint64, int64=np.int64, float16=np.float16, bfloat16=ml_dtypes.bfloat16, float32=np.float32,
    float64=np.float64, float8_e4m3fn=ml_dtypes.float8_e4m3fn, float8_e5m2=ml_dtypes.float8_e5m2,
    float8_e4m3fnuz=ml_dtypes.float8_e4m3fnuz, float8_e5m2fnuz=ml_dtypes.float8_e5m2fnuz,
    float8_e8m0fnu=ml_dtypes.float8_e8m0fnu, complex64=np.complex64, complex128=np.complex128,
)  # fmt: skip
_SHORT: Final = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32", "fp64": "float64"}


def element_type(name: str) -> Type:
    """Of `bf16`, `fp32`, or the name that torch has for it.  ValueError where there is no such type."""
    found = TORCH.get(_SHORT.get(name, name))
    if found is None:
        raise ValueError(f"expected an element type ({', '.join(_SHORT)}, or one of torch), found {name!r}")
    return found


def weight_type(name: str) -> Type:
    """As `element_type`, of floating-point numbers alone."""
    found = element_type(name)
    if found.kind not in "fV":
        raise ValueError(f"expected a type of floating-point numbers, found {name!r}")
    return found


def name_in(table: dict[str, Type], dtype: Type) -> str:
    """The table's name of a type.  ValueError where it has none."""
    for name, each in table.items():
        if each == dtype:
            return name
    raise ValueError(f"no name for elements of the type {dtype}")
