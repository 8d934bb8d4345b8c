"""Which operands of quantised arithmetic hold weights, and which their scales and zero points."""

from __future__ import annotations

from planner.frontends.facts.weights import quantised_at

__all__: list[str] = []

quantised_at(
    {
        "DynamicQuantizeLSTM": {1: (8, 9), 2: (10, 11), 3: (), 7: ()},
        "DynamicQuantizeMatMul": {1: (2, 3), 4: ()},
        "GatherBlockQuantized": {0: (2, 3)},
        "MatMulBnb4": {1: (2,)},
        "MatMulFpQ4": {1: ()},
        "MatMulInteger": {1: (3,), 0: (2,)},
        "MatMulInteger16": {1: (), 0: ()},
        "MatMulIntegerToFloat": {1: (3, 5), 0: (2, 4), 6: ()},
        "MatMulNBits": {1: (2, 3, 4), 5: ()},
        "QGemm": {3: (4, 5), 0: (1, 2), 6: ()},
        "QLinearAdd": {3: (4, 5), 0: (1, 2)},
        "QLinearMatMul": {3: (4, 5), 0: (1, 2)},
        "QLinearMul": {3: (4, 5), 0: (1, 2)},
    }
)
