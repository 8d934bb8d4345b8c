"""`planner search --strategy`: a known configuration as stages, micro-batches, recomputation and pins."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from planner.clock import Configuration
from planner.cost_models import HardwareProfile, usable_memory_bytes
from planner.errors import UsageError
from planner.ir import Graph
from planner.planning.constraints import Constraints
from planner.planning.execution import runs_blocks_again
from planner.planning.pipeline import global_batch
from planner.planning.request import STRATEGY, source_of
from planner.planning.schemes import parse_strategy, spelled
from planner.planning.schemes.pins import constraints_of_configuration
from planner.planning.targets import said_by
from planner.requests.search import SearchRequest
from planner.search.control import Control
from planner.targets import BY_DEGREES
from planner.uniform import Sample

__all__ = ["operators_inside", "take_strategy"]


def take_strategy(
    options: SearchRequest, load: Callable[[int | None], Graph]
) -> tuple[int, int, Literal["none", "blocks"], Configuration, Constraints]:
    """(stages, micro-batches, recomputation, how it is run, pins); `load` reads the model for a batch.

    UsageError where the configuration says something that no plan can, or does not fit devices and batch.
    """
    assert options.strategy is not None
    text, source = options.strategy, f"{STRATEGY} {options.strategy}"
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
    _check_target(source, c, options.target, graph)
    if c.micro_batches > 1:
        graph = load(c.micro_batch * c.dp)
    said, training = said_by(options.target, graph), options.trains(graph.loss is not None)
    pins = constraints_of_configuration(said, c, source, options.target, training=training)
    return c.pp, c.micro_batches, "blocks" if runs_blocks_again(c) else "none", c, pins


def operators_inside(
    options: SearchRequest,
    load: Callable[[int | None], Graph],
    c: Configuration,
    profile: HardwareProfile,
    control: Control,
    sample: Sample | None = None,
) -> Constraints | None:
    """Pins of the fastest way to lay operators out one by one inside of `c`; None where none is faster than that of
    `c`.  `sample`: of the whole batch's graph, where there is one.

    InputError, UsageError where the graph holds no loss, or has no batch to divide.
    """
    from planner.uniform.inside import inside

    source = source_of(options.strategy or spelled(c), "operators")
    if options.target in BY_DEGREES:
        raise UsageError(
            f"{source}: --target {options.target} takes degrees of parallelism, the same for all layers, and no "
            "layouts of single operators; leave --space out, or use --target any"
        )
    whole = load(options.batch)
    if whole.loss is None or options.mode == "inference":
        raise UsageError(
            f"{source}: operators are searched inside of configurations of training, and "
            + (f"{whole.name} ends before its loss" if whole.loss is None else "--mode is inference")
            + "; leave --space out"
        )
    limit = usable_memory_bytes(profile) if options.memory_limit is None else options.memory_limit
    found = inside(sample or Sample(whole, profile), c, limit, source, control, options.target)
    return None if found is None else found.pins


def _check_target(source: str, c: Configuration, target: str, graph: Graph) -> None:
    """UsageError where the target cannot express the configuration."""
    from planner.emit import unsupported
    from planner.emit.uniform import Model

    words = unsupported(target, c, Model.of(graph))
    if words:
        raise UsageError(f"{source}: --target {target} cannot express {words}; choose another target, or --target any")
