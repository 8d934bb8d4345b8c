"""Operators one by one inside the micro-batches and stages of a uniform configuration.

The schedule, and how a step is run, stay as the configuration says.  On its mesh every operator and every parameter may
be laid out otherwise: what a micro-batch does counts as often as there are micro-batches, what happens once a step
counts once, and what data-parallel ranks exchange counts by as much as does not hide beside computing, which only the
clock knows.  So a few weights are tried; of each the best choice is found on the model with few of its equal blocks
(`planner.uniform.sample`), and judged by the clock.  The result is never slower than the configuration.
"""

from __future__ import annotations

import glob
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

import numpy as np
from numpy.typing import NDArray

from planner.clock import Configuration, Prediction, predict
from planner.clock.relaxation import Scaled, holders_of_weights
from planner.errors import InputError, UsageError
from planner.ir import DeviceMesh, Graph, Layout
from planner.planning.constraints import Constraints, apply, resolve
from planner.planning.constraints.values import LayoutPin, OperatorPin, ParameterPin, StrategyPin
from planner.planning.execution import runs_blocks_again
from planner.planning.least_memory import smallest_hubs
from planner.planning.prescribed import program_of_pins
from planner.planning.schemes.pins import constraints_of_configuration
from planner.planning.targets import said_by
from planner.pricing import Machine, PricedProblem, Settings, active_tensors, bind_rules, price
from planner.pricing.tables import Allowed
from planner.rules.expansion import Choices
from planner.rules.strategy import AxisRole, Strategy
from planner.search.control import Control
from planner.search.problem import Edge, Node, Problem
from planner.search.solve import Search
from planner.targets import Target
from planner.trace import Workload
from planner.uniform.sample import Sample
from planner.work.activity import made_of_parameters
from planner.work.units import units_of

__all__ = ["Inside", "inside"]

_EXPOSED: Final = (0.3, 1.0, 0.05)  # of what data-parallel ranks exchange, tried one after the other
_LEAST: Final = 1e-5  # of a step, that other layouts have to save
_SECONDS: Final = 5.0  # for each choice, on graphs whose layouts are hard to find

_Strategies = Mapping[str, Strategy]  # by operator
_Stored = Mapping[str, Layout]  # by parameter


@dataclass(frozen=True, slots=True)
class Inside:
    """Pins of every operator and parameter of the whole model, and what is predicted of the step."""

    pins: Constraints
    prediction: Prediction


def inside(
    sample: Sample, c: Configuration, limit: int | None, source: str, control: Control, target: Target = "any"
) -> Inside | None:
    """The fastest way to lay operators out inside of `c` that was found, whose fullest device holds at most `limit`
    bytes; None where none is faster than `c` itself.  `source`: what messages call its pins.

    UsageError, InputError where `c` does not fit the model.
    """
    settings = Settings(True, c.precision, c.optimizer, target, recompute=runs_blocks_again(c))
    return _Inside(sample, c, limit, source, control, settings).found()


def _near(roles: Sequence[tuple[str, AxisRole]], choices: Choices) -> NDArray[np.bool_]:
    """Strategies in which all axes but one, any, have these roles."""
    alike = np.sum([choices.playing([(axis, role)]) for axis, role in roles], axis=0)
    return np.asarray(alike >= len(roles) - 1)


