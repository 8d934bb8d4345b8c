"""Proof of a plan: its program is executed on virtual devices and compared with the whole model.

Outputs are compared with ONNX Runtime's on the unsharded graph; gradients of all parameters with a reverse
sweep over the unsharded graph.  The error of a tensor is its largest absolute difference, relative to the
largest absolute value of the reference.  Some gradients are zero in exact arithmetic (a bias that softmax
cancels) and pure rounding in practice, so the reference's scale is taken as at least a thousandth of the median
over all parameters.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np

from planner.errors import VerificationError
from planner.lowering import Program
from planner.verify.data import random_tensors
from planner.verify.execute import VirtualDevices
from planner.verify.reference import gradients, run_ops, run_whole
from planner.verify.shards import Array

__all__ = ["FORWARD_TOLERANCE", "GRADIENT_TOLERANCE", "Verdict", "verify_program"]

# Single precision through tens of layers; a wrong layout, a missing reduction or a wrong scale is off by
# tens of percent at the least.
FORWARD_TOLERANCE = 1e-3
GRADIENT_TOLERANCE = 1e-2


@dataclass(frozen=True, slots=True)
class Verdict:
    """`worst` names the tensor of the largest error; `failures` say what is wrong where `ok` is false."""

    ok: bool
    max_error: float
    worst: str
    devices: int
    checked: tuple[str, ...]
    outputs: int
    parameters: int
    failures: tuple[str, ...] = ()


def verify_program(program: Program, *, seed: int = 0, progress: Callable[[int, int], None] | None = None) -> Verdict:
    """Executes the program and compares; gradients too where it computes them."""
    graph = program.graph
    values = random_tensors(graph, seed)
    devices = VirtualDevices(program, values, progress)
    errors: dict[str, tuple[float, float]] = {}
    failures: list[str] = []
    expected = run_whole(graph, values)
    checked = ["forward"]
    wanted: dict[str, Array] = {}
    if program.active:
        activations = run_ops(graph, values)
        names = set(program.final_gradients)
        wanted = gradients(graph, values, activations, names, active=program.active)
        del activations
        checked.append("gradients")
    devices.run()
    for name, reference in expected.items():
        _compare(errors, failures, name, partial(devices.value, name), reference, FORWARD_TOLERANCE)
    scales = [float(np.abs(g).max(initial=0.0)) for g in wanted.values()]
    floor = 1e-3 * float(np.median(scales)) if scales else 0.0
    for name, reference in wanted.items():
        compute = partial(devices.parameter_gradient, name)
        _compare(errors, failures, f"gradient of {name}", compute, reference, GRADIENT_TOLERANCE, floor)
    worst = max(errors, key=lambda n: errors[n][0] / errors[n][1], default="")
    return Verdict(
        not failures,
        max((e for e, _ in errors.values()), default=0.0),
        worst,
        program.mesh.devices,
        tuple(checked),
        len(expected),
        len(wanted),
        tuple(failures),
    )


def _compare(
    errors: dict[str, tuple[float, float]],
    failures: list[str],
    name: str,
    compute: Callable[[], Array],
    reference: Array,
    tolerance: float,
    floor: float = 0.0,
) -> None:
    try:
        found = compute()
    except VerificationError as e:
        failures.append(str(e))
        return
    if found.shape != reference.shape:
        failures.append(f"{name}: expected shape {reference.shape}, found {found.shape}")
        return
    error = relative_error(found, reference, floor)
    errors[name] = error, tolerance
    if not error <= tolerance:
        failures.append(f"{name}: relative error {error:.3g}, allowed {tolerance:g}")


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
