"""Sizes for the symbolic dimensions of real graphs."""

from __future__ import annotations

import onnx

__all__ = ["sizes"]

OTHER_SIZES = {
    "silero_vad__silero_vad": {"input.0": 1, "input.1": 256, "state.1": 1},
    # One gradient is carried back, and what is fed of it agrees with the classes.
    "bert_base_mlm_train_ad": {"nadj": 1},
    "resnet50_train_ad": {"nadj": 1, "nadj_x1000": 1000},
}


def sizes(model: onnx.ModelProto, name: str) -> dict[str, int]:
    """Two samples of sixty-four, or what the graph needs."""
    found: dict[str, int] = {}
    stored = {t.name for t in model.graph.initializer}
    for i in model.graph.input:
        for axis, d in enumerate(i.type.tensor_type.shape.dim):
            if i.name not in stored and d.dim_value <= 0:
                symbol = d.dim_param if d.dim_param not in ("", "?", "-1") else f"{i.name}.{axis}"
                found.setdefault(symbol, 64 if axis else 2)
    return {**found, **OTHER_SIZES.get(name, {})}
