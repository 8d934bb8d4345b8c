"""From a graph and a cluster to the best plan over all logical meshes."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from cost_models import HardwareProfile, usable_memory_bytes
from planner.errors import InfeasibleError, NoPlanError, UsageError
from planner.ir import DeviceMesh, Graph
from planner.lowering import Program, lower
from planner.planning.breakdown import CostBreakdown, breakdown
from planner.planning.meshes import logical_meshes
from planner.planning.simulate import simulate
from planner.pricing import Assignment, Machine, PricedProblem, Settings, active_tensors, bind_rules, price
from planner.pricing.memory import recomputed_blocks
from planner.rules.rule import Rule
from planner.search.evaluate import peak_memory
from planner.search.memory import minimum_memory
from planner.search.problem import Solution
from planner.search.solve import solve

__all__ = ["Candidate", "Planned", "Request", "make_plan", "on_nodes"]

Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Request:
    """What to plan for.  `meshes` None: every one- and two-dimensional mesh; `memory_limit` in bytes per device,
    None: what the profile leaves usable; `time_limit` in seconds for the whole search, None: none; `recompute`
    auto: of the blocks of equal layers, on meshes where nothing fits without."""

    devices: int
    profile: HardwareProfile
    settings: Settings
    meshes: tuple[DeviceMesh, ...] | None = None
    memory_limit: int | None = None
    solver: Literal["auto", "dp", "ilp"] = "auto"
    time_limit: float | None = None
    recompute: Literal["auto", "none", "blocks"] = "auto"


@dataclass(frozen=True, slots=True)
class Candidate:
    """Outcome of the search on one mesh; costs in seconds, None where there is no choice."""

    mesh: DeviceMesh
    recompute: bool
    status: str
    objective_s: float | None
    bound_s: float
    solver: str


@dataclass(frozen=True, eq=False)
class Planned:
    """The best plan and what is known of it.  `bound_s` bounds the objective over all meshes considered."""

    request: Request
    priced: PricedProblem
    solution: Solution
    assignment: Assignment
    program: Program
    parts: CostBreakdown
    bound_s: float
    step_time_s: float
    peak_memory_bytes: int
    memory_limit: int | None
    candidates: tuple[Candidate, ...]
    without_rule: tuple[str, ...]
    search_seconds: float
    warnings: tuple[str, ...] = field(default=())

    @property
    def mesh(self) -> DeviceMesh:
        return self.priced.machine.mesh

    @property
    def objective_s(self) -> float:
        return self.parts.total * self.priced.machine.unit_s

    @property
    def gap(self) -> float:
        """(objective - bound) / objective of the additive objective, over all meshes considered."""
        return max(0.0, (self.objective_s - self.bound_s) / self.objective_s) if self.objective_s else 0.0


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


def make_plan(graph: Graph, request: Request, progress: Progress | None = None) -> Planned:
    """Searches every mesh and returns the plan of least additive objective.

    InfeasibleError where no mesh has a plan within the memory limit, with the smallest limit shown to suffice
    and the proven bound; NoPlanError where the time limit ends the search first.
    """
    started = time.monotonic()
    say = progress or (lambda _: None)
    rules, without_rule = bind_rules(graph)
    active = active_tensors(graph, rules) if request.settings.training else frozenset()
    limit = usable_memory_bytes(request.profile) if request.memory_limit is None else request.memory_limit
    meshes = request.meshes or logical_meshes(request.devices)
    best: tuple[PricedProblem, Solution] | None = None
    candidates: list[Candidate] = []
    infeasible: list[PricedProblem] = []
    options = [(mesh, request.recompute == "blocks" and request.settings.training) for mesh in meshes]
    while options:
        mesh, recompute = options.pop(0)
        left = None if request.time_limit is None else request.time_limit - (time.monotonic() - started)
        if left is not None and left <= 0 and candidates:
            candidates.append(Candidate(mesh, recompute, "unknown", None, 0.0, ""))
            continue
        machine = Machine(request.profile, mesh, replace(request.settings, recompute=recompute))
        priced = price(graph, machine, rules, active, limit)
        solution = solve(priced.problem, solver=request.solver, time_limit=left)
        unit = machine.unit_s
        objective = None if solution.cost is None else solution.cost * unit
        candidates.append(
            Candidate(mesh, recompute, solution.status, objective, solution.bound * unit, solution.solver)
        )
        say(f"mesh {mesh}{' with recomputation' if recompute else ''}: {_outcome(candidates[-1])}")
        if solution.status == "infeasible":
            infeasible.append(priced)
            if request.recompute == "auto" and not recompute and active and recomputed_blocks(graph):
                options.append((mesh, True))
        if solution.cost is not None and (best is None or solution.cost < (best[1].cost or 0)):
            best = priced, solution
    if best is None:
        if len(infeasible) < len(candidates):
            within = "" if request.time_limit is None else f" within {request.time_limit:g} s"
            raise NoPlanError(f"no plan was found{within}; give a longer --time-limit")
        raise _infeasible(infeasible, limit)
    return _finish(request, *best, candidates, without_rule, limit, started, rules, active)


def _outcome(c: Candidate) -> str:
    if c.objective_s is None:
        return c.status
    return f"objective {c.objective_s:.6g} s, bound {c.bound_s:.6g} s ({c.status})"


def _finish(
    request: Request,
    priced: PricedProblem,
    solution: Solution,
    candidates: list[Candidate],
    without_rule: list[str],
    limit: int | None,
    started: float,
    rules: Mapping[str, Rule],
    active: frozenset[str],
) -> Planned:
    assignment = priced.decode(solution.choice)
    program = lower(priced.graph, priced.machine.mesh, rules, active, assignment)
    parts = breakdown(priced, solution.choice, program)
    if solution.cost is None or parts.total > solution.cost:
        raise AssertionError(f"pricing and lowering differ: program {parts.total}, choice {solution.cost}")
    # Infeasible meshes hold no plan, so they do not lower the bound.
    bound = min(c.bound_s for c in candidates if c.status != "infeasible")
    return Planned(
        request,
        priced,
        solution,
        assignment,
        program,
        parts,
        bound,
        simulate(priced, solution.choice, program) * priced.machine.unit_s,
        peak_memory(priced.problem, solution.choice),
        limit,
        tuple(candidates),
        tuple(without_rule),
        time.monotonic() - started,
        _warnings(priced),
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


def _infeasible(problems: list[PricedProblem], limit: int | None) -> InfeasibleError:
    found = [minimum_memory(p.problem) for p in problems]
    bound = min(m.lower_bound for m in found)
    sufficient = min((m.achieved for m in found if m.achieved is not None), default=None)
    enough = (
        "no limit was shown to suffice"
        if sufficient is None
        else f"a limit of {_gib(sufficient)} ({sufficient} bytes) suffices, as a plan shows"
    )
    return InfeasibleError(
        f"cannot fit: the memory limit is {_gib(limit or 0)} per device; {enough}, and nothing fits below "
        f"{_gib(bound)} ({bound} bytes), as is proven. Raise --memory-limit, use more --devices, a smaller --batch, "
        f"or an --optimizer with less state (momentum, sgd)",
        lower_bound_bytes=bound,
        sufficient_bytes=sufficient,
    )


def _gib(size: int) -> str:
    """Rounded up, so that the figure may be given back as a limit."""
    return f"{-(-size * 1000 // 2**30) / 1000:.3f}GiB"
