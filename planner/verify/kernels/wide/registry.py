"""Which operators have a kernel in double precision."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from planner.ir import Op
from planner.verify.kernels.wide.attention import ATTENTIONS
from planner.verify.kernels.wide.classical import CLASSICAL
from planner.verify.kernels.wide.convolution import CONVOLUTIONS
from planner.verify.kernels.wide.elementwise import ELEMENTWISE
from planner.verify.kernels.wide.experts import EXPERTS
from planner.verify.kernels.wide.layout import LAYOUTS
from planner.verify.kernels.wide.normalization import NORMALIZATIONS
from planner.verify.kernels.wide.quantized import QUANTIZED
from planner.verify.kernels.wide.recurrent import RECURRENT
from planner.verify.vjp.attributes import Array

__all__ = ["ALWAYS_WIDE", "WIDE_KERNELS"]

# Those that may have no float64 among their operands, but one as their result.
ALWAYS_WIDE = frozenset({"BitCast", "TfIdfVectorizer", "ai.onnx.ml::LabelEncoder", "ai.onnx.ml::OneHotEncoder"})

WIDE_KERNELS: Mapping[str, Callable[[Op, Sequence[Array | None]], Sequence[Array | None] | None]] = {
    **ATTENTIONS,
    **CLASSICAL,
    **CONVOLUTIONS,
    **ELEMENTWISE,
    **EXPERTS,
    **LAYOUTS,
    **NORMALIZATIONS,
    **QUANTIZED,
    **RECURRENT,
}
