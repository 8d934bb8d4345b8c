"""A step as it was measured on every rank, beside what the plan predicts of it."""

from __future__ import annotations

import json
import os
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any, Final

from planner.cost_models.calibrate.samples import ComputeSample
from planner.cost_models.memory import Precision
from planner.lowering import Program
from planner.planning.document import PlanDocument
from planner.report.samples import compute_samples
from planner.report.trace import named, timed_event, trace_document
from planner.report.words import memory_text, time_text
from planner.runtime.timed import Timed, TimedKind

__all__ = ["Profile", "ProfileRow", "profiled"]

Step = Sequence[Timed]
_RANK: Final = 1000  # process number of rank 0 in the trace, behind those of the plan's own
_LONGEST: Final = 12  # rows of a table on the terminal
_OPERATORS: Final = ("forward", "backward")
_FORWARD: Final = ("forward", "recompute")


@dataclass(frozen=True, slots=True)
class ProfileRow:
    """One operator or redistribution of a step.

    `times`: how often a rank did it in a step; `measured_s`: of all these together, the median over the steps, the mean
    over the ranks that did it; `slowest_s`: the same on the slowest rank; `predicted_s`: what the plan has for as many,
    None where it says nothing of it.  `type`: the operator's, or the collectives of the redistribution.
    """

    kind: TimedKind
    name: str
    type: str
    module: str
    times: int
    measured_s: float
    slowest_s: float
    predicted_s: float | None


@dataclass(frozen=True, slots=True)
class Profile:
    """`step_s`: measured seconds of a step without a watch, the slowest rank's median; `watched_s`: with one, which
    takes longer where operators are small; `predicted_step_s`: the plan's, with its optimizer.  `held_bytes`: what
    lives at the fullest moment of a step on the fullest rank, None where that cannot be seen; `predicted_bytes`: the
    plan's, with its optimizer.  `steps`: those of each rank that were watched; `samples`: operators as `planner
    calibrate --rows` reads them."""

    plan: PlanDocument
    rows: tuple[ProfileRow, ...]
    step_s: float
    watched_s: float
    predicted_step_s: float
    held_bytes: int | None
    predicted_bytes: int
    steps: tuple[tuple[Step, ...], ...]
    samples: tuple[ComputeSample, ...] = ()

    def document(self) -> dict[str, Any]:
        """As JSON has it."""
        return {
            "model": self.plan.model.name,
            "hardware": self.plan.cluster.hardware,
            "devices": self.plan.devices,
            "step_s": self.step_s,
            "watched_s": self.watched_s,
            "predicted_step_s": self.predicted_step_s,
            "held_bytes": self.held_bytes,
            "predicted_bytes": self.predicted_bytes,
            "rows": [asdict(r) for r in self.rows],
            "samples": [asdict(s) for s in self.samples],
        }

    def save(self, folder: str | os.PathLike[str]) -> Path:
        """Writes profile.json, and trace.json for Perfetto; returns the folder."""
        place = Path(folder)
        place.mkdir(parents=True, exist_ok=True)
        for name, document in (("profile.json", self.document()), ("trace.json", self.trace())):
            (place / name).write_text(json.dumps(document) + "\n", encoding="utf-8")
        return place

    def trace(self) -> dict[str, Any]:
        """The plan's simulated step, and the last watched step of every rank beside it, for Perfetto."""
        found = trace_document(self.plan)
        events: list[dict[str, Any]] = found["traceEvents"]
        for rank, steps in enumerate(self.steps):
            events.append(named("process_name", _RANK + rank, 0, f"measured on rank {rank}"))
            for thread, label in ((1, "operators"), (2, "redistributions")):
                events.append(named("thread_name", _RANK + rank, thread, label))
            for t in steps[-1] if steps else ():
                if t.kind != "other" and t.end_s > t.begin_s:
                    thread = 1 if t.kind in ("forward", "backward") else 2
                    about = {"micro_batch": t.micro_batch, "operator" if thread == 1 else "tensor": t.name}
                    name = self._type(t.name) if thread == 1 else t.kind
                    events.append(timed_event(name, t.kind, _RANK + rank, thread, t.begin_s, t.end_s, **about))
        return found

    def _type(self, operator: str) -> str:
        found = self.plan.operators.get(operator)
        return operator if found is None else found.type

    def __str__(self) -> str:
        lines = [
            f"step        {time_text(self.step_s)} measured, {time_text(self.predicted_step_s)} predicted "
            f"({self.step_s / self.predicted_step_s:.2f} times as long)"
            if self.predicted_step_s
            else f"step        {time_text(self.step_s)} measured",
            f"watched     {time_text(self.watched_s)}, with the time of every instruction taken",
            *(
                []
                if self.held_bytes is None
                else [
                    f"memory      {memory_text(self.held_bytes)} measured on the fullest rank, "
                    f"{memory_text(self.predicted_bytes)} predicted"
                ]
            ),
            *_table("operators, by type", _by_type(r for r in self.rows if r.kind in _OPERATORS)),
            *_table(
                "redistributions, by collectives", _by_type(r for r in self.rows if r.kind in ("value", "gradient"))
            ),
        ]
        waited = sum(r.measured_s for r in self.rows if r.kind == "received")
        if waited and len(self.plan.stages) > 1:
            lines += ["", f"received from other stages, waiting included: {time_text(waited)}"]
        return "\n".join(lines)


