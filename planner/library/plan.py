"""`planner.Plan`: a plan, its figures, and what can be made of it."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from planner.errors import InputError
from planner.library.model import Model, Proto, model_of
from planner.library.wording import in_keywords, worded
from planner.requests.model import ModelSource
from planner.requests.values import plan_file
from planner.terminal import plain

if TYPE_CHECKING:
    from planner.library.comparing import Diff
    from planner.library.emitting import Emission
    from planner.library.explaining import Explanation
    from planner.library.progress import Listener
    from planner.library.reporting import Report
    from planner.library.table import Table
    from planner.library.verifying import Verification
    from planner.planning import PlanDocument
    from planner.report.record import SearchRecord

__all__ = ["Plan", "compared", "load_plan", "plan_of"]


@dataclass(frozen=True, eq=False, repr=False)
class Plan:
    """A parallel strategy for a model: what `planner search` writes to plan.json.

    Made by `planner.search`, `planner.read` and `planner.load_plan`.  Plans are equal where their files are.

    text      the content of plan.json
    model     the model that was planned, where it is known: `verify`, `explain` and some targets of `emit` need it
    figures   what `planner search --json` prints; empty for a plan that was loaded
    summary   what `planner search` prints; empty for a plan that was loaded
    messages  warnings and notes about the plan
    others    with `top_k`, the plans of the next best meshes
    """

    text: str
    model: Model | None = None
    figures: Mapping[str, Any] = field(default_factory=dict)
    summary: str = ""
    messages: tuple[str, ...] = ()
    others: tuple[Plan, ...] = ()
    stripped: bytes = b""  # the model without its weights, which is kept beside the plan
    record: SearchRecord | None = None  # how the search went, which is kept there as well

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Plan:
        """Loads a plan, as `planner.load_plan` does."""
        return load_plan(path)

    @cached_property
    def document(self) -> PlanDocument:
        """The file as a value (docs/plan-format.md)."""
        from planner.planning import PlanDocument

        return PlanDocument.model_validate_json(self.text)

    def to_dict(self) -> dict[str, Any]:
        """The content of plan.json."""
        found: dict[str, Any] = json.loads(self.text)
        return found

    @property
    def name(self) -> str:
        """The name of the model."""
        return self.document.model.name

    @property
    def hardware(self) -> str:
        """The name of the hardware profile that the plan was priced with."""
        return self.document.cluster.hardware

    @property
    def devices(self) -> int:
        """The number of devices that the plan runs on."""
        return self.document.devices

    @property
    def batch(self) -> int | None:
        """The samples of a step; None where no input has a batch dimension."""
        shape = next((i.shape for i in self.document.inputs.values() if i.shape), None)
        return None if shape is None else shape[0] * self.document.schedule.micro_batches

    @property
    def parallelism(self) -> str:
        """The degrees of parallelism, as `planner search` prints them: `DP 8 x TP 2, ZeRO 1`."""
        from planner.requests.headline import words

        return in_keywords(words(self.document))

    @property
    def step_time(self) -> float:
        """The predicted seconds of a step."""
        return self.document.cost.step_time_s

    @property
    def lower_bound(self) -> float:
        """A proven lower bound, in seconds, on the step time of every plan that was searched."""
        return float(self.figures.get("step_time_lower_bound_s", self.document.cost.step_time_lower_bound_s))

    @property
    def gap(self) -> float:
        """(step time - lower bound) / step time: 0.01 is one percent, and at 0 the plan is proven to be the best."""
        return float(self.figures.get("gap", self.document.cost.gap))

    @property
    def memory(self) -> int:
        """The peak memory of the fullest device, in bytes."""
        return self.document.cost.peak_memory_bytes

    @property
    def memory_limit(self) -> int | None:
        """Bytes that a device might have used; None where there was no limit."""
        return self.document.cluster.memory_limit_bytes

    @property
    def samples_per_s(self) -> float | None:
        """Samples that are trained on in a second; None where they cannot be counted."""
        return self.batch / self.step_time if self.batch and self.step_time else None

    @property
    def tokens_per_s(self) -> float | None:
        """Tokens that are trained on in a second; None where the first input is no row of tokens."""
        first = next(iter(self.document.inputs.values()), None)
        rows = first is not None and first.shape is not None and len(first.shape) == 2
        if first is None or not rows or not first.dtype.startswith("int") or self.samples_per_s is None:
            return None
        assert first.shape is not None
        return self.samples_per_s * first.shape[1]

    @cached_property
    def mfu(self) -> float | None:
        """Model FLOP/s as a share of what the devices' products reach at most; None where the model is not known, or
        nothing is computed that could be counted."""
        if "mfu" in self.figures:
            found: float | None = self.figures["mfu"]
            return found
        if self.model is None:
            return None
        from planner.planning.rebuild import profile_of_plan
        from planner.requests.rates import rates_of_plan

        about = self.document.model
        try:
            graph = self.model.source.load(bind=about.bind, batch=about.batch)
            return rates_of_plan(self.document, graph, profile_of_plan(self.document))["mfu"]
        except InputError:  # the model or the machine is not to be had
            return None

    @property
    def verification(self) -> str:
        """What of the plan was executed and agreed with the model: none, sibling, forward or full."""
        return self.document.verification

    @property
    def cached(self) -> bool:
        """Whether the plan was found in the cache."""
        return bool(self.figures.get("cached", False))

    @property
    def cancelled(self) -> bool:
        """Whether the search was cancelled before it was done."""
        return bool(self.figures.get("cancelled", False))

    @worded
    def operators(self) -> Table:
        """A table with a row for each operator: how it is split, and the seconds of a step that it accounts for."""
        from planner.library.tables import operators

        return operators(self.document)

    @worded
    def parameters(self) -> Table:
        """A row per parameter: the layouts that it is stored, computed with, and updated in."""
        from planner.library.tables import parameters

        return parameters(self.document)

    @worded
    def collectives(self) -> Table:
        """A row per communication: redistributions, what happens inside operators, and sums among stages."""
        from planner.library.tables import collectives

        return collectives(self.document)

    @worded
    def save(self, path: str | os.PathLike[str]) -> Path:
        """Writes plan.json to a folder, or to a file whose name ends in .json, and model.onnx without weights beside
        it; returns where the plan is.  InputError where it cannot be written."""
        from planner.requests.answer import write_plans
        from planner.requests.plan_model import keep_model
        from planner.requests.record_file import keep_record

        given = Path(path)
        file = given if given.suffix == ".json" else given / "plan.json"
        try:
            write_plans({file: self.text})
        except OSError as e:
            raise InputError(f"plan {file}: cannot be written ({e}); give another place") from e
        if self.model is not None:
            keep_model(self.stripped or self.model.stripped(), file.parent, self.model.source.path)
        if self.record is not None:
            keep_record(self.record.model_dump_json(by_alias=True, indent=1) + "\n", file)
        return file

    @worded
    def emit(
        self,
        target: str,
        out: str | os.PathLike[str] | None = None,
        *,
        names: str | os.PathLike[str] | None = None,
        hosts: str | os.PathLike[str] | None = None,
    ) -> Emission:
        """Writes the plan for a runtime, as `planner.emit` does."""
        from planner.library.emitting import emission

        return emission(self.document, self.model, target, out, names, hosts)

    @worded
    def report(self, out: str | os.PathLike[str] | None = None) -> Report:
        """Shows the plan, as `planner.report` does."""
        from planner.library.reporting import Report

        found = Report(self.document, self.record)
        if out is not None:
            found.save(out)
        return found

    @worded
    def explain(
        self,
        op: str | None = None,
        *,
        alternatives: int = 3,
        hardware: str | None = None,
        progress: Listener | bool | None = None,
    ) -> Explanation:
        """Says why the plan is as it is, as `planner.explain` does."""
        from planner.library.explaining import Explanation
        from planner.library.progress import watch_of
        from planner.requests.cancel import Cancellation
        from planner.requests.explanation import explained

        source = self._known_model().source
        watch = watch_of(progress, Cancellation())
        found = explained(self.document, source, op, most=alternatives, hardware=hardware, say=watch.say)
        watch.raise_failure()
        return Explanation(found)

    @worded
    def verify(
        self,
        model: Model | str | os.PathLike[str] | bytes | Proto | None = None,
        *,
        seed: int = 0,
        whole: bool = False,
        progress: bool | None = None,
    ) -> Verification[Plan]:
        """Executes the plan and compares it with the model, as `planner.verify` does."""
        from planner.library.verifying import Verification
        from planner.planning import plan_text
        from planner.requests.verification import recorded_in, said_by_children, verification_document, verified

        source = (self._known_model() if model is None else model_of(model)).source
        with said_by_children() if progress else nullcontext(_nobody) as say:
            found = verified(self.document, source, seed=seed, whole=whole, say=say)
        record = recorded_in(self.document, found, seed)
        proved = self if record is None else replace(self, text=plan_text(record))
        return Verification(proved, verification_document(found))

    def diff(self, other: Plan | str | os.PathLike[str]) -> Diff:
        """What `other` does otherwise, as `planner.diff`."""
        return compared(self, other)

    def _known_model(self) -> Model:
        """InputError where it is not known."""
        if self.model is None:
            raise InputError(f"plan of {self.name}: no model lies beside it; give the one that was planned as model=…")
        return self.model

    def __eq__(self, other: object) -> bool:
        return self.text == other.text if isinstance(other, Plan) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.text)

    def __repr__(self) -> str:
        from planner.report.words import memory_text, time_text

        return plain(
            f"<Plan {self.name} on {self.devices} x {self.hardware}: {self.parallelism}; step "
            f"{time_text(self.step_time)}, gap {self.gap:.2%}, {memory_text(self.memory)} per device>"
        )

    def __str__(self) -> str:
        return self.summary or repr(self)

    def _repr_html_(self) -> str:
        from planner.library.card import card
        from planner.report.words import MEMORY_NAMES, PART_NAMES, memory_text, time_text

        cost, schedule = self.document.cost, self.document.schedule
        batch = "" if self.batch is None else f", batch {self.batch:,}"
        limit = "" if self.memory_limit is None else f" of {memory_text(self.memory_limit)}"
        rates = [
            "" if self.samples_per_s is None else f"{self.samples_per_s:,.4g} samples/s",
            "" if self.tokens_per_s is None else f"{self.tokens_per_s:,.0f} tokens/s",
            "" if self.mfu is None else f"MFU {self.mfu:.1%}",
        ]
        rows = {
            "plan": self.parallelism,
            "step": f"{time_text(self.step_time)}, at least {time_text(self.lower_bound)}: gap {self.gap:.2%}",
            "rate": ", ".join(filter(None, rates)),
            "memory": f"{memory_text(self.memory)}{limit} per device",
            "verified": "" if self.verification == "none" else self.verification,
            "note": "; ".join((*self.messages, *(["the search was cancelled"] if self.cancelled else []))),
        }
        return card(
            f"{self.name}: {schedule.mode} on {self.devices:,} x {self.hardware}{batch}, {schedule.precision}",
            rows,
            {PART_NAMES.get(part, part): s for part, s in (cost.step_parts_s or cost.parts_s).items()},
            {MEMORY_NAMES.get(kind, kind): float(size) for kind, size in cost.memory_bytes.items()},
        )


@worded
def load_plan(path: str | os.PathLike[str]) -> Plan:
    """Reads a plan.json, or the one in a folder that `planner search` wrote.

    The model is the one that lies beside it, if there is one.  InputError where it is no plan.
    """
    from planner.planning import read_plan
    from planner.requests.plan_model import MODEL_FILE
    from planner.requests.record_file import record_beside

    file = plan_file(os.fspath(path))
    document = read_plan(file)
    beside = file.parent / MODEL_FILE
    model = None
    if beside.is_file():
        about = document.model
        source = ModelSource(Path(f"{about.name}.onnx"), beside.read_bytes())
        # Its batch is that of a micro-batch; what was asked for is the whole.
        requested = document.search.request
        model = Model(source, dict(about.bind), None if requested is None else requested.batch)
    return Plan(file.read_text(encoding="utf-8"), model, record=record_beside(file, document))


def plan_of(value: Any, model: Any = None) -> Plan:
    """The plan that a user means: a `Plan`, or a file or folder; with the model, where it is given."""
    plan = value if isinstance(value, Plan) else load_plan(value)
    return plan if model is None else replace(plan, model=model_of(model))


def compared(a: Plan | str | os.PathLike[str], b: Plan | str | os.PathLike[str]) -> Diff:
    """Two plans, by their places where these are files.  InputError where one is no plan."""
    from planner.library.comparing import Diff

    first, second = ("AB"[i] if isinstance(p, Plan) else os.fspath(p) for i, p in enumerate((a, b)))
    one, other = plan_of(a), plan_of(b)
    return Diff(one.document, other.document, (first, second), (_clock(one), _clock(other)))


def _clock(plan: Plan) -> Mapping[str, float] | None:
    from planner.requests.comparison import clock_of_plan

    return clock_of_plan(plan.document, None if plan.model is None else plan.model.source)


def _nobody(line: str) -> None:
    pass
