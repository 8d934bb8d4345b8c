"""The array API standard's functions for an array, and where it lies.

Kernels ask for them at every step; what `array_api_compat` finds out by asking each library is known of numpy's arrays.
"""

from __future__ import annotations

from typing import Any

import array_api_compat
import array_api_compat.numpy
import numpy as np

__all__ = ["array_namespace", "device"]


def array_namespace(x: Any) -> Any:
    return array_api_compat.numpy if type(x) is np.ndarray else array_api_compat.array_namespace(x)


def device(x: Any) -> Any:
    return "cpu" if type(x) is np.ndarray else array_api_compat.device(x)
