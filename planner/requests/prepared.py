"""A request of a search with all that it names read: how it is planned, and what is said of its plan."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import Any

from planner.clock import Configuration
from planner.errors import InputError, UsageError
from planner.frontends import Imported
from planner.frontends.facts.statistics import frozen_statistics
from planner.frontends.resized.batch import of_batch
from planner.ir import DeviceMesh, Graph
from planner.planning import PlanDocument, Planned, Recall, Request, describe, make_plan, plan_text, read_plan
from planner.planning.constraints import Constraints
from planner.planning.meshes import parse_mesh
from planner.planning.pipeline import Parts, Pipelined, global_batch, in_parts, plan_in_parts
from planner.planning.planner import on_nodes
from planner.planning.searched import RequestDocument
from planner.pricing import PriceTables, Settings
from planner.report.text import details, outcome
from planner.requests.answer import Answer
from planner.requests.cancel import Cancellation
from planner.requests.headline import figures, headline
from planner.requests.history import History
from planner.requests.job import check_devices, take_job
from planner.requests.micro_batches import computed_otherwise
from planner.requests.model import ModelSource
from planner.requests.recorded import recorded
from planner.requests.search import SearchRequest
from planner.requests.values import bindings, constraints_of, profile_of
from planner.requests.watch import Lines, Watch, reports_in_seconds
from planner.search.control import Control, Report

__all__ = ["Prepared", "first_size"]

UNTOUCHED = 0.25  # no part of a search is cut short before this share of its time limit is over


@dataclass
class Prepared:
    """Model, profile and constraints of one request, read once for all its counts of devices.

    `source`: where the model is read, if not from the file that the options name; `history`: how the search moves.
    """

    options: SearchRequest
    cancellation: Cancellation
    watch: Watch = field(default_factory=Lines)
    graphs: dict[int | None, Imported] = field(default_factory=dict)  # by batch
    inside: Constraints | None = None  # the pins of --strategy with --space operators, where these are known
    source: ModelSource | None = None
    history: History = field(default_factory=History)

    def __post_init__(self) -> None:
        self.options = replace(self.options)  # options are settled here
        self.watch.phase("import")
        self._source = self.source or ModelSource(self.options.model)
        self._file = b""  # the model's, without weights
        self.profile = profile_of(self.options.hardware)
        self.constraints = constraints_of(self.options.constraints, self.options.pin)
        self.configured: Constraints | None = None  # the pins of --strategy
        self.execution: Configuration | None = None  # and what it says of how a plan is run
        self.requested = recorded(self.options)  # before a configuration or a file's job becomes options
        if self.options.strategy is not None:
            self._take_strategy()
        self.job = None if self.constraints is None else self.constraints.job
        if self.job is not None:
            take_job(self.options, self.job)
        self.parted = self.options.stages > 1 or (self.options.micro_batches or 1) > 1
        if self.options.top_k > 1 and self.parted:
            raise UsageError("--top-k: plans in stages or micro-batches are one at a time; leave it out")
        self.recall = None
        if self.options.warm_start is not None:
            self.recall = Recall(read_plan(self.options.warm_start))

    def _take_strategy(self) -> None:
        """The configuration as options and constraints."""
        from planner.requests.strategy import operators_inside, take_strategy

        options = self.options
        given = self.constraints
        options.stages, options.micro_batches, options.recompute, self.execution, pins = take_strategy(
            options, self.load
        )
        if options.space == "operators":
            profile = on_nodes(self.profile, int(options.devices), options.nodes)
            control = Control(options.time_limit, cancel=self.cancellation.requested)
            found = self.inside or operators_inside(options, self.load, self.execution, profile, control)
            pins = pins if found is None else found
        self.configured = pins
        self.constraints = pins if given is None else pins + given

    def load(self, batch: int | None) -> Graph:
        """The model for a batch: importing it again would take as long again."""
        if batch not in self.graphs:
            bind = bindings(self.options.bind)
            known = None if batch is None else self._of_larger(batch)
            self.graphs[batch] = known or self._source.load_with_file(bind=bind, batch=batch)
        found = self.graphs[batch]
        self._file = found.file
        return found.graph

    def _of_larger(self, batch: int) -> Imported | None:
        """Made of what was imported for a larger batch, which takes less than another import: what is larger was found
        to keep the limits of an import."""
        for size, known in self.graphs.items():
            if known.own is None:
                continue
            try:
                if batch < (global_batch(known.graph) if size is None else size):
                    return known._replace(graph=of_batch(known.own, batch))
            except InputError:
                return None
        return None

    @cached_property
    def _loaded(self) -> tuple[Graph, Parts]:
        """The graph of a micro-batch, and into how many the batch goes."""
        options = self.options
        per_stage = min(map(int, options.devices.split(","))) // options.stages
        return in_parts(self.load, options.batch, options.stages, options.micro_batches, max(1, per_stage))

    @property
    def parts(self) -> Parts:
        return self._loaded[1]

    @cached_property
    def graph(self) -> Graph:
        graph = self._loaded[0]
        if self.recall is not None:
            self.recall.check([op.name for op in graph.ops])
        return graph

    @property
    def file(self) -> bytes:
        """The model's file without its weights."""
        _ = self.graph
        return self._file

    @property
    def training(self) -> bool:
        return self.options.trains(self.graph.loss is not None)

    def check_job(self, devices: int) -> None:
        """InputError where a constraints file is for other devices."""
        if self.job is not None:
            check_devices(self.job, devices, self.profile.name)
            if devices % self.options.stages:
                raise InputError(f"constraints {self.job.where}: {self.options.stages} stages do not divide {devices}")

    def begin(self, request: Request) -> Control:
        """The clock and the cancellation of a search, which begins now."""
        _ = self.graph  # which takes long to read, before the clock is set
        unit_s = request.profile.price_resolution_s
        tell = reports_in_seconds(self.watch, unit_s)

        def report(r: Report) -> None:
            tell(r)
            if r.incumbent is not None:
                self.history.objective(r.incumbent * unit_s, None if r.bound is None else r.bound * unit_s)

        self.history.begin()
        control = Control(request.time_limit, cancel=self.cancellation.requested, say=self.watch.say, report=report)
        self.watch.phase("search")
        self.cancellation.searching = True
        return control

    @staticmethod
    def untouched(control: Control) -> bool:
        """Whether no part of the search was cut short."""
        took = time.monotonic() - control.started
        return control.time_limit is None or took < UNTOUCHED * control.time_limit

    def plan(
        self,
        request: Request,
        control: Control,
        recall: Recall | None = None,
        tables: dict[DeviceMesh, PriceTables] | None = None,
    ) -> tuple[Planned, Pipelined | None]:
        """Searches for what is requested of the graph, in stages and micro-batches where the options say so."""
        parts = self.parts
        if parts.stages > 1 or parts.micro_batches > 1:
            return plan_in_parts(self.graph, request, parts, control=control, recall=recall, tables=tables)
        return make_plan(self.graph, request, control=control, recall=recall, tables=tables), None

    def recorded_request(self, devices: int, untouched: bool, alone: bool) -> RequestDocument:
        """What stands in plan.json: a limit that cut nothing short is left out, since plans do not depend on it."""
        limit = None if untouched else self.options.time_limit
        update = {"devices": devices, "time_limit": limit, "reproducible": alone}
        if "," in self.options.devices and self.requested.stages > 1:
            update["micro_batches"] = self.parts.micro_batches  # for the least of several counts
        return self.requested.model_copy(update=update)

    def request(self, devices: int) -> Request:
        """What the options ask for."""
        options = self.options
        return Request(
            devices=devices // options.stages,
            profile=on_nodes(self.profile, devices, options.nodes),
            settings=Settings(self.training, options.precision, options.optimizer, options.target),
            meshes=(parse_mesh(options.mesh, devices // options.stages),) if options.mesh else None,
            memory_limit=options.memory_limit,
            solver=options.solver,
            time_limit=options.time_limit,
            recompute=options.recompute,
            constraints=self.constraints,
            top_k=options.top_k,
            execution=self.execution,
        )

    def answer(
        self, planned: Planned, control: Control, pipeline: Pipelined | None, request: RequestDocument
    ) -> Answer:
        self.watch.phase("write")
        plans = (planned, *planned.others)
        # Each of the others is what a search of its own mesh finds.
        requests = (request, *(request.model_copy(update={"mesh": str(p.mesh)}) for p in planned.others))
        described = [self._describe(p, pipeline, r) for p, r in zip(plans, requests, strict=True)]
        texts = [plan_text(plan) for plan in described]
        cancelled = control.cancel.is_set()
        prescribed = self.options.strategy is not None or pipeline is not None
        messages = [] if prescribed else [f"warning: {w}" for w in planned.warnings]
        if self.job is not None:
            messages += [f"note: {self.job.where}: {line}" for line in self.job.notes]
        if self.training and self.graph.loss is None:
            messages.insert(0, "note: the graph ends before its loss; gradients are taken to enter at its outputs")
        if self.training:
            messages += [f"note: {line}" for line in frozen_statistics(self.graph)]
            parts = 1 if pipeline is None else pipeline.micro_batches
            messages += [f"warning: {line}" for line in computed_otherwise(planned.priced.graph, parts)]
        samples = self.parts.batch or first_size(self.graph) or 0
        documents = tuple(self._figured(p, pipeline, plan, samples) for p, plan in zip(plans, described, strict=True))
        lines = [*headline(planned, described[0], documents[0]), *outcome(planned, pipeline)]
        shown = details(planned, pipeline)
        return Answer(
            tuple(texts), documents, "\n".join(lines), tuple(messages), shown, cancelled=cancelled, model=self._file
        )

    def _figured(
        self, planned: Planned, pipeline: Pipelined | None, plan: PlanDocument, samples: int
    ) -> dict[str, Any]:
        document = _document(planned, pipeline, samples)
        return document | figures(planned, plan, document, self.execution)

    def _describe(self, planned: Planned, pipeline: Pipelined | None, request: RequestDocument) -> PlanDocument:
        bind = bindings(self.options.bind)
        return describe(planned, bind=bind, batch=self.parts.batch, pipeline=pipeline, request=request)


def _document(planned: Planned, pipeline: Pipelined | None, batch: int) -> dict[str, Any]:
    """`batch`: samples of a micro-batch."""
    settings, graph = planned.request.settings, planned.priced.graph
    traffic = planned.program.traffic(settings)
    out = {
        "devices": planned.mesh.devices,
        "mesh": str(planned.mesh),
        "batch": first_size(graph),
        "objective_s": planned.objective_s,
        "objective_lower_bound_s": planned.bound_s,
        "gap": planned.gap,
        "step_time_s": planned.step_time_s,
        "step_time_lower_bound_s": planned.step_bound_s,
        "status": planned.status,
        "peak_memory_bytes": planned.peak_memory_bytes,
        "memory_limit_bytes": planned.memory_limit,
        "search_seconds": planned.search_seconds,
        "operators": len(graph.ops),
        "operators_replicated_for_want_of_a_rule": list(planned.without_rule),
        "collectives": {kind: asdict(t) for kind, t in traffic.items()},
        "parts_s": planned.parts.seconds(planned.priced.machine.unit_s),
        "step_parts_s": {k: n * planned.priced.machine.unit_s for k, n in planned.timeline.parts.items()},
        "candidates": [
            {
                "mesh": str(c.mesh),
                "recompute": c.recompute,
                "status": c.status,
                "objective_s": c.objective_s,
                "bound_s": c.bound_s,
                "step_time_s": c.step_time_s,
            }
            for c in planned.candidates
        ],
        "warnings": list(planned.warnings),
        "solver": planned.solution.solver,
    }
    if pipeline is not None:
        out |= {
            "devices": pipeline.devices,
            "batch": batch * pipeline.micro_batches,
            "stages": pipeline.stages,
            "micro_batches": pipeline.micro_batches,
            "schedule": pipeline.order,
            "chunks": pipeline.chunks,
            "gap": pipeline.gap,
            "step_parts_s": {},
            "step_time_s": pipeline.step_time_s,
            "step_time_lower_bound_s": pipeline.step_bound_s,
            "status": pipeline.status,
            "bubble": pipeline.run.bubble_fraction,
            "peak_memory_bytes": max(pipeline.memory),
        }
    return out


def first_size(graph: Graph) -> int | None:
    """Size of the first dimension of the first input that has one: the batch."""
    return next((s[0] for t in graph.inputs if (s := graph.tensors[t].shape)), None)