class _Inside:
    def __init__(
        self, sample: Sample, c: Configuration, limit: int | None, source: str, control: Control, settings: Settings
    ) -> None:
        self.sample, self.c, self.limit, self.source, self.control = sample, c, limit, source, control
        self.graph = said_by(settings.target, sample.at(c.micro_batch * c.dp))
        self.settings = settings
        self.own = constraints_of_configuration(self.graph, c, source, settings.target)
        (self.mesh,) = (DeviceMesh.of(*sizes) for sizes in self.own.meshes)

    def found(self) -> Inside | None:
        c, sample = self.c, self.sample
        best = predict(self._workload(), c, sample.profile).step_time_s * (1 - _LEAST)
        found: Inside | None = None
        for strategies, stored in self._choices():
            pins = self._constraints(self.graph, strategies, stored)
            try:
                program = program_of_pins(
                    self.graph, pins, sample.profile, self.settings, sample.prices.apart(len(self.mesh.axes))
                )
                prediction = predict(sample.traced(c, program), c, sample.profile)
            except (UsageError, InputError):
                continue
            fits = self.limit is None or round(prediction.allocated_bytes) <= self.limit
            if fits and prediction.step_time_s < best:
                best, found = prediction.step_time_s, Inside(self._of_model(strategies, stored), prediction)
        return found

    def _workload(self) -> Workload:
        """Of the configuration itself, as the target can express it."""
        if self.graph is self.sample.at(self.c.micro_batch * self.c.dp):
            return self.sample.workload(self.c)
        program = program_of_pins(self.graph, self.own, self.sample.profile, self.settings)
        return self.sample.traced(self.c, program)

    def _choices(self) -> Iterator[tuple[_Strategies, _Stored]]:
        """Of the sample: with parameters that lie as they like, and as the configuration has them, which holds
        no more of them."""
        rules, _ = bind_rules(self.graph)
        active = active_tensors(self.graph, rules)
        machine = Machine(self.sample.profile, self.mesh, self.settings)
        own = resolve(self.own, self.graph, rules)
        ways: dict[StrategyPin, Allowed] = {}
        near = {
            r.name: ways.setdefault(r.pin, partial(_near, r.pin.roles))
            for r in own.restrictions
            if isinstance(r.pin, StrategyPin) and r.pin.roles
        }
        some = near if len(self.mesh.axes) > 1 else None
        free = price(self.graph, machine, rules, active, None, self.sample.prices.apart(len(self.mesh.axes)), some)
        pinned = apply(free, resolve(replace(self.own, operators=()), self.graph, rules))
        made: set[tuple[int, ...]] = set()
        for priced in (free, pinned):
            if not isinstance(priced, PricedProblem) or (priced is free and not self.c.zero):
                continue  # where weights are not divided, the clock takes them to be whole
            for exposed in _EXPOSED:
                if self.control.stopped:
                    return
                choice = self._chosen(priced, exposed)
                if choice is not None and choice not in made:
                    made.add(choice)
                    assignment = priced.decode(choice)
                    yield assignment.strategies, assignment.stored

    def _chosen(self, priced: PricedProblem, exposed: float) -> tuple[int, ...] | None:
        left = self.control.left
        inner = Control(_SECONDS if left is None else min(left, _SECONDS), cancel=self.control.cancel)
        search = Search(self._weighed(priced, exposed), inner)
        search.run()
        return None if search.choice is None else tuple(smallest_hubs(priced, search.choice))

    def _weighed(self, priced: PricedProblem, exposed: float) -> Problem:
        """The problem of a step: every node and edge times the blocks that it stands for; of parameters and exchanges
        the share of a micro-batch, where they come once a step."""
        c, unit, times = self.c, units_of(self.graph).of, self.sample.times
        once = 1 / c.passes
        exchange = exposed * (1.0 if c.zero == 3 or c.scatters_every_pass else once)
        stands = [1] * len(priced.problem.nodes)
        for name, node in priced.op_nodes.items():
            stands[node] = times[unit[name]]
        for name, node in priced.parameter_nodes.items():
            stands[node] = max((times[unit[op.name]] for op, _ in self.graph.consumers.get(name, ())), default=1)
        holders, parameters, scaled = holders_of_weights(priced), {*priced.parameter_nodes.values()}, Scaled()

        def weighed(number: int, known: Node) -> Node:
            weight = stands[number] * (once if number in parameters else 1.0)
            return replace(known, costs=scaled.of(known.costs, weight))

        def edge(e: Edge) -> Edge:
            weight = max(stands[e.u], stands[e.v]) * (exchange if e.u in holders else 1.0)
            return replace(e, costs=scaled.of(e.costs, weight))

        problem = priced.problem
        return replace(
            problem,
            nodes=[weighed(k, n) for k, n in enumerate(problem.nodes)],
            edges=[edge(e) for e in problem.edges],
            limit=None,
        )

    def _of_model(self, strategies: _Strategies, stored: _Stored) -> Constraints:
        """Pins of the whole model: of a block that stands for others, of these as well."""
        whole, stands = said_by(self.settings.target, self.sample.whole), self.sample.stands_for
        of = {op.name: strategies[s] for op in whole.ops if (s := stands.get(op.name, "")) in strategies}
        lie: dict[str, Layout] = {}
        for p in whole.parameters:
            for op, slot in whole.consumers.get(p.name, ()):
                name = stands.get(op.name)
                known = None if name is None else stored.get(self.graph.op(name).inputs[slot])
                if known is not None:
                    lie.setdefault(p.name, known)
        return self._constraints(whole, of, lie)

    def _constraints(self, graph: Graph, strategies: _Strategies, stored: _Stored) -> Constraints:
        weights = made_of_parameters(graph)
        operators = tuple(
            OperatorPin(
                self.source,
                StrategyPin.of(s, self.mesh, sums_pass=name in weights),
                match=(glob.escape(name),),
            )
            for name, s in strategies.items()
        )
        parameters = tuple(
            ParameterPin(self.source, (glob.escape(name),), stored=LayoutPin(x.dims, parts=x.parts))
            for name, x in stored.items()
        )
        return Constraints(self.source, meshes=(self.mesh.shape,), operators=operators, parameters=parameters)
