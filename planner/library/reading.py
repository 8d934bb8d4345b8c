"""Another system's strategy as a plan of ours."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from planner.errors import UsageError
from planner.library.model import Model, Proto, model_of
from planner.library.plan import Plan
from planner.library.wording import worded
from planner.requests.reading import HARDWARE, strategy_file
from planner.requests.values import bindings

__all__ = ["read"]


@worded
def read(
    file: str | os.PathLike[str],
    format: str,
    model: Model | str | os.PathLike[str] | bytes | Proto,
    *,
    names: str | os.PathLike[str] | None = None,
    hardware: str = HARDWARE,
    bind: Mapping[str, int] | Sequence[str] | None = None,
    batch: int | None = None,
    micro_batches: int | None = None,
) -> Plan:
    """Reads another system's strategy as a plan, priced, as `planner read` does.

    Args:
        file: a strategy file, .ckpt or .json.
        format: the system that wrote it: mindspore, layout, dtensor, huggingface or onnx.
        model: the model that the strategy is for.
        names: a JSON file with the names that the file uses for the model's parameters.
        hardware: the hardware profile to price it with.
        bind: the sizes of symbolic dimensions.
        batch: the global batch size.
        micro_batches: the number of micro-batches of a pipeline; default: up to 4 a stage.

    Returns:
        The plan; its `messages` say which parts of the file were not used.

    Raises:
        InputError: the file does not have that format, or does not fit the model.
        UsageError: there is no such format.
    """
    from planner.emit import FORMATS
    from planner.emit.wording import some
    from planner.planning import plan_text

    if format not in FORMATS:
        raise UsageError(f"format={format!r}: expected one of {', '.join(FORMATS)}")
    known = model_of(model)
    if bind is not None:
        items = [f"{k}={v}" for k, v in bind.items()] if isinstance(bind, Mapping) else list(bind)
        known = replace(known, bind=bindings(items))
    if batch is not None:
        known = replace(known, batch=batch)
    found = strategy_file(
        Path(file),
        format,
        known.source,
        names=None if names is None else Path(names),
        hardware=hardware,
        bind=known.bind,
        batch=known.batch,
        micro_batches=micro_batches,
    )
    unused = found.found.unused
    _, plan = found.plan()
    messages = (f"not used, and searched instead: {len(unused)} ({some(unused)})",) if unused else ()
    return Plan(plan_text(plan), known, messages=messages)
