"""The best uniform configuration for a request of `planner search`: a plan that any other has to be faster than."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import Any

from cost_models import HardwareProfile, usable_memory_bytes
from cost_models.device import resolve_rate
from planner.emit.registry import TARGETS
from planner.errors import InputError, UsageError
from planner.ir import Graph
from planner.planning.pipeline import global_batch
from planner.planning.schemes import in_words, spelled
from planner.search.control import Control
from planner.uniform import Found, Sample, Space, best_of

__all__ = ["Uniform", "best_uniform"]

_SHARE = 0.5  # of a time limit
_PARAMETER_BYTES = 16  # of Adam in mixed precision: weight, gradient, master copy, two moments


@dataclass(frozen=True, slots=True)
class Uniform:
    """`found` has one configuration at least; `peak`: operations per second of a device."""

    found: Found
    peak: float

    @property
    def strategy(self) -> str:
        """As `--strategy` takes it."""
        return spelled(self.found.best[0].configuration)

    @property
    def step_time_s(self) -> float:
        return self.found.best[0].prediction.step_time_s

    @property
    def document(self) -> dict[str, Any]:
        """For `--json`."""
        found = self.found
        return {
            "strategy": self.strategy,
            "step_time_s": self.step_time_s,
            "considered": found.considered,
            "played": found.played,
            "refused": dict(found.refused),
        }

    def lines(self, *, chosen: bool) -> list[str]:
        """Of the summary."""
        c, p, n = self.found.best[0].configuration, self.found.best[0].prediction, self.found.considered
        if not chosen:
            return [f"uniform     the best of {n:,} uniform configurations takes {p.step_time_s:.4g} s: {in_words(c)}"]
        rate = p.flops / p.step_time_s / c.devices
        low, high = p.time_low_s, p.time_high_s
        return [
            f"uniform     {in_words(c)}: the fastest of {n:,} uniform configurations",
            f"step        {p.step_time_s:.4g} s (80 % between {low:.4g} and {high:.4g}), "
            f"{c.global_batch / p.step_time_s:.4g} samples/s, {rate / 1e12:.4g} TFLOP/s per device "
            f"({rate / self.peak:.0%} of its peak)",
        ]


def best_uniform(
    options: argparse.Namespace, graph: Graph, devices: int, profile: HardwareProfile, control: Control
) -> Uniform | None:
    """None where the options leave uniform configurations no room, or none fits; `graph`: of the whole batch."""
    if not _in_question(options) or graph.loss is None or profile.device is None or options.mode == "inference":
        return None
    limit = usable_memory_bytes(profile) if options.memory_limit is None else options.memory_limit
    if options.space is None and not _crowded(graph, devices, limit):
        return None
    orders = None if options.target == "any" else TARGETS[options.target].orders
    until = None if control.left is None else control.left * (1 - _SHARE)

    def stopped() -> bool:
        return control.stopped or (until is not None and (control.left or 0.0) < until)

    try:
        sample = Sample(graph, profile)
        space = Space(
            devices,
            global_batch(graph),
            sample.layers,
            options.precision,
            options.optimizer,
            stages=options.stages if options.stages > 1 else None,
            micro_batches=options.micro_batches,
            recompute=None if options.recompute == "auto" else options.recompute,
            orders=orders,
            experts=sample.has_experts,
        )
        control.say("uniform configurations: the fastest that fits")
        found = best_of(sample, space, limit, stopped=stopped)
    except (UsageError, InputError):  # a graph that holds its backward pass, or has no batch to divide
        return None
    if not found.best:
        control.say(f"uniform configurations: none of {found.considered:,} fits")
        return None
    uniform = Uniform(found, resolve_rate(profile.device.matmul_flops_per_s, options.precision))
    control.say(
        f"uniform configurations: {uniform.strategy} takes {uniform.step_time_s:.6g} s, {found.played:,} played"
    )
    return uniform


def _crowded(graph: Graph, devices: int, limit: int | None) -> bool:
    """Whether an even share of all tensors of the whole batch, and of weights with what belongs to them, is more than
    half of what a device may hold: what is fused, divided unevenly or held twice is not counted."""
    if limit is None:
        return False
    passed = sum(2 * t.elements for op in graph.ops for o in op.outputs if (t := graph.tensors.get(o)) and t.shape)
    stored = sum(_PARAMETER_BYTES * t.elements for t in graph.parameters if t.shape is not None)
    return (passed + stored) / devices > limit / 2


def _in_question(options: argparse.Namespace) -> bool:
    """Whether the options leave open what a uniform configuration says."""
    return (
        options.strategy is None
        and options.space != "operators"
        and options.mesh is None
        and options.constraints is None
        and not options.pin
        and options.solver == "auto"
        and getattr(options, "warm_start", None) is None
        and getattr(options, "save_problem", None) is None
    )
