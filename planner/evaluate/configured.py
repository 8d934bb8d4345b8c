"""A configuration's plan, and the workload of one of its ranks."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Final

from planner.clock import Configuration
from planner.cost_models import HardwareProfile
from planner.ir import Graph
from planner.lowering import Program
from planner.planning.constraints import Constraints
from planner.planning.execution import runs_blocks_again
from planner.planning.prescribed import program_of_pins
from planner.planning.schemes.pins import constraints_of_configuration
from planner.pricing import KnownRedistributions, PriceTables, Settings
from planner.trace import Workload, trace

__all__ = ["Prices", "layout_of", "program_of_configuration", "traced_as", "workload_of_configuration"]


_DEFAULT: Final = Configuration()
_AXES: Final = 3  # of a mesh whose prices are kept: on four, those of one program take a gigabyte


def layout_of(c: Configuration) -> Configuration:
    """What of a configuration decides its plan; the rest, which only the trace and the clock read, by default."""
    return _DEFAULT.with_(
        dp=c.dp,
        tp=c.tp,
        cp=c.cp,
        context=c.context,
        ep=c.ep,
        zero=1 if c.zero else 0,
        shard_ranks=c.shard_ranks,
        sequence_parallel=c.sequence_parallel,
        micro_batch=c.micro_batch,
        precision=c.precision,
        optimizer=c.optimizer,
    )


def workload_of_configuration(
    graph: Graph, c: Configuration, profile: HardwareProfile, source: str = "strategy"
) -> Workload:
    """The workload of one rank of the plan that `search --strategy` makes of `c`; arguments and errors as of
    `program_of_configuration`."""
    return traced_as(c, program_of_configuration(graph, c, profile, source), profile.framework.joins_kernels)


def program_of_configuration(
    graph: Graph,
    c: Configuration,
    profile: HardwareProfile,
    source: str = "strategy",
    prices: Prices | None = None,
    *,
    kept: bool = False,
) -> Program:
    """The program of the plan that `search --strategy` makes of `c`, with blocks that run again where all of them do.

    `graph`: of a micro-batch of all data-parallel ranks together; `source`: what messages call the configuration;
    `prices`: of other configurations on the profile, to be taken from; `kept`: those of operators of `c` are added for
    configurations that differ in their parameters, or in what runs again, alone.
    """
    pins = constraints_of_configuration(graph, c, source)
    settings = Settings(True, c.precision, c.optimizer, recompute=runs_blocks_again(c))
    tables = None if prices is None else prices.of(graph, pins, settings, kept=kept)
    return program_of_pins(graph, pins, profile, settings, tables)


@dataclass(frozen=True, eq=False)
class Prices:
    """Of configurations on one profile.  In one precision redistributions on one mesh cost the same in all of them;
    where they differ in how parameters are stored, and in what runs again, alone, operators do so too."""

    _known: dict[object, tuple[PriceTables, Graph, Constraints]] = field(default_factory=dict)
    _redistributions: KnownRedistributions = field(default_factory=dict)

    def of(self, graph: Graph, pins: Constraints, settings: Settings, *, kept: bool) -> PriceTables:
        (shape,) = pins.meshes
        if len(shape) > _AXES:
            return PriceTables()
        # Constraints of one graph share their pins of operators where these are equal.
        key = id(graph), pins.meshes, id(pins.operators), replace(settings, recompute=False)
        if key in self._known:
            return self._known[key][0]
        tables = self.apart(len(shape))
        if kept:
            self._known[key] = tables, graph, pins  # which keep their identity
        return tables

    def apart(self, axes: int) -> PriceTables:
        """Of other pins of operators, or of none, on a mesh of so many axes: redistributions alone are shared."""
        return PriceTables(redistributions=self._redistributions if axes <= _AXES else None)


def traced_as(c: Configuration, program: Program, joined: bool = True) -> Workload:
    """What a rank of the program does, by the kernels that `c` names; `joined`: whether the machine's framework joins
    operators in kernels at all (`joins_kernels` of its profile)."""
    settings = Settings(True, c.precision, c.optimizer)
    attention = joined and c.attention != "unfused"
    return trace(
        program, settings, chains=joined and c.fuse, attention=attention, copies=not joined, gathered_again=True
    )
