"""Runs a plan, and compares: on processes started here, or, under torchrun and mpirun, as one rank of those."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from planner.errors import VerificationError
from planner.frontends.resized.samples import share_of_micro_batch
from planner.ir import Graph
from planner.kernels.shards import Array
from planner.planning import PlanDocument
from planner.runtime.ready import ready, workers_for
from planner.runtime.session import Results, Session, Traffic, micro_batch_values
from planner.runtime.tried import Tried, fastest
from planner.verify.check import FORWARD_TOLERANCE, GRADIENT_TOLERANCE, relative_error
from planner.verify.data import random_tensors
from planner.verify.reference import gradients, run_ops

__all__ = ["RunResult", "run_plan"]


@dataclass(frozen=True, slots=True)
class RunResult:
    """Of one run, on the rank that reports it.

    `errors`: largest relative error of outputs and of gradients against the whole model on one process, None where
    nobody asked; `passed`: whether they lie within the tolerances of `planner verify`.  `tried`: of several plans that
    were tried, what was found of each; `chosen`: the number of the one that was run then.
    """

    seconds: tuple[float, ...]
    traffic: Traffic
    fallbacks: frozenset[str]
    loss: float | None
    errors: Mapping[str, float] | None
    passed: bool
    chosen: int = 0
    tried: tuple[Tried, ...] = ()


def run_plan(
    model: Path, plan: PlanDocument, *, device: str = "cpu", threads: int = 1, steps: int = 3, seed: int = 0,
    check: bool = False, as_planned: bool = False, say: Callable[[str], None] | None = None,
    others: Sequence[PlanDocument] = (), tell: Callable[[int, Tried], None] | None = None,
) -> RunResult | None:  # fmt: skip
    """Runs `steps` steps of the plan on random parameters and inputs; None on ranks that do not report.  Operators that
    would run on the host are named to `say` before anything is started; on GPUs they are refused.  Steps are computed
    in the model's types or, `as_planned`, in the plan's precision.  Where there are `others`, all are tried first and
    the fastest is run; `tell` gets what was found of each, with its number.

    Raises:
        InputError: the plan is not for this model.
        UsageError: operators would run on the host of GPUs; the number of processes is not the plan's, or there are
            too few GPUs.
        VerificationError: ranks disagree, or communicate something else than planned.
    """
    here = ready(model, plan, device, say)
    workers = workers_for(here, plan.devices, device, threads)
    speaks = here is None or here.reports
    chosen, tried = 0, tuple[Tried, ...]()
    with workers:
        if others:
            chosen, tried = fastest(
                workers, model, [plan, *others], device=device, as_planned=as_planned, tell=tell if speaks else None
            )
            plan = [plan, *others][chosen]
        session = Session(workers, model, plan, seed=seed, as_planned=as_planned)
        seconds = tuple(session.step(steps))
        results = session.results()
        traffic = session.traffic()
        if not speaks:
            return None
    if traffic.executed != traffic.planned:
        raise VerificationError(f"executed {dict(traffic.executed)} but planned {dict(traffic.planned)}")
    errors = _errors(session.graph, results, seed, plan.schedule.micro_batches) if check else None
    passed = errors is None or (errors["outputs"] < FORWARD_TOLERANCE and errors["gradients"] < GRADIENT_TOLERANCE)
    return RunResult(seconds, traffic, results.fallbacks, _loss(session.graph, results), errors, passed,
                     chosen, tried)  # fmt: skip


def _loss(graph: Graph, results: Results) -> float | None:
    value = results.outputs.get(graph.loss) if graph.loss is not None else None
    return None if value is None else float(np.asarray(value).sum())


def _errors(graph: Graph, results: Results, seed: int, micro_batches: int) -> dict[str, float]:
    """Largest relative errors against the whole model, run by the kernels that prove plans: outputs of the first
    micro-batch, and all micro-batches' gradients together."""
    share = share_of_micro_batch(graph, micro_batches)
    drawn = random_tensors(graph, seed)
    outputs: dict[str, Array] = {}
    truth: dict[str, Array] = {}
    for m in range(micro_batches):
        values = micro_batch_values(graph, drawn, seed, m)
        whole = run_ops(graph, values)
        outputs = outputs or {n: whole[n] for n in results.outputs}
        found = gradients(graph, values, whole, list(results.gradients)) if results.gradients else {}
        truth = {n: truth.get(n, 0) + g * share for n, g in found.items()}
    floor = 1e-3 * float(np.median([np.abs(g).max() for g in truth.values()])) if truth else 0.0
    return {"outputs": _worst(results.outputs, outputs, 0.0), "gradients": _worst(results.gradients, truth, floor)}


def _worst(found: Mapping[str, Array], truth: Mapping[str, Array], floor: float) -> float:
    return max((relative_error(found[n], v, floor) for n, v in truth.items()), default=0.0)