def profiled(
    plan: PlanDocument,
    ranks: Sequence[Sequence[Step]],
    step_s: float,
    held_bytes: int | None = None,
    *,
    program: Program | None = None,
    precision: Precision | None = None,
) -> Profile:
    """`ranks`: the watched steps of each rank; `step_s`, `held_bytes`: as of `Profile`; `program`: what was run, in a
    `precision` which is the plan's by default."""
    predicted = _predictions(plan)
    sums: dict[tuple[TimedKind, str], list[tuple[float, int]]] = defaultdict(list)  # of each rank: seconds, how often
    for steps in ranks:
        each = [_summed(step) for step in steps]
        for key in dict.fromkeys(k for found in each for k in found):
            seconds = median(found.get(key, (0.0, 0))[0] for found in each)
            sums[key].append((seconds, each[-1].get(key, (0.0, 0))[1]))
    rows = []
    for (kind, name), found in sums.items():
        times = max(n for _, n in found)
        once = predicted.get((kind, name))
        operator = plan.operators.get(name) if kind in _OPERATORS else None  # a tensor may have an operator's name
        rows.append(
            ProfileRow(
                kind=kind,
                name=name,
                type=operator.type if operator is not None else _collectives(plan, kind, name),
                module=operator.module if operator is not None else "",
                times=times,
                measured_s=sum(s for s, _ in found) / len(found),
                slowest_s=max(s for s, _ in found),
                predicted_s=None if once is None else once * times,
            )
        )
    watched = max((median(step[-1].end_s for step in steps if step) for steps in ranks if any(steps)), default=0.0)
    computed = precision or plan.schedule.precision
    return Profile(
        plan,
        tuple(sorted(rows, key=lambda r: -r.measured_s)),
        step_s,
        watched,
        plan.cost.step_time_s,
        held_bytes,
        plan.cost.peak_memory_bytes,
        tuple(tuple(steps) for steps in ranks),
        () if program is None else compute_samples(program, computed, rows, copies=plan.schedule.copies),
    )


def _summed(step: Step) -> dict[tuple[TimedKind, str], tuple[float, int]]:
    """Seconds of everything that a step did, and how often: a backward pass in two parts counts once."""
    out: dict[tuple[TimedKind, str], tuple[float, int]] = {}
    for t in step:
        seconds, times = out.get((t.kind, t.name), (0.0, 0))
        out[t.kind, t.name] = seconds + t.seconds, times + (t.part != "weights")
    return out


def _predictions(plan: PlanDocument) -> dict[tuple[str, str], float]:
    """Seconds of one execution."""
    out: dict[tuple[str, str], float] = {}
    for name, o in plan.operators.items():
        for kind, phases in (("forward", _FORWARD), ("backward", ("backward",))):
            runs = [r.seconds for r in o.runs if r.phase in phases]
            if runs:
                out[kind, name] = sum(runs) / len(runs)
    moves: dict[tuple[str, str], list[float]] = defaultdict(list)
    for m in plan.redistributions:
        moves["gradient" if m.direction == "gradient" else "value", m.tensor].append(m.seconds)
    return out | {key: sum(found) / len(found) for key, found in moves.items()}


def _collectives(plan: PlanDocument, kind: str, tensor: str) -> str:
    if kind not in ("value", "gradient"):
        return tensor
    direction = "gradient" if kind == "gradient" else "forward"
    steps = [s for m in plan.redistributions if (m.tensor, m.direction) == (tensor, direction) for s in m.steps]
    words = dict.fromkeys(f"{s.kind} over {'.'.join(s.axes)}" for s in steps if s.kind not in ("slice", "to_partial"))
    return ", ".join(words) or "nothing sent"


def _by_type(rows: Iterable[ProfileRow]) -> list[tuple[str, str, int, float, float | None]]:
    """Type, kind, times, measured and predicted seconds, longest first."""
    out: dict[tuple[str, str], tuple[int, float, float | None]] = {}
    for r in rows:
        times, measured, predicted = out.get((r.type, r.kind), (0, 0.0, None))
        both = [p for p in (predicted, r.predicted_s) if p is not None]
        out[r.type, r.kind] = times + r.times, measured + r.measured_s, sum(both) if both else None
    return sorted(((*key, *value) for key, value in out.items()), key=lambda x: -x[3])


def _table(title: str, rows: Sequence[tuple[str, str, int, float, float | None]]) -> list[str]:
    if not rows:
        return []
    if not rows:
        return []
    lines = ["", f"{title:44} {'':9} {'times':>6} {'measured':>10} {'predicted':>10} {'ratio':>6}"]
    for kind, direction, times, measured, predicted in rows[:_LONGEST]:
        ratio = f"{measured / predicted:6.2f}" if predicted else ""
        foretold = "" if predicted is None else time_text(predicted)
        lines.append(f"  {kind[:42]:42} {direction:9} {times:6} {time_text(measured):>10} {foretold:>10} {ratio:>6}")
    if len(rows) > _LONGEST:
        rest = sum(r[3] for r in rows[_LONGEST:])
        lines.append(f"  {len(rows) - _LONGEST} more, {time_text(rest)} together")
    return lines
