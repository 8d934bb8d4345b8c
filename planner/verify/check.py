"""Proof of a plan: its program is executed on virtual devices and compared with the whole model.

Outputs are compared with ONNX Runtime's on the unsharded graph (where it lacks an operator, with the same kernels
on the unsharded graph); gradients of all parameters with a reverse
sweep over the unsharded graph.  The error of a tensor is its largest absolute difference, relative to the
largest absolute value of the reference.  Some gradients are zero in exact arithmetic (a bias that softmax
cancels) and pure rounding in practice, so the scale of a value is taken as at least a thousandth of the median
over the values of its kind.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from planner.errors import VerificationError
from planner.lowering import Program
from planner.verify.data import random_tensors
from planner.verify.execute import VirtualDevices
from planner.verify.kernels import NoKernelError
from planner.verify.reference import gradients, run_ops, run_whole
from planner.verify.shards import Array

__all__ = ["FORWARD_TOLERANCE", "GRADIENT_TOLERANCE", "Verdict", "verify_program"]

# Single precision through tens of layers; a wrong layout, a missing reduction or a wrong scale is off by
# tens of percent at the least.
FORWARD_TOLERANCE = 1e-3
GRADIENT_TOLERANCE = 1e-2
ROUNDING_FACTOR = 4.0
CHAOTIC = 0.1


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
    reference = _reference(program, values)
    devices = VirtualDevices(program, values, progress)
    devices.run()
    floors = _floors(reference)
    errors: dict[_Item, float] = {}
    failures: dict[_Item, str] = {}
    for item, expected in reference.items():
        compute = devices.parameter_gradient if item.gradient else devices.value
        try:
            errors[item] = relative_error(compute(item.name), expected, floors[item.gradient])
        except VerificationError as e:
            failures[item] = str(e)
    suspects = {n: e for n, e in errors.items() if not e <= _tolerance(n)}
    if suspects:
        failures |= _beyond_rounding(devices, values, reference, suspects, floors)
    worst = max(errors, key=lambda n: errors[n] / _tolerance(n), default=_Item(""))
    return Verdict(
        not failures,
        max(errors.values(), default=0.0),
        str(worst),
        program.mesh.devices,
        ("forward", "gradients") if program.active else ("forward",),
        sum(not n.gradient for n in reference),
        sum(n.gradient for n in reference),
        tuple(failures.values()),
    )


@dataclass(frozen=True, slots=True)
class _Item:
    """A compared value: an output, or a parameter's gradient."""

    name: str
    gradient: bool = False

    def __str__(self) -> str:
        return f"gradient of {self.name}" if self.gradient else self.name


def _tolerance(item: _Item) -> float:
    return GRADIENT_TOLERANCE if item.gradient else FORWARD_TOLERANCE


def _reference(program: Program, values: Mapping[str, Array]) -> dict[_Item, Array]:
    """Outputs and gradients of the parameters of the unsharded graph."""
    activations: Mapping[str, Array] = {}
    try:
        # Sequences and maps (class labels of the ai.onnx.ml domain) are no tensors to compare.
        whole = run_whole(program.graph, values)
        found = {_Item(n): v for n, v in whole.items() if isinstance(v, np.ndarray)}
    except NoKernelError:
        # Operators that the runtime has for training builds alone: their kernels here are the reference, too.
        activations = run_ops(program.graph, values)
        found = {_Item(n): activations[n] for n in program.graph.outputs if n in activations}
    if program.active:
        activations = activations or run_ops(program.graph, values)
        wanted = set(program.final_gradients)
        gradient = gradients(program.graph, values, activations, wanted, active=program.active)
        found |= {_Item(n, True): g for n, g in gradient.items()}
    return found


def _floors(reference: Mapping[_Item, Array]) -> dict[bool, float]:
    """A thousandth of the median scale, of outputs and of gradients."""
    scales: dict[bool, list[float]] = {False: [], True: []}
    for item, value in reference.items():
        if np.issubdtype(value.dtype, np.floating) and value.size:
            scales[item.gradient].append(float(np.abs(np.nan_to_num(value, posinf=0.0, neginf=0.0)).max()))
    return {kind: 1e-3 * float(np.median(s)) if s else 0.0 for kind, s in scales.items()}


def _beyond_rounding(
    devices: VirtualDevices,
    values: Mapping[str, Array],
    reference: Mapping[_Item, Array],
    suspects: Mapping[_Item, float],
    floors: Mapping[bool, float],
) -> dict[_Item, str]:
    """Those of the suspects that rounding does not explain.

    Some graphs magnify rounding (a variance as a difference of squares, a steep softmax).  How much is measured:
    the unsharded graph runs again with every float moved by at most one unit in the last place.  An execution rounds
    so at every operator, not only at the start, hence the square root; an error within a few times that is no
    evidence against the plan.  Where rounding alone moves a tenth (quantised values flip from one step to the next)
    the outputs must instead agree with the same kernels on the unsharded graph.
    """
    program = devices.program
    rng = np.random.default_rng(1)
    moved = {n: _moved(v, rng) if np.issubdtype(v.dtype, np.floating) else v for n, v in values.items()}
    again = _reference(program, moved)
    found = {}
    for item, error in suspects.items():
        noise = relative_error(again[item], reference[item], floors[item.gradient])
        allowed = max(_tolerance(item), ROUNDING_FACTOR * len(program.graph.ops) ** 0.5 * noise)
        if noise > CHAOTIC:
            allowed = _tolerance(item)
            if not item.gradient:
                same_kernels = run_ops(program.graph, values)[item.name]
                error = relative_error(devices.value(item.name), same_kernels, floors[False])
        if not error <= allowed:
            found[item] = f"{item}: relative error {error:.3g}, allowed {allowed:.3g} (rounding moves {noise:.3g})"
    return found


def _moved(value: Array, rng: np.random.Generator) -> Array:
    """Whole numbers stay: an exponent of 2 that is no longer even has no power of a negative number; masks and
    counts are exact, too."""
    info = np.finfo(value.dtype)
    factor = 1 + rng.uniform(-1, 1, value.shape) * float(info.eps)
    near = np.clip(value * factor, float(info.min), float(info.max))
    return np.asarray(np.where(np.rint(value) == value, value, near), dtype=value.dtype)


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
