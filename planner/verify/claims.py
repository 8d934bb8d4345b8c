"""What only the search knows, held against what is known of it: bounds, the meshes that it tried, what was asked."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from planner.cost_models import usable_memory_bytes
from planner.planning import PlanDocument, Planned
from planner.planning.constraints import Constraints
from planner.planning.meshes import logical_meshes
from planner.planning.pipeline.plan import micro_batches
from planner.planning.searched import CandidateDocument
from planner.pricing.memory import recomputed_blocks
from planner.verify.fields import Difference
from planner.verify.label import verification_differences

__all__ = ["claims"]

# Statuses of a mesh, and whether it has a plan then.
_STATUSES: Final = {
    "optimal": True, "feasible": True, "infeasible": False, "unknown": False, "pins do not fit": False,
    "pins contradict": False,
}  # fmt: skip
_CLOSED: Final = ("infeasible", "pins do not fit", "pins contradict")  # no plan is there, so that no bound counts


def claims(plan: PlanDocument, planned: Planned, constraints: Constraints | None) -> Iterator[Difference]:
    """Claims of the plan that cannot be.  `constraints`: what was forced."""
    yield from _bound(plan)
    yield from _candidates(plan, planned, constraints)
    yield from _limits(plan, planned, constraints)
    yield from _request(plan, planned, constraints)
    yield from verification_differences(plan)


def _unless(right: bool, path: str, expected: object, found: object) -> Iterator[Difference]:
    if not right:
        yield Difference(path, str(expected), str(found))


def _bound(plan: PlanDocument) -> Iterator[Difference]:
    cost = plan.cost
    bound = cost.objective_lower_bound_s
    yield from _unless(
        0 <= bound <= cost.objective_s,
        "cost.objective_lower_bound_s",
        f"at most the objective, {cost.objective_s}",
        bound,
    )
    yield from _unless(
        _is_multiple(bound, cost.price_resolution_s),
        "cost.objective_lower_bound_s",
        f"a multiple of {cost.price_resolution_s}",
        bound,
    )
    yield from _unless(
        0 <= cost.step_time_lower_bound_s <= cost.step_time_s,
        "cost.step_time_lower_bound_s",
        f"at most the step time, {cost.step_time_s}",
        cost.step_time_lower_bound_s,
    )


def _is_multiple(seconds: float, unit: float) -> bool:
    return not unit or round(seconds / unit) * unit == seconds


def _candidates(plan: PlanDocument, planned: Planned, constraints: Constraints | None) -> Iterator[Difference]:
    tried, cost = plan.search.candidates, plan.cost
    for i, c in enumerate(tried):
        yield from _candidate(c, f"search.candidates[{i}]", cost.price_resolution_s)
    always = _always_recomputed(plan, constraints)
    again = bool(plan.schedule.recompute) or (always is True and not recomputed_blocks(planned.priced.graph))
    own = [c for c in tried if c.mesh == str(plan.mesh) and c.recompute == again]
    if len(own) != 1:
        what = f"mesh {plan.mesh} {'with' if again else 'without'} recomputation, once"
        yield Difference("search.candidates", what, f"{len(own)} times")
        return
    index = next(i for i, c in enumerate(tried) if c is own[0])
    path = f"search.candidates[{index}]"
    yield from _unless(
        own[0].objective_s == cost.objective_s, f"{path}.objective_s", cost.objective_s, own[0].objective_s
    )
    proven = "optimal" if cost.gap == 0 else "feasible"
    yield from _unless(plan.search.status == proven, "search.status", proven, plan.search.status)
    open_bounds = [c.bound_s for c in tried if c.status not in _CLOSED]
    least = min(open_bounds, default=None)
    yield from _unless(
        cost.objective_lower_bound_s == least,
        "cost.objective_lower_bound_s",
        f"the least of the meshes', {least}",
        cost.objective_lower_bound_s,
    )
    yield from _meshes(plan, planned, constraints)


def _always_recomputed(plan: PlanDocument, constraints: Constraints | None) -> bool | None:
    """Whether it was asked that blocks be run again on every mesh; None where the plan does not say."""
    requested = plan.search.request
    if requested is None or requested.strategy is not None:
        return None
    job = None if constraints is None else constraints.job
    way = requested.recompute if job is None or job.recompute is None else job.recompute
    return way == "blocks" and plan.schedule.mode == "training"


def _candidate(c: CandidateDocument, path: str, unit: float) -> Iterator[Difference]:
    if c.status not in _STATUSES:
        yield Difference(f"{path}.status", f"one of {', '.join(_STATUSES)}", c.status)
        return
    has = c.objective_s is not None
    yield from _unless(has == _STATUSES[c.status], f"{path}.objective_s", f"that of a mesh {c.status}", c.objective_s)
    yield from _unless(
        c.bound_s >= 0 and _is_multiple(c.bound_s, unit), f"{path}.bound_s", f"a multiple of {unit}", c.bound_s
    )
    if c.objective_s is not None:
        yield from _unless(
            c.objective_s >= 0 and _is_multiple(c.objective_s, unit),
            f"{path}.objective_s",
            f"a multiple of {unit}",
            c.objective_s,
        )
        expected = f"{'the' if c.status == 'optimal' else 'less than the'} objective, {c.objective_s}"
        right = c.bound_s == c.objective_s if c.status == "optimal" else c.bound_s < c.objective_s
        yield from _unless(right, f"{path}.bound_s", expected, c.bound_s)
    elif c.status in _CLOSED:
        yield from _unless(c.bound_s == 0, f"{path}.bound_s", f"0, as of a mesh {c.status}", c.bound_s)


def _meshes(plan: PlanDocument, planned: Planned, constraints: Constraints | None) -> Iterator[Difference]:
    """The meshes that were tried are those that were asked for, each once, and again with recomputation behind it."""
    requested, mesh = plan.search.request, plan.mesh
    found = [(c.mesh, c.recompute) for c in plan.search.candidates]
    for i, pair in enumerate(found):
        if pair in found[:i] or (pair[0] in [m for m, _ in found[:i]] and found[i - 1] != (pair[0], False)):
            yield Difference(f"search.candidates[{i}]", "every mesh once, and again with recomputation", str(pair[0]))
    always = _always_recomputed(plan, constraints)
    for i, (name, recompute) in enumerate(found):
        first = name not in [m for m, _ in found[:i]]
        if always is not None and recompute != (always or not first):
            yield Difference(f"search.candidates[{i}].recompute", str(not recompute), str(recompute))
    every = [str(m) for m in logical_meshes(mesh.devices)]
    allowed = [every]
    if requested is None:
        return
    if constraints is not None and constraints.meshes:
        named = ["x".join(map(str, shape)) for shape in dict.fromkeys(constraints.meshes)]
        every = [m for m in named if _devices(m) == mesh.devices]
        allowed = [every]
    if requested.mesh is not None:
        allowed.append([requested.mesh.lower()])
        yield from _unless(requested.mesh.lower() == str(mesh), "search.request.mesh", str(mesh), requested.mesh)
    tried = list(dict.fromkeys(m for m, _ in found))
    yield from _unless(tried in allowed, "search.candidates", " or ".join(map(", ".join, allowed)), ", ".join(tried))


def _devices(mesh: str) -> int:
    product = 1
    for size in mesh.split("x"):
        product *= int(size)
    return product


def _limits(plan: PlanDocument, planned: Planned, constraints: Constraints | None) -> Iterator[Difference]:
    limit, requested = plan.cluster.memory_limit_bytes, plan.search.request
    peak = plan.cost.peak_memory_bytes
    yield from _unless(
        limit is None or peak <= limit, "cluster.memory_limit_bytes", f"at least the peak, {peak}", limit
    )
    if requested is None:
        return
    given = requested.memory_limit
    job = None if constraints is None else constraints.job
    if job is not None and job.memory_limit is not None:
        given = min(job.memory_limit, given or job.memory_limit)
    expected = usable_memory_bytes(planned.request.profile) if given is None else given
    yield from _unless(limit == expected, "cluster.memory_limit_bytes", expected, limit)


def _request(plan: PlanDocument, planned: Planned, constraints: Constraints | None) -> Iterator[Difference]:
    """What was asked for is what was planned, where the request says it."""
    requested, schedule = plan.search.request, plan.schedule
    if requested is None:
        return
    graph = planned.priced.graph
    mode = ("training" if graph.loss is not None else "inference") if requested.mode is None else requested.mode
    pairs: list[tuple[str, object, object]] = [
        ("devices", plan.cluster.devices, requested.devices),
        ("optimizer", schedule.optimizer, requested.optimizer),
        ("precision", schedule.precision, requested.precision),
        ("target", schedule.target, requested.target),
        ("mode", schedule.mode, mode),
        ("bind", dict(plan.model.bind), dict(requested.bind)),
    ]
    if requested.profile is None:
        pairs.append(("hardware", plan.cluster.hardware, requested.hardware))
    job = None if constraints is None else constraints.job
    if requested.strategy is None and (job is None or not job.stages):
        pairs.append(("stages", schedule.stages, requested.stages))
    if requested.strategy is None and (job is None or not job.micro_batches):
        if requested.micro_batches is not None:
            pairs.append(("micro_batches", schedule.micro_batches, requested.micro_batches))
        elif plan.model.batch is not None or schedule.stages == 1:
            total = (plan.model.batch or 1) * schedule.micro_batches
            usual = micro_batches(total, schedule.stages, None, plan.mesh.devices)
            pairs.append(("micro_batches", schedule.micro_batches, usual))
    batch = requested.batch if job is None or job.batch is None else job.batch
    if batch is not None:
        planned_batch = None if plan.model.batch is None else plan.model.batch * schedule.micro_batches
        pairs.append(("batch", planned_batch, batch))
    elif schedule.micro_batches == 1:
        pairs.append(("batch", plan.model.batch, None))
    for name, planned_as, said in pairs:
        yield from _unless(planned_as == said, f"search.request.{name}", planned_as, said)
    recompute = requested.recompute if job is None or job.recompute is None else job.recompute
    if requested.strategy is not None and requested.recompute != "auto":
        yield Difference(
            "search.request.recompute", "auto, as the strategy says what is run again", requested.recompute
        )
    if requested.strategy is None and recompute != "auto":
        blocks = recompute == "blocks" and schedule.mode == "training" and bool(recomputed_blocks(graph))
        words = {True: "blocks", False: "none"}
        yield from _unless(
            bool(schedule.recompute) == blocks, "search.request.recompute", words[bool(schedule.recompute)], recompute
        )
    yield from _unless(
        not requested.reproducible or requested.time_limit is None,
        "search.request.reproducible",
        "false under a time limit",
        "true",
    )
