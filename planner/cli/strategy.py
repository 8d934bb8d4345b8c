"""`planner search --strategy`: a known configuration as stages, micro-batches, recomputation and pins."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Final, Literal

from planner.clock import Configuration
from planner.errors import UsageError
from planner.evaluate.pins import constraints_of_configuration
from planner.ir import Graph
from planner.planning.constraints import Constraints
from planner.planning.execution import RUN_KEYS
from planner.planning.pipeline import global_batch
from planner.planning.schemes import parse_strategy

__all__ = ["take_strategy"]

# Keys that plans follow, or that are refused below wherever plans cannot.
_TAKEN: Final = (
    "dp", "tp", "pp", "cp", "ep", "micro_batch", "shard", "zero", "sp", "recompute", "recompute_blocks", "schedule",
    "vpp", "offload", "stage_layers", "frozen", *RUN_KEYS,
)  # fmt: skip


def take_strategy(
    options: argparse.Namespace, load: Callable[[int | None], Graph]
) -> tuple[int, int, Literal["none", "blocks"], Configuration, Constraints]:
    """(stages, micro-batches, recomputation, how it is run, pins); `load` reads the model for a batch.

    UsageError where the configuration says something that no plan can, or does not fit devices and batch.
    """
    text, source = options.strategy, f"--strategy {options.strategy}"
    if options.recompute != "auto":
        raise UsageError(
            f"--recompute {options.recompute}: --strategy says what is run again (recompute=full, or nothing); leave "
            "--recompute out"
        )
    graph = load(options.batch)
    c = parse_strategy(
        text,
        devices=int(options.devices),
        batch=options.batch or global_batch(graph),
        precision=options.precision,
        optimizer=options.optimizer,
    )
    others = [key for key in _given(text) if key not in _TAKEN]
    if others:
        raise UsageError(
            f"{source}: {', '.join(others)}: plans do not say that; leave it out (`planner evaluate` prices it)"
        )
    if c.recompute not in ("none", "full") or c.recompute_blocks < 1:
        raise UsageError(
            f"{source}: recompute: plans run whole equal blocks again, or none: give recompute=full or none"
        )
    for key, value, planned in (
        ("schedule", c.order, "1f1b"), ("vpp", c.virtual_stages, 1), ("offload", c.offload, 0),
        ("stage_layers", c.stage_layers, None), ("frozen", c.frozen, False),
    ):  # fmt: skip
        if value != planned:
            raise UsageError(
                f"{source}: {key}: plans have {planned or 'none'} so far; `planner evaluate` prices {value}"
            )
    if c.micro_batches > 1:
        graph = load(c.micro_batch * c.dp)
    one = graph
    if c.tp * c.cp * c.ep > 1 and c.dp > c.ep:
        one = load(c.micro_batch * c.ep)
    pins = constraints_of_configuration(graph, one, c, source)
    return c.pp, c.micro_batches, "blocks" if c.recompute == "full" else "none", c, pins


def _given(text: str) -> list[str]:
    """Keys of a configuration that has been read without an error."""
    return [item.partition("=")[0] for item in text.partition(":")[2].split(",") if item]
