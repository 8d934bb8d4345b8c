"""The search behind `planner search`, for requests that no kept answer serves."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field, replace
from importlib import import_module
from math import log

from planner.cache import Store
from planner.frontends import Imported
from planner.ir import Graph
from planner.planning import PlanDocument, Planned, Recall, Request, plan_text
from planner.requests.answer import Answer
from planner.requests.cancel import Cancellation
from planner.requests.choosing import Choosing
from planner.requests.history import points_of
from planner.requests.key import RequestKey
from planner.requests.model import ModelSource
from planner.requests.prepared import Prepared, first_size
from planner.requests.proof import described, save_problem
from planner.requests.search import SearchRequest
from planner.requests.watch import Lines, Watch
from planner.search.control import Control

__all__ = ["Searcher"]

WARM_SECONDS = 2.0  # for finding an earlier plan again in a search under a time limit


@dataclass
class Searcher:
    """Searches for the counts of devices of one command; model, profile and constraints are read once.

    `graphs`, `source`: as of `Prepared`.
    """

    options: SearchRequest
    store: Store | None
    key: RequestKey | None
    cancellation: Cancellation
    watch: Watch = field(default_factory=Lines)
    graphs: dict[int | None, Imported] = field(default_factory=dict)
    source: ModelSource | None = None

    def __post_init__(self) -> None:
        self.prepared = Prepared(self.options, self.cancellation, self.watch, self.graphs, source=self.source)
        self.options = self.prepared.options  # as a configuration or a file's job settles them

    def search(self, devices: int) -> Answer:
        """The answer for one count of devices, kept where it may be."""
        prepared = self.prepared
        prepared.check_job(devices)
        graph = prepared.graph
        request = prepared.request(devices)
        key = None if self.key is None else self.key.of_graph(_content(graph), devices)
        if self.store is not None and key is not None and self.options.save_problem is None:
            known = Answer.read(self.store, key)
            if known is not None:
                self._point(devices, key)
                return _renamed(known, graph.name)
        recall, automatic = self._recall(graph, request)
        if request.time_limit is not None:
            import_module("planner.search.program.ilp")  # which takes half a second, before the clock is set
        control = prepared.begin(request)
        found = Choosing(prepared, devices, request, control, recall).run()
        planned, answer, untouched = found.planned, found.answer, found.untouched
        first = answer.documents[0]
        prepared.history.end(first["step_time_s"], first["step_time_lower_bound_s"])
        record = {"history": prepared.history.document(), "points": points_of(answer.documents)}
        answer = replace(answer, record=record)
        if self.store is not None and key is not None and untouched and not automatic and not answer.cancelled:
            answer.keep(self.store, key)
            self._point(devices, key)
            self._index(graph, request, key)
        if self.options.save_problem is None or planned is None:
            return answer
        return self._saved(answer, planned, control, devices)

    def _saved(self, answer: Answer, planned: Planned, control: Control, devices: int) -> Answer:
        """The answer with what was written for `planner check`."""
        options = self.options
        folder = options.save_problem
        assert folder is not None
        document = save_problem(
            planned,
            folder / str(devices) if "," in options.devices else folder,
            others=options.save_all_meshes,
            reproducible=options.reproducible,
            cancelled=control.cancel.is_set,
        )
        documents = ({**answer.documents[0], "certified": document}, *answer.documents[1:])
        return replace(answer, documents=documents, summary="\n".join([answer.summary, *described(document)]))

    # The cache beyond this very request

    def _point(self, devices: int, key: str) -> None:
        if self.store is not None and self.key is not None:
            self.store.write("requests", self.key.of(devices), key.encode())

    def _index(self, graph: Graph, request: Request, key: str) -> None:
        """Lists the answer among those on graphs of this structure."""
        assert self.store is not None
        about = {"devices": request.devices, "batch": first_size(graph), "settings": repr(request.settings)}
        self.store.write(f"structures/{_structure(graph)}", key, json.dumps(about).encode())

    def _recall(self, graph: Graph, request: Request) -> tuple[Recall | None, bool]:
        """The plan to begin with, and whether it was not asked for.

        Without a time limit a search ends the same way whatever was searched before, so nothing is taken unasked.
        """
        if self.prepared.recall is not None:
            return self.prepared.recall, False
        if self.store is None or request.time_limit is None:
            return None, False
        kind = f"structures/{_structure(graph)}"
        near: list[tuple[float, float, str]] = []
        for key in self.store.keys(kind):
            about = json.loads(self.store.read(kind, key) or b"{}")
            if about.get("settings") == repr(request.settings):
                distances = (_ratio(about["devices"], request.devices), _ratio(about["batch"], first_size(graph)))
                near.append((*distances, key))
        for _, _, key in sorted(near):
            known = Answer.read(self.store, key)
            if known is not None:
                plan = PlanDocument.model_validate_json(known.plans[0])
                self.watch.say(f"note: begins with a plan found before, on mesh {plan.mesh}")
                return Recall(plan, WARM_SECONDS), True
        return None, False


def _ratio(a: int | None, b: int | None) -> float:
    return abs(log(a / b)) if a and b else 0.0


def _content(graph: Graph) -> str:
    """Digest of everything of the graph that a plan shows or depends on, but for the model's name."""
    h = hashlib.sha256(graph.digest.encode())
    for op in graph.ops:
        h.update(repr((op.name, op.source, op.module, op.inputs, op.outputs)).encode())
    for t in graph.tensors.values():
        h.update(repr((t.name, str(t.role), t.dtype, t.shape, *(("frozen",) if t.frozen else ()))).encode())
    h.update(repr((graph.inputs, graph.outputs, graph.loss)).encode())
    return h.hexdigest()


def _structure(graph: Graph) -> str:
    """Digest of operators and their connections, whatever the sizes."""
    h = hashlib.sha256()
    for op in graph.ops:
        h.update(repr((op.type, op.inputs, op.outputs)).encode())
    return h.hexdigest()


def _renamed(answer: Answer, name: str) -> Answer:
    """The answer as a search of the model under this name would have given it."""
    documents = [PlanDocument.model_validate_json(text) for text in answer.plans]
    old = documents[0].model.name
    if old == name:
        return answer
    plans = [plan_text(d.model_copy(update={"model": d.model.model_copy(update={"name": name})})) for d in documents]
    return replace(answer, plans=tuple(plans), summary=answer.summary.replace(old, name, 1))
