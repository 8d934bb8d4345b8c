"""From a graph and a cluster to the best plan over all logical meshes."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Literal

from planner.clock import Held, Timeline, device_for
from planner.cost_models import HardwareProfile
from planner.errors import InfeasibleError, NoPlanError, NotFasterError, UsageError
from planner.ir import DeviceMesh, Graph
from planner.lowering import Program
from planner.planning.breakdown import CostBreakdown
from planner.planning.constraints import Pins, memory_note, no_mesh_left
from planner.planning.context import SearchContext
from planner.planning.finalists import Finalist, Judged, judged
from planner.planning.fit import Fitted, smallest
from planner.planning.interrupt import run_until_stopped
from planner.planning.options import Candidate, Found, Option
from planner.planning.outer import search_options
from planner.planning.recall import Recall
from planner.planning.request import Request
from planner.pricing import Assignment, PricedProblem, PriceTables
from planner.search.control import Control
from planner.search.evaluate import least_memory
from planner.search.prices.memory import minimum_memory
from planner.search.problem import Solution

__all__ = ["Candidate", "Planned", "Request", "make_plan", "on_nodes", "too_large"]

EXPLAIN_SECONDS = 0.5  # for what would fit, after time is up

Progress = Callable[[str], None]


@dataclass(frozen=True, eq=False)
class Planned:
    """The best plan and what is known of it.  `bound_s` bounds the objective over all meshes considered, whose
    searches are in `options`, and `step_bound_s` the time of a step."""

    request: Request
    priced: PricedProblem
    solution: Solution
    assignment: Assignment
    program: Program
    parts: CostBreakdown
    bound_s: float
    timeline: Timeline
    memory: Held
    memory_limit: int | None
    candidates: tuple[Candidate, ...]
    without_rule: tuple[str, ...]
    search_seconds: float
    warnings: tuple[str, ...] = field(default=())
    pins: Pins | None = None
    others: tuple[Planned, ...] = ()
    options: tuple[Option, ...] = ()
    step_bound_s: float = 0.0

    @property
    def peak_memory_bytes(self) -> int:
        """Of one device."""
        return self.memory.peak

    @property
    def mesh(self) -> DeviceMesh:
        return self.priced.machine.mesh

    @property
    def objective_s(self) -> float:
        return self.parts.total * self.priced.machine.unit_s

    @property
    def step_time_s(self) -> float:
        """Of the step, by the clock."""
        return self.timeline.end * self.priced.machine.unit_s

    @property
    def objective_gap(self) -> float:
        """(objective - bound) / objective of the additive objective, over all meshes considered."""
        return max(0.0, (self.objective_s - self.bound_s) / self.objective_s) if self.objective_s else 0.0

    @property
    def gap(self) -> float:
        """(step time - bound) / step time, over all meshes considered."""
        return gap_of(self.step_time_s, self.step_bound_s)

    @property
    def status(self) -> Literal["optimal", "feasible"]:
        """Whether no plan has a shorter step."""
        return "optimal" if self.gap == 0 else "feasible"


def gap_of(step_s: float, bound_s: float) -> float:
    """Relative gap of a step time."""
    return max(0.0, (step_s - bound_s) / step_s) if step_s else 0.0


def on_nodes(profile: HardwareProfile, devices: int, nodes: int | None) -> HardwareProfile:
    """The profile with its servers as full as `nodes` says.  UsageError where that cannot be."""
    if nodes is None or profile.server is None:
        return profile
    if nodes < 1 or devices % nodes:
        raise UsageError(f"--nodes {nodes}: expected a divisor of --devices {devices}: servers are filled equally")
    if devices // nodes > profile.server.devices:
        least = -(-devices // profile.server.devices)
        raise UsageError(
            f"--nodes {nodes}: a {profile.name} server holds {profile.server.devices} devices, "
            f"so {devices} need at least {least} nodes"
        )
    return replace(profile, server=replace(profile.server, devices=devices // nodes))


def make_plan(
    graph: Graph,
    request: Request,
    progress: Progress | None = None,
    *,
    control: Control | None = None,
    recall: Recall | None = None,
    tables: dict[DeviceMesh, PriceTables] | None = None,
) -> Planned:
    """Searches every mesh for the plan of least additive objective, then by what overlaps, and returns the plan whose
    step is the shortest by the clock, with the next best meshes' plans as its `others` where the request's `top_k` asks
    for them.  `control` takes the place of the request's time limit and of `progress`; when it is cancelled, the best
    plan so far is returned.  `recall` is a plan to begin with; `tables` keeps what was priced for further requests
    about this graph, profile and settings, which changes no answer.

    InfeasibleError where no mesh has a plan within the memory limit, with the smallest limit shown to suffice and the
    proven bound; NotFasterError where none is faster than the step that the request knows; NoPlanError where the time
    limit or a cancellation ends the search first.
    """
    started = time.monotonic()
    if control is None:
        control = Control(request.time_limit, say=progress or (lambda _: None))
    context = SearchContext.of(graph, request, recall, tables)
    limit, pins = context.limit, context.pins
    if request.execution is not None:
        device_for(request.execution, request.profile)
    found = search_options(context, control)
    if found.best is None and request.known_step_s is None:
        unfit = [o.unfit for o in found.options if o.unfit is not None]
        if pins is not None and unfit and len(unfit) == len(found.options):
            raise no_mesh_left(pins, unfit)
        full = [o for o in found.options if o.infeasible or o.overfull]
        infeasible = [o for o in full if not o.unfit and o.priced is not None]
        if len(infeasible) + len(unfit) < len(found.options):
            if control.cancel.is_set():
                raise NoPlanError("cancelled before any plan was found")
            within = "" if request.time_limit is None else f" within {request.time_limit:g} s"
            raise NoPlanError(f"no plan was found{within}; give a longer --time-limit")
        unpinned = [p for o in found.options if o.infeasible and not o.unfit and (p := o.unpinned) is not None]
        note = "" if pins is None else memory_note(unpinned, pins, limit or 0)
        raise _infeasible(request, infeasible, limit, note, control)
    outcome = judged(found, request, control, context.room)
    known = request.known_step_s
    if known is not None and not any(
        f.timeline.end * request.profile.price_resolution_s < known for f in outcome.finalists
    ):
        raise _not_faster(request, found, outcome)
    if request.configured is not None and limit is not None and outcome.finalists[0].memory.peak > limit:
        raise too_large(outcome.finalists[0].memory.peak, limit)
    first, *others = (_planned(context, found, f, outcome, started) for f in outcome.finalists[: request.top_k])
    return replace(first, others=tuple(others)) if others else first


def _planned(context: SearchContext, found: Found, best: Finalist, outcome: Judged, started: float) -> Planned:
    assert best.option.priced is not None
    priced, memory, limit = best.option.priced, best.memory, context.limit
    if limit is not None and memory.peak > limit:
        raise AssertionError(f"a plan of {memory.peak} bytes was let through a limit of {limit}")
    unit_s = priced.machine.unit_s
    simulated = {id(f.option): f for f in outcome.finalists}

    def candidate(option: Option) -> Candidate:
        searched, known = option.candidate(unit_s), simulated.get(id(option))
        if known is None:
            return searched
        if known is best:  # of what is described, the objective that is
            searched = replace(searched, status=known.solution.status, objective_s=known.parts.total * unit_s)
        return replace(searched, step_time_s=known.timeline.end * unit_s)

    # Infeasible meshes hold no plan, so they do not lower the bounds.
    open_ = [(o, bound) for o, bound in zip(found.options, outcome.bounds, strict=True) if not o.infeasible]
    return Planned(
        context.request,
        priced,
        best.solution,
        priced.decode(best.choice),
        best.program,
        best.parts,
        min(o.solution.bound for o, _ in open_) * unit_s,
        best.timeline,
        memory,
        limit,
        tuple(map(candidate, found.options)),
        context.without_rule,
        time.monotonic() - started,
        _warnings(priced),
        context.pins,
        options=found.options,
        step_bound_s=min(best.timeline.end, *(bound for _, bound in open_)) * unit_s,
    )


def _warnings(priced: PricedProblem) -> tuple[str, ...]:
    """Names the dimensions that the devices do not divide, where that leaves the inputs uncut."""
    n, graph = priced.machine.mesh.devices, priced.graph
    fed = [graph.tensors[t] for t in graph.inputs]
    batches = [t for t in fed if t.shape and t.shape[0] > 1]
    if n == 1 or all((t.shape or (n,))[0] % n == 0 for t in batches):
        return ()
    uneven: dict[int, str] = {}
    for t in (*batches, *graph.parameters):
        for axis, size in enumerate(t.shape or ()):
            if size > 1 and size % n:
                uneven.setdefault(size, f"{size} ({t.name} dimension {axis})")
    names = list(uneven.values())
    more = f" and {len(names) - 8} more" if len(names) > 8 else ""
    return (
        f"{n} devices do not divide {', '.join(names[:8])}{more}: such dimensions are split over fewer devices "
        f"or not at all; a batch that {n} divides (--batch) uses them all",
    )


def _not_faster(request: Request, found: Found, outcome: Judged) -> NotFasterError:
    known, unit_s = request.known_step_s or 0.0, request.profile.price_resolution_s
    bounds = [b for o, b in zip(found.options, outcome.bounds, strict=True) if not o.infeasible]
    return NotFasterError(
        f"no plan was found whose step is shorter than {known:.6g} s, which is known",
        min(known, *(b * unit_s for b in bounds)) if bounds else known,
    )


def _infeasible(
    request: Request, options: list[Option], limit: int | None, note: str, control: Control
) -> InfeasibleError:
    found: list[tuple[int, Fitted | None]] = []
    hurry = Control(EXPLAIN_SECONDS) if control.stopped else control

    def explain() -> None:
        for option in options:
            assert option.priced is not None
            bound = minimum_memory(option.priced.problem, deadline=hurry.deadline).lower_bound
            # Where prices on memory were raised as far as makes sense, what they led to holds as little as is known.
            least = option.smallest or smallest(option.priced, hurry, request.solver, brief=True)
            found.append((bound, least))

    run_until_stopped(explain, hurry)
    # What was not looked at has the bound that the search has proven.
    rest = [_least_held(option, limit) for option in options[len(found) :]]
    bound = min([least for least, _ in found] + rest)
    sufficient = min((fitted.held for _, fitted in found if fitted is not None), default=None)
    enough = (
        "no limit was shown to suffice"
        if sufficient is None
        else f"a limit of {_gib(sufficient)} ({sufficient} bytes) suffices, as a plan shows"
    )
    proven = bound > (limit or 0)
    return InfeasibleError(
        f"{'cannot fit' if proven else 'no plan was found that fits'}: the memory limit is {_gib(limit or 0)} per "
        f"device{note}; {enough}, and nothing fits below {_gib(bound)} ({bound} bytes), as is proven. Raise "
        f"--memory-limit, use more --devices, a smaller --batch, or an --optimizer with less state (momentum, sgd)",
        lower_bound_bytes=bound,
        sufficient_bytes=sufficient,
    )


def too_large(peak: int, limit: int, where: str = "") -> InfeasibleError:
    """Of a known configuration whose fullest device, in the stage `where`, holds `peak` bytes."""
    return InfeasibleError(
        f"the strategy does not fit: a device{where} holds {_gib(peak)} ({peak} bytes) and the memory limit is "
        f"{_gib(limit)} ({limit} bytes); "
        "divide more (zero=3, tp, pp), run blocks again (recompute=full), or give a smaller micro_batch or --batch, "
        "more --devices or a larger --memory-limit",
        lower_bound_bytes=0,
        sufficient_bytes=peak,
    )


def _least_held(option: Option, limit: int | None) -> int:
    """Bytes below which the search has shown that nothing fits."""
    assert option.priced is not None
    least = least_memory(option.priced.problem)
    return max(least, (limit or 0) + 1) if option.infeasible else least


def _gib(size: int) -> str:
    """Rounded up, so that the figure may be given back as a limit."""
    return f"{-(-size * 1000 // 2**30) / 1000:.3f}GiB"
