"""`planner search --strategy`: a known configuration as stages, micro-batches, recomputation and pins."""

from __future__ import annotations

import argparse
from typing import Literal

from planner.cli.options import bindings
from planner.errors import UsageError
from planner.evaluate.pins import constraints_of_configuration
from planner.evaluate.schemes import parse_strategy
from planner.frontends import load_model
from planner.planning.constraints import Constraints
from planner.planning.pipeline import global_batch

__all__ = ["take_strategy"]


def take_strategy(options: argparse.Namespace) -> tuple[int, int, Literal["none", "blocks"], Constraints]:
    """(stages, micro-batches, recomputation, pins).

    UsageError where the configuration says something that no plan can, or does not fit devices and batch.
    """
    text, source = options.strategy, f"--strategy {options.strategy}"
    bind = bindings(options.bind)
    graph = load_model(options.model, bind=bind, batch=options.batch)
    c = parse_strategy(
        text,
        devices=int(options.devices),
        batch=options.batch or global_batch(graph),
        precision=options.precision,
        optimizer=options.optimizer,
    )
    if c.recompute not in ("none", "full") or (c.recompute == "full" and c.recompute_blocks < 1):
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
        graph = load_model(options.model, bind=bind, batch=c.micro_batch * c.dp)
    one = graph
    if c.tp * c.cp * c.ep > 1 and c.dp > c.ep:
        one = load_model(options.model, bind=bind, batch=c.micro_batch * c.ep)
    pins = constraints_of_configuration(graph, one, c, source)
    return c.pp, c.micro_batches, "blocks" if c.recompute == "full" else "none", pins
