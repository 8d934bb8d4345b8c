"""What is explained: a plan, its model, and the very search that found it, which may be asked further questions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from planner.ir import DeviceMesh, Graph
from planner.planning import PlanDocument, Planned, Request
from planner.planning.constraints import Constraints
from planner.planning.pipeline import Pipelined
from planner.pricing import PriceTables, Settings

__all__ = ["Case", "Found"]

Tables = dict[DeviceMesh, PriceTables]


@dataclass(frozen=True, eq=False)
class Found:
    """The outcome of one search."""

    planned: Planned
    pipeline: Pipelined | None = None

    @property
    def step(self) -> int:
        """In units of the price resolution."""
        return round(self.step_time_s / self.unit_s)

    @property
    def step_parts_s(self) -> Mapping[str, float]:
        """Seconds of the step by cause."""
        if self.pipeline is not None:
            return self.pipeline.parts_s
        return {name: units * self.unit_s for name, units in self.planned.timeline.parts.items()}

    @property
    def unit_s(self) -> float:
        return self.planned.priced.machine.unit_s

    @property
    def mesh(self) -> DeviceMesh:
        return self.planned.mesh

    @property
    def peak_memory_bytes(self) -> int:
        return self.planned.peak_memory_bytes if self.pipeline is None else max(self.pipeline.memory)

    @property
    def gap(self) -> float:
        """Of the step time."""
        return self.planned.gap if self.pipeline is None else self.pipeline.gap

    @property
    def step_time_s(self) -> float:
        return self.planned.step_time_s if self.pipeline is None else self.pipeline.step_time_s


@dataclass(frozen=True, eq=False)
class Case:
    """`request` is what `plan` was made for and `pinned` where its constraints come from, part by part; `find` searches
    (the tables that it is given are kept between searches) and `command` is a command line that asks the same with
    further pins."""

    plan: PlanDocument
    graph: Graph
    request: Request
    pinned: Sequence[tuple[str, Constraints]]
    find: Callable[[Request, Tables], tuple[Planned, Pipelined | None]]
    command: Callable[[Sequence[str]], str]
    say: Callable[[str], None] = lambda _: None
    notes: Sequence[str] = ()
    _tables: dict[Settings, Tables] = field(default_factory=dict)
    _questions: list[str] = field(default_factory=list)

    def search(self, request: Request, what: str) -> Found:
        """Errors as of `make_plan`."""
        self.say(f"searching: {what}")
        self._questions.append(what)
        # Rules and prices do not depend on what is pinned: they are made once.
        tables = self._tables.setdefault(request.settings, {})
        return Found(*self.find(request, tables))

    @property
    def searches(self) -> int:
        """How many were made."""
        return len(self._questions)

    def with_pins(self, pins: Constraints) -> Request:
        """The request with these as well."""
        known = self.request.constraints
        return replace(self.request, constraints=pins if known is None else known + pins)
