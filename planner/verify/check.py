"""Proof of a plan: its program is executed on virtual devices beside the whole model, and everything is compared.

`verify_program` draws parameters and inputs, runs `planner.verify.proof` on them in double precision and gives a
verdict: *ok*, *failed* with what is wrong, or *no verdict* with the operators that prove nothing on these values.

`relative_error` and the two tolerances are for executions in single precision (`planner run`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np

from planner.kernels import NoKernelError
from planner.kernels.gradients import NoVjpError
from planner.kernels.shards import Array
from planner.lowering import Program
from planner.verify.data import Drawn, random_tensors
from planner.verify.double import in_double
from planner.verify.findings import Report
from planner.verify.proof import Proof

__all__ = ["FORWARD_TOLERANCE", "GRADIENT_TOLERANCE", "Verdict", "relative_error", "verdict_of", "verify_program"]

# Single precision through tens of layers; a wrong layout, a missing reduction or a wrong scale is off by
# tens of percent at the least.
FORWARD_TOLERANCE = 1e-3
GRADIENT_TOLERANCE = 1e-2


@dataclass(frozen=True, slots=True)
class Verdict:
    """What an execution showed.

    max_error       largest |a − b| / (|b| + median |b|) of a compared element; `worst` names where
    checked         `forward`, and `gradients` where the program computes them
    values, gradients, redistributions   how many results, contributions to gradients and conversions were compared
    parameters      gradients that arrived where their parameter is stored
    stages, micro_batches   how many were executed
    witnessed       operators, one of each kind, whose gradients finite differences agree with; of those that are
                    `unwitnessed` they say nothing
    failures        what is wrong, by object; `unproved`: what these values can show neither right nor wrong
    """

    max_error: float
    worst: str
    devices: int
    checked: tuple[str, ...]
    values: int
    gradients: int
    redistributions: int
    parameters: int
    failures: tuple[str, ...] = ()
    unproved: tuple[str, ...] = ()
    stages: int = 1
    micro_batches: int = 1
    witnessed: int = 0
    unwitnessed: tuple[str, ...] = ()

    @property
    def verdict(self) -> Literal["ok", "failed", "no verdict"]:
        if self.failures:
            return "failed"
        return "no verdict" if self.unproved else "ok"

    @property
    def ok(self) -> bool:
        return self.verdict == "ok"


def verify_program(
    program: Program,
    *,
    seed: int = 0,
    progress: Callable[[int, int], None] | None = None,
    drawn: Drawn | None = None,
) -> Verdict:
    """Executes the program beside the whole model and compares; gradients too where it computes them.  Values in
    `drawn` are used up."""
    double = in_double(program.graph)
    proof = Proof(program, random_tensors(double, seed, kept=drawn), seed)
    try:
        with np.errstate(all="ignore"):  # what is no number is said by name
            proof.run(progress)
    except (NoKernelError, NoVjpError) as e:  # of the whole model: nothing behind it can be computed
        proof.report.unproved.append(str(e))
    return verdict_of(proof.report, program, devices=program.mesh.devices)


def verdict_of(report: Report, program: Program, *, devices: int, stages: int = 1, micro_batches: int = 1) -> Verdict:
    """What the report of an execution of `program` comes to."""
    return Verdict(
        report.max_error,
        report.worst,
        devices,
        ("forward", "gradients") if program.active else ("forward",),
        report.values,
        report.gradients,
        report.redistributions,
        report.parameters,
        tuple(report.failures),
        tuple(dict.fromkeys(report.unproved)),
        stages,
        micro_batches,
        report.witnessed,
        tuple(report.unwitnessed),
    )


def relative_error(found: Array, reference: Array, floor: float = 0.0) -> float:
    """Largest absolute difference over the largest reference, at least `floor`; infinity where NaNs differ."""
    if not np.issubdtype(reference.dtype, np.inexact):
        return float(np.any(found != reference))
    if not reference.size:
        return 0.0
    if not np.array_equal(np.isfinite(found), np.isfinite(reference)):
        return float("inf")
    finite = np.isfinite(reference)
    difference = np.abs(np.where(finite, found, 0) - np.where(finite, reference, 0)).max()
    scale = max(float(np.abs(np.where(finite, reference, 0)).max()), floor)
    return float(difference / scale) if scale else float(difference)
