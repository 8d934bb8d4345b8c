"""`planner.load` and `planner.build`: models from files, and of known architectures in any size."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from planner.errors import OptionError
from planner.library.model import Model, Proto, model_of
from planner.library.options import refuse_unknown
from planner.library.wording import worded
from planner.requests.model import ModelSource
from planner.requests.values import bindings

__all__ = ["build", "load"]


@worded
def load(
    model: str | os.PathLike[str] | bytes | Proto,
    *,
    name: str | None = None,
    bind: Mapping[str, int] | Sequence[str] = (),
    batch: int | None = None,
) -> Model:
    """Reads an ONNX model, in a child process with limits in memory and time; weights are not needed.

    Args:
        model: the path of a file, its bytes, or an onnx.ModelProto.
        name: the name of the model in its plans; default: the name of the file.
        bind: the sizes of symbolic dimensions, a mapping such as `{"sequence": 128}`.
        batch: the global batch size; it binds the batch dimension, or replaces a static one.

    Returns:
        The model, whose `graph` is imported.

    Raises:
        InputError: the model cannot be read or understood.
        UsageError: a name in `bind` is not a dimension of the model, or a dimension is left without a size.
    """
    found = model_of(model)
    items = [f"{k}={v}" for k, v in bind.items()] if isinstance(bind, Mapping) else list(bind)
    found = replace(found, source=_named(found.source, name), bind=bindings(items), batch=batch)
    _ = found.graph
    return found


@worded
def build(architecture: str, *, name: str | None = None, **sizes: int | bool | str | None) -> Model:
    """Builds the graph of a known architecture, without weights: the one that `planner build` writes.

    Args:
        architecture: bert, deepseek, gpt, llama, mlp, moe, resnet or vit.
        name: the name of the model in its plans; default: the architecture.
        sizes: as the options of `planner build ARCHITECTURE --help`: layers=4, hidden=512, heads=8, batch=64, ….

    Raises:
        OptionError: the architecture has no such size.
        UsageError: there is no such architecture, or sizes do not fit each other.

    >>> planner.build("gpt", layers=4, hidden=256, heads=8, seq=128)
    <Model gpt: 113 operators, 16,058,112 weights, loss loss>
    """
    from planner.builder import ARCHITECTURES
    from planner.builder import build as built

    if architecture in ARCHITECTURES:
        refuse_unknown(
            f'build("{architecture}", …)', sizes, list(ARCHITECTURES[architecture].sizes.__dataclass_fields__)
        )
    data = built(architecture, sizes).SerializeToString(deterministic=True)
    return Model(_named(ModelSource(Path(f"{architecture}.onnx"), data), name))


def _named(source: ModelSource, name: str | None) -> ModelSource:
    if name is None:
        return source
    if not name or Path(name).name != name:
        raise OptionError(f"name: expected one that a file could have, found {name!r:.60}")
    data = source.path.read_bytes() if source.data is None else source.data
    return ModelSource(Path(f"{name}.onnx"), data)
