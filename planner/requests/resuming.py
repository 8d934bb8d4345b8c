"""A training goes on with the devices that are left: a plan for them, and where its state comes from."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from planner.cache import Store
from planner.checkpoint.layouts import layouts_of_plan
from planner.checkpoint.moving import TransferPlan, transfer_plan
from planner.errors import InfeasibleError, NoPlanError, UsageError
from planner.planning import PlanDocument
from planner.requests.answer import Answer
from planner.requests.cancel import Cancellation
from planner.requests.key import request_key
from planner.requests.search import SearchRequest
from planner.requests.searcher import Searcher
from planner.requests.watch import Silent

__all__ = ["Resumed", "counts_allowed", "resumed", "usable"]

_PER_SERVER = 8  # devices that each of several Ascend servers has to have (HCCL)
_ON_ONE = (1, 2, 4, 8)


@dataclass(frozen=True, slots=True)
class Resumed:
    """`answer`: the plan for `devices` of those that are left, as a search answers; `transfer`: how its state comes
    about from what the others hold; `refused`: counts of devices without a plan, and why."""

    devices: int
    answer: Answer
    plan: PlanDocument
    transfer: TransferPlan
    refused: dict[int, str]


def usable(plan: PlanDocument, lost: Collection[int]) -> list[int]:
    """The ranks whose devices can be used: on Ascend, of several servers those that are whole."""
    left = [r for r in range(plan.cluster.devices) if r not in set(lost)]
    server = plan.cluster.devices_per_server or _PER_SERVER
    if not plan.cluster.hardware.startswith("ascend") or plan.cluster.devices <= server:
        return left
    servers: dict[int, list[int]] = {}
    for r in left:
        servers.setdefault(r // server, []).append(r)
    whole = [r for ranks in servers.values() if len(ranks) == server for r in ranks]
    return whole or max(servers.values(), key=len, default=[])


def counts_allowed(plan: PlanDocument, left: int) -> list[int]:
    """Counts of devices that are tried, the largest first: what HCCL allows on Ascend; else all that are left, and the
    most among which the batch divides."""
    if plan.cluster.hardware.startswith("ascend"):
        if left >= _PER_SERVER:
            return [left - left % _PER_SERVER]
        return [max(n for n in _ON_ONE if n <= left)]
    first = next((i.shape[0] for i in plan.inputs.values() if i.shape), None)
    batch = _batch(plan) or (None if first is None else first * plan.schedule.micro_batches)
    even = next((n for n in range(left, 0, -1) if batch is None or batch % n == 0), left)
    return list(dict.fromkeys((left, even)))


def _batch(plan: PlanDocument) -> int | None:
    """Of a step, if one was asked for: a plan says that of its graph, which is a micro-batch's."""
    return None if plan.model.batch is None else plan.model.batch * plan.schedule.micro_batches


def resumed(
    plan: PlanDocument, model: Path, lost: Collection[int], *, hardware: str | None = None, store: Store | None = None,
    optimizer: str | None = None,
) -> Resumed:  # fmt: skip
    """The fastest plan for what is left, for the same job: batch, machine, precision, optimizer and target.

    Args:
        optimizer: the one whose state moves, where it is another than the plan's.

    Raises:
        UsageError: a rank that the plan does not have, or none that is left.
        InfeasibleError, NoPlanError: nothing that is allowed fits.
    """
    outside = [r for r in lost if not 0 <= r < plan.cluster.devices]
    if outside:
        raise UsageError(f"--lost {outside[0]}: the plan is for ranks 0 to {plan.cluster.devices - 1}")
    there = usable(plan, lost)
    if not there:
        raise UsageError("--lost: no device is left")
    refused: dict[int, str] = {}
    failure: Exception | None = None
    found: list[tuple[float, int, Answer, PlanDocument]] = []
    for count in counts_allowed(plan, len(there)):
        request = _request(plan, model, count, hardware)
        key = None if store is None else request_key(request)
        known = Answer.recall(store, key.of(count)) if store is not None and key is not None else None
        try:
            answer = known or Searcher(request, store, key, Cancellation(), Silent()).search(count)
        except (InfeasibleError, NoPlanError, UsageError) as e:
            refused[count], failure = str(e), e
            continue
        document = PlanDocument.model_validate_json(answer.plans[0])
        found.append((document.cost.step_time_s, count, answer, document))
    if not found:
        assert failure is not None
        raise failure
    _, count, answer, document = min(found, key=lambda f: (f[0], -f[1]))
    gone = [r for r in range(plan.cluster.devices) if r not in there]
    transfer = transfer_plan(
        layouts_of_plan(plan, "the plan"), layouts_of_plan(document, "the new plan"),
        optimizer=optimizer or plan.schedule.optimizer, lost=gone,
    )  # fmt: skip
    return Resumed(count, answer, document, transfer, refused)


def _request(plan: PlanDocument, model: Path, devices: int, hardware: str | None) -> SearchRequest:
    limit = None if hardware is not None else plan.cluster.memory_limit_bytes
    return SearchRequest(
        model=model,
        devices=str(devices),
        bind=[f"{name}={size}" for name, size in plan.model.bind.items()],
        batch=_batch(plan),
        hardware=hardware or plan.cluster.hardware,
        mode=plan.schedule.mode,
        memory_limit=limit,
        optimizer=plan.schedule.optimizer,
        precision=plan.schedule.precision,
        target=plan.schedule.target,
    )
