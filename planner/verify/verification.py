"""All that `planner verify` asks of a plan: its document, its program, its execution, and the import of its model.

1. The document is derived again from the graph, the choice and the machine (`derive`), and has to be equal.
2. The program that it describes is checked without data (`planner.lowering.check`).
3. The program runs on virtual devices beside the whole model (`proof`), or, where that is too large, that of a smaller
   sibling does, under the plan's own layouts and redistributions (`sibling`).  Stages and micro-batches run as such
   (`pipeline`): all of them, or, where there are too many, as many as let every stage fill up and empty.
4. The graph as it was understood runs against ONNX Runtime on the file (`imported`), where that fits.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from planner.errors import InputError, VerificationError
from planner.ir import Graph
from planner.lowering import Program
from planner.lowering.check import check_program
from planner.planning import PlanDocument
from planner.planning.programs import program_of
from planner.status import show_progress
from planner.verify.check import Verdict, verify_program
from planner.verify.data import Drawn
from planner.verify.derive import differences
from planner.verify.fields import Difference
from planner.verify.imported import BUDGET, ImportVerdict, check_import
from planner.verify.label import labelled, unlabelled
from planner.verify.pipeline import verify_pipeline
from planner.verify.pipelined import affordable, fewest_micro_batches, in_parts, pipeline_of
from planner.verify.sibling import Sibling, Siblings
from planner.verify.work import Budget, work_of

__all__ = ["Verification", "verify"]

# What is executed as it stands: the whole and the sharded model run once each, in double precision, with the backward
# pass twice the forward: a minute or so on two cores.  Larger graphs are proved on a sibling, the smallest that keeps
# the plan's strategies.
TRAINING = Budget(flops=4e11)
INFERENCE = Budget(flops=1.5e12)
UNLIMITED = 1 << 62
MOVED = 24 << 30  # bytes of activations that may come and go where no more than a budget's are there at once
SIBLINGS = (
    Budget(flops=4e9, parameter_bytes=1 << 26, activation_bytes=1 << 27),
    Budget(flops=4e10, parameter_bytes=1 << 30, activation_bytes=1 << 29),
)

Say = Callable[[str], None]
Meter = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class Verification:
    """`fields` are those of the document that are not as they have to be; `defects` of the program, found without data;
    `execution` is None where these leave nothing to run; `sibling` says what was run where the whole graph was not.
    `too_large` why nothing was.  `imported` is None where there was no file to compare with."""

    devices: int
    fields: tuple[Difference, ...]
    defects: tuple[str, ...]
    execution: Verdict | None
    imported: ImportVerdict | None
    operators: int
    sibling: str = ""
    stands_for: tuple[str, ...] = ()
    too_large: str = ""

    @property
    def failures(self) -> tuple[str, ...]:
        """What is wrong, by object."""
        executed = () if self.execution is None else self.execution.failures
        imported = self.imported is not None and self.imported.ok is False
        wrong = (f"import: {self.imported.reason}",) if imported and self.imported is not None else ()
        defects = dict.fromkeys(self.defects)  # forward and backward pass may want the same
        fields = [f"plan: {d}" for d in self.fields if not any(x in d.found for x in defects)]
        return (*fields, *defects, *executed, *wrong)

    @property
    def unproved(self) -> tuple[str, ...]:
        """What could be shown neither right nor wrong, by operator."""
        if self.execution is None:
            return (self.too_large,) if self.too_large else ()
        return self.execution.unproved

    @property
    def verdict(self) -> Literal["ok", "failed", "no verdict"]:
        if self.failures:
            return "failed"
        return "no verdict" if self.unproved or self.execution is None else "ok"

    @property
    def ok(self) -> bool:
        return self.verdict == "ok"

    @property
    def checked(self) -> tuple[str, ...]:
        return () if self.execution is None else self.execution.checked

    @property
    def stages(self) -> int:
        """How many were executed."""
        return 1 if self.execution is None else self.execution.stages

    @property
    def micro_batches(self) -> int:
        """How many were executed."""
        return 1 if self.execution is None else self.execution.micro_batches

    def label(self, plan: PlanDocument, seed: int) -> PlanDocument:
        """The plan with the record of this verification.  Only for one that is ok."""
        gradients = "gradients" in self.checked
        return labelled(
            plan,
            whole=not self.sibling,
            gradients=gradients,
            stages=self.stages,
            micro_batches=self.micro_batches,
            seed=seed,
        )


def verify(
    plan: PlanDocument,
    graph: Graph,
    model: Path | None = None,
    *,
    seed: int = 0,
    whole: bool = False,
    say: Say = lambda _: None,
    meter: Meter | None = None,
) -> Verification:
    """Everything above; `model` is the file that `graph` was read from, `whole` asks for an execution of the whole
    graph, and of the file, however much time and memory they take.  InputError where the plan is not one of this
    graph."""
    show_progress("deriving every field of the plan again")
    program = program_of(plan, graph)
    # The label of an earlier proof is replaced by that of this one.
    fields = tuple(differences(unlabelled(plan), graph))
    defects = tuple(check_program(program))
    devices = plan.devices
    if defects:
        return Verification(devices, fields, defects, None, None, 0)
    drawn: Drawn = {}  # by the one, for the other
    imported = None if model is None else _imported(plan, graph, model, seed, say, drawn, whole=whole)
    budget = TRAINING if plan.schedule.mode == "training" else INFERENCE
    count = affordable(plan, work_of(graph, program.rules), budget, whole=whole)
    if count:
        if count < plan.schedule.micro_batches:
            say(f"executing {count} of {plan.schedule.micro_batches} micro-batches: every stage fills and empties")
        verdict = _execute(plan, program, count, seed, meter, drawn)
        return Verification(devices, fields, (), verdict, imported, len(graph.ops))
    show_progress("looking for a smaller sibling of the graph")
    siblings = Siblings(plan, graph, program)
    try:
        smaller = _sibling(plan, siblings, budget)
    except VerificationError as e:  # what was found so far is told all the same
        return Verification(devices, fields, (), None, imported, 0, too_large=str(e))
    say(f"the whole graph is too large to execute here; proving a sibling: {smaller.description}")
    verdict = _execute(plan, smaller.program, fewest_micro_batches(plan), seed, meter, drawn)
    if verdict.unproved and not verdict.values:  # some size was made smaller without another that belongs to it
        smaller = siblings.within(SIBLINGS[-1])
        verdict = _execute(plan, smaller.program, fewest_micro_batches(plan), seed, meter, drawn)
    operators = len(smaller.graph.ops)
    return Verification(devices, fields, (), verdict, imported, operators, smaller.description, smaller.stands_for)


def _sibling(plan: PlanDocument, siblings: Siblings, most: Budget) -> Sibling:
    """One within the first budget that something fits; first with time for all micro-batches that are executed.  In the
    end it may take as much as a graph that is executed as it stands."""
    each = [replace(b, flops=b.flops / fewest_micro_batches(plan)) for b in SIBLINGS]
    for budget in (*each, *SIBLINGS):
        try:
            return siblings.within(budget)
        except VerificationError:
            continue
    most = replace(most, flops=most.flops / fewest_micro_batches(plan))
    try:
        return siblings.within(most)
    except VerificationError:
        if plan.schedule.mode == "training":  # all results are kept for the gradients
            raise
        return siblings.within(replace(most, activation_bytes=MOVED))


def _execute(
    plan: PlanDocument, program: Program, micro_batches: int, seed: int, meter: Meter | None, drawn: Drawn
) -> Verdict:
    show_progress("drawing parameters and inputs")
    if not in_parts(plan):
        return verify_program(program, seed=seed, progress=meter, drawn=drawn)
    return verify_pipeline(pipeline_of(plan, program, micro_batches), seed=seed, progress=meter, drawn=drawn)


def _imported(
    plan: PlanDocument, graph: Graph, model: Path, seed: int, say: Say, drawn: Drawn, *, whole: bool
) -> ImportVerdict:
    show_progress("comparing the graph with ONNX Runtime on the file")
    say("comparing the graph with ONNX Runtime on the file")
    bind, batch, budget = plan.model.bind, plan.model.batch, UNLIMITED if whole else BUDGET
    try:
        return check_import(model, graph, bind=bind, batch=batch, seed=seed, budget=budget, keep=drawn)
    except (InputError, VerificationError) as e:
        return ImportVerdict(None, reason=str(e))
