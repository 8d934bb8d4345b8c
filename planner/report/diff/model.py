"""`Diff`: two plans matched operator by operator, with what each difference costs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import islice

from planner.planning import PlanDocument
from planner.planning.compare import Form, forms
from planner.report.diff.batch import same_samples, samples
from planner.report.diff.groups import Group, Same, compared
from planner.report.diff.ledger import PARTS, Bill, Ledger, common_unit, counted, ledger, total
from planner.report.diff.match import Matching, match
from planner.report.diff.settings import Setting, found_otherwise, paths, settings, unlike
from planner.report.diff.traits import Side
from planner.report.diff.work import Work

__all__ = ["Diff", "diff", "silent"]

_MOST_PATHS = 20


@dataclass(frozen=True, slots=True)
class Diff:
    """What B does otherwise than A, and what that costs or saves.

    Costs count in `unit_s`, in which both plans' times are whole numbers (`exact`) or to which they are rounded.  The
    objective's difference is the sum over `groups`, `same`, what is in one plan only, `loose` (of no operator), and
    `remainder`, by part of the objective: what the plans' files leave unexplained, zero where they tell every run.
    `often`: what does the same at the same cost, but another number of times in a step.  `warnings` are those of
    `notes` that say why the plans can hardly be compared.
    """

    a: PlanDocument
    b: PlanDocument
    identical: bool
    unit_s: Fraction
    exact: bool
    matching: Matching
    settings: tuple[Setting, ...]
    found: tuple[Setting, ...]
    others: tuple[Setting, ...]
    notes: tuple[str, ...]
    warnings: tuple[str, ...]
    forms: tuple[Form, Form]
    ledgers: tuple[Ledger, Ledger]
    groups: tuple[Group, ...]
    same: tuple[Same, ...]
    often: tuple[Same, ...]
    only_a: Bill
    only_b: Bill
    loose: tuple[Bill, Bill]
    parts: Mapping[str, tuple[int, int]]
    objective: tuple[int, int]
    remainder: Mapping[str, int]

    @property
    def attributed(self) -> Bill:
        """Of everything but the remainder."""
        here = total([*(g.a for g in self.groups), *(s.a for s in self.same), self.only_a, self.loose[0]])
        there = total([*(g.b for g in self.groups), *(s.b for s in self.same), self.only_b, self.loose[1]])
        return there - here

    @property
    def objective_units(self) -> int:
        """Difference of the objectives, B - A."""
        return self.objective[1] - self.objective[0]

    @property
    def remainder_units(self) -> int:
        return self.objective_units - self.attributed.units

    def seconds(self, units: int) -> float:
        return float(units * self.unit_s)


def silent(plan: PlanDocument) -> bool:
    """Whether the plan does not say what its operators' runs cost."""
    return not any(o.runs for o in plan.operators.values())


def diff(a: PlanDocument, b: PlanDocument) -> Diff:
    """B beside A."""
    unit, exact = common_unit(a, b)
    matching = match(a, b)
    timed = not any(map(silent, (a, b)))
    first, second = (ledger(p, unit, timed=timed) for p in (a, b))
    form_a, form_b = forms(a, b)
    unlike_parts = Work(a, unit).unlike(Work(b, unit))
    groups, same, often = compared(Side.of(a, form_a, first), Side.of(b, form_b, second), matching, unlike_parts)
    only = total(first.bills[n] for n in matching.only_a), total(second.bills[n] for n in matching.only_b)
    here, there = counted(a, unit), counted(b, unit)
    names = dict.fromkeys([*PARTS, *a.cost.parts_s, *b.cost.parts_s])
    parts = {p: (here(a.cost.parts_s.get(p, 0.0)), there(b.cost.parts_s.get(p, 0.0))) for p in names}
    named = settings(a, b)
    others = [] if matching.other_models else unlike(a, b, matching)
    identical = a.model_copy(update={"search": b.search, "verification": b.verification, "executed": b.executed}) == b
    explained = named or others or groups or same or a.cost != b.cost or matching.only_a or matching.only_b
    if not (identical or explained):
        mine, theirs = (p.model_dump(exclude={"search", "verification", "executed"}) for p in (a, b))
        others = list(islice(paths(mine, theirs), _MOST_PATHS))
    found = Diff(
        a=a,
        b=b,
        identical=identical,
        unit_s=unit,
        exact=exact,
        matching=matching,
        settings=tuple(named),
        found=tuple(found_otherwise(a, b)),
        others=tuple(others),
        notes=(*_warnings(a, b, matching), *_notes(a, b)),
        warnings=tuple(_warnings(a, b, matching)),
        forms=(form_a, form_b),
        ledgers=(first, second),
        groups=tuple(groups),
        same=tuple(same),
        often=tuple(often),
        only_a=only[0],
        only_b=only[1],
        loose=(first.loose, second.loose),
        parts=parts,
        objective=(here(a.cost.objective_s), there(b.cost.objective_s)),
        remainder={},
    )
    attributed = found.attributed
    left = {p: y - x - (getattr(attributed, p) if p in PARTS else 0) for p, (x, y) in parts.items()}
    return replace(found, remainder={p: n for p, n in left.items() if n})


def _warnings(a: PlanDocument, b: PlanDocument, matching: Matching) -> list[str]:
    """Why the plans cannot be compared operator by operator, or only with care."""
    notes = []
    more = len(matching.pairs) - matching.by_name
    if matching.other_models:
        notes.append(
            f"plans of different models: {len(matching.pairs)} operators correspond, of {len(a.operators)} in "
            f"A and {len(b.operators)} in B"
        )
    elif more or matching.only_a or matching.only_b:
        notes.append(
            f"another graph: {matching.by_name} operators correspond by name, {more} by module, type and position, "
            f"{len(matching.only_a)} are in A alone and {len(matching.only_b)} in B alone"
        )
    if a.schedule.mode != b.schedule.mode:
        notes.append(f"A is a plan of {a.schedule.mode} and B of {b.schedule.mode}: a step is not the same work")
    if not matching.other_models:
        notes += _other_work(a, b)
    if a.cluster.profile_digest != b.cluster.profile_digest:
        notes.append(
            f"prices are those of other hardware ({a.cluster.hardware}, {b.cluster.hardware}): "
            "operators that do the same cost otherwise"
        )
    if silent(a) != silent(b):
        notes.append(
            f"plan {'A' if silent(a) else 'B'} does not say what its operators' runs and updates cost: those of the "
            "other are not stated by operator either"
        )
    return notes


def _other_work(a: PlanDocument, b: PlanDocument) -> list[str]:
    """Where a step of one is not the work of one of the other."""
    notes = []
    counts = samples(a), samples(b)
    if counts[0] != counts[1]:
        first, second = ("no" if n is None else f"{n:,}" for n in counts)
        notes.append(f"a step of A has {first} samples and one of B has {second}: a step is not the same work")
    if not same_samples(a, b):
        notes.append("inputs have other shapes beyond the batch: a sample is not the same work")
    return notes


def _notes(a: PlanDocument, b: PlanDocument) -> list[str]:
    """What a reader of all figures must know besides."""
    notes = []
    if a.mesh.shape != b.mesh.shape:
        notes.append(
            "other meshes: layouts are compared by shards of every dimension, strategies by ranks in each role"
        )
    counts = a.schedule.micro_batches, b.schedule.micro_batches
    if max(counts) > 1:
        notes.append(
            "objective, bound, parts and groups of changes are of one micro-batch through all stages, of which a step "
            f"has {counts[0]} in A and {counts[1]} in B; the summary, the simulated step and memory are of the whole "
            "step"
        )
    return notes
