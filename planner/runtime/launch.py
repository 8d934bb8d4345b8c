"""Runs a plan: on processes started here, or, under torchrun, as one rank of those it started."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from planner.errors import UsageError, VerificationError
from planner.frontends import load_model
from planner.ir import Graph
from planner.kernels.shards import Array
from planner.planning import PlanDocument
from planner.planning.programs import program_of
from planner.runtime.hosted import hosted, hosted_text
from planner.runtime.session import Results, Session, Traffic, micro_batch_values
from planner.runtime.workers import Workers, device_of, join_group
from planner.verify.check import FORWARD_TOLERANCE, GRADIENT_TOLERANCE, relative_error
from planner.verify.data import random_tensors
from planner.verify.reference import gradients, run_ops

__all__ = ["RunResult", "run_plan", "under_torchrun"]


@dataclass(frozen=True, slots=True)
class RunResult:
    """Of one run, on the rank that reports it.

    `errors`: largest relative error of outputs and of gradients against the whole model on one process, None where
    nobody asked; `passed`: whether they lie within the tolerances of `planner verify`.
    """

    seconds: tuple[float, ...]
    traffic: Traffic
    fallbacks: frozenset[str]
    loss: float | None
    errors: Mapping[str, float] | None
    passed: bool


class _Torchrun:
    """The ranks that torchrun started, seen from one of them: a call is carried out here, its result gathered."""

    def __init__(self, device: str, threads: int) -> None:
        torch.set_num_threads(threads)
        rank, self.count = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        where = device_of(device, int(os.environ.get("LOCAL_RANK", rank)))
        self.context = join_group(where, rank, self.count, "env://")
        self.disturbance = 0.0

    def __enter__(self) -> _Torchrun:
        return self

    def __exit__(self, *_: object) -> None:
        dist.destroy_process_group()

    def call(self, function: Any, *arguments: Any) -> list[Any]:
        found: list[Any] = [None] * self.count
        dist.all_gather_object(found, function(self.context, *arguments))
        return found


def under_torchrun() -> bool:
    """Whether this process is a rank that torchrun started."""
    return all(v in os.environ for v in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"))


def run_plan(
    model: Path, plan: PlanDocument, *, device: str = "cpu", threads: int = 1, steps: int = 3, seed: int = 0,
    check: bool = False, as_planned: bool = False, say: Callable[[str], None] | None = None,
) -> RunResult | None:  # fmt: skip
    """Runs `steps` steps of the plan on random parameters and inputs; None on ranks that do not report.  Operators that
    would run on the host are named to `say` before anything is started; on GPUs they are refused.  Steps are computed
    in the model's types or, `as_planned`, in the plan's precision.

    Raises:
        InputError: the plan is not for this model.
        UsageError: operators would run on the host of GPUs; the number of processes is not the plan's, or there are
            too few GPUs.
        VerificationError: ranks disagree, or communicate something else than planned.
    """
    bind, count = plan.model.bind, plan.devices
    program = program_of(plan, load_model(model, bind=bind, batch=plan.model.batch))  # refuses before anything starts
    on_host = hosted(program)
    if on_host and device == "cuda":
        raise UsageError(
            f"--device cuda: PyTorch has no function here for {hosted_text(on_host)}; run the plan on the CPU "
            f"(--device cpu), pin these operators to another split, or register a function (docs/architecture.md)"
        )
    if on_host and say is not None:
        say(f"on the host, for want of a PyTorch function: {hosted_text(on_host)}")
    if device == "cuda" and torch.cuda.device_count() == 0:
        raise UsageError("--device cuda: this machine has no GPU that PyTorch sees; leave it out for the CPU")
    started = under_torchrun()
    if started and not all(os.environ[v].isdecimal() for v in ("RANK", "WORLD_SIZE", "MASTER_PORT")):
        raise UsageError(
            "RANK, WORLD_SIZE and MASTER_PORT: expected numbers, as torchrun sets them; unset them otherwise"
        )
    if started and int(os.environ["WORLD_SIZE"]) != count:
        raise UsageError(
            f"the plan is for {count} devices, and torchrun started {os.environ['WORLD_SIZE']}; "
            f"start {count} (--nproc-per-node, --nnodes)"
        )
    workers: Any = _Torchrun(device, threads) if started else Workers(count, device=device, threads=threads)
    with workers:
        session = Session(workers, model, plan, seed=seed, as_planned=as_planned)
        seconds = tuple(session.step(steps))
        results = session.results()
        traffic = session.traffic()
        if started and workers.context.rank:
            return None
    if traffic.executed != traffic.planned:
        raise VerificationError(f"executed {dict(traffic.executed)} but planned {dict(traffic.planned)}")
    errors = _errors(session.graph, results, seed, plan.schedule.micro_batches) if check else None
    passed = errors is None or (errors["outputs"] < FORWARD_TOLERANCE and errors["gradients"] < GRADIENT_TOLERANCE)
    return RunResult(seconds, traffic, results.fallbacks, _loss(session.graph, results), errors, passed)


def _loss(graph: Graph, results: Results) -> float | None:
    value = results.outputs.get(graph.loss) if graph.loss is not None else None
    return None if value is None else float(np.asarray(value).sum())


def _errors(graph: Graph, results: Results, seed: int, micro_batches: int) -> dict[str, float]:
    """Largest relative errors against the whole model, run by the kernels that prove plans: outputs of the first
    micro-batch, and the mean of all micro-batches' gradients."""
    drawn = random_tensors(graph, seed)
    outputs: dict[str, Array] = {}
    truth: dict[str, Array] = {}
    for m in range(micro_batches):
        values = micro_batch_values(graph, drawn, seed, m)
        whole = run_ops(graph, values)
        outputs = outputs or {n: whole[n] for n in results.outputs}
        found = gradients(graph, values, whole, list(results.gradients)) if results.gradients else {}
        truth = {n: truth.get(n, 0) + g / micro_batches for n, g in found.items()}
    floor = 1e-3 * float(np.median([np.abs(g).max() for g in truth.values()])) if truth else 0.0
    return {"outputs": _worst(results.outputs, outputs, 0.0), "gradients": _worst(results.gradients, truth, floor)}


def _worst(found: Mapping[str, Array], truth: Mapping[str, Array], floor: float) -> float:
    return max((relative_error(found[n], v, floor) for n, v in truth.items()), default=0.0)
