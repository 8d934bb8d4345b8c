"""Forward of one operator on arrays of any local shape.

Three sources, in this order: numpy where it says exactly what the operator means, our own kernels for the
gradient operators of exported training graphs (no public runtime has them), ONNX Runtime for the rest.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from planner.ir import Op
from planner.verify.kernels.gradients import GRADIENT_KERNELS
from planner.verify.kernels.plain import PLAIN_KERNELS
from planner.verify.kernels.session import run_node
from planner.verify.shards import Array

__all__ = ["run_local"]

Shape = tuple[int, ...]


def run_local(
    op: Op, inputs: Sequence[Array | None], *, output_shapes: Sequence[Shape | None] | None = None
) -> list[Array | None]:
    """Results of the operator, one per entry of `op.outputs` (None where the name is empty).

    `inputs` follow `op.inputs`, None where absent.  `output_shapes` are the local shapes of the results;
    only operators that cannot tell their result's shape from their operands (`MaxPoolGrad`) read them.
    Results may be views of the operands: treat all arrays as immutable.

    NoKernelError where nothing can run the operator, or where it rejects these operands.
    """
    if (plain := PLAIN_KERNELS.get(op.type)) is not None:
        result = plain(op, inputs)
        if result is not None:
            return [np.asarray(result)]  # arithmetic on arrays without dimensions gives numpy scalars
    if (gradient := GRADIENT_KERNELS.get(op.type)) is not None:
        results = gradient(op, inputs, output_shapes)
        return [np.asarray(r) if name and r is not None else None for name, r in zip(op.outputs, results, strict=False)]
    return run_node(op, inputs)
