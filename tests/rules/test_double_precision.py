"""Every operator that has a rule runs in double precision: float64 results, the right ones, and nothing narrow within.

The cases are those of the proof of rules.  Truth is the operator in single precision (ONNX Runtime, mostly), or what
ONNX's own test states.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache

import numpy as np
import pytest

from planner.kernels import NoKernelError, run_local
from planner.kernels.gradients import vjp
from planner.kernels.shards import Array
from planner.verify.double import double_op
from tests.rules.cases import FAMILIES
from tests.rules.cases.values import restart
from tests.rules.node_cases import node_cases
from tests.rules.prover import Case, is_floating
from tests.rules.torch_gradients.golden import Record, read

Values = list["Array | None"]

_NARROW = ("float16", "bfloat16", "float32")
_DRAWN = ("Bernoulli", "Dropout", "Multinomial", "Random")


def wide(x: Array | None) -> Array | None:
    """Not to be written to: operands belong to others."""
    if x is None or x.dtype.name not in _NARROW:
        return x
    y = x.astype(np.float64)
    y.setflags(write=False)
    return y


def problems(case: Case) -> Iterator[str]:
    if not any(x is not None and x.dtype.name in _NARROW for x in (*case.inputs, *case.results)):
        return
    op, inputs = double_op(case.op), [wide(x) for x in case.inputs]
    shapes = [None if r is None else r.shape for r in case.results]

    def run(operands: Values) -> Values:
        return run_local(op, operands, output_shapes=shapes)

    try:
        found = run(inputs)
    except NoKernelError as error:
        if not _captures(case):
            yield f"no kernel: {error}"
        return
    for j, (y, expected) in enumerate(zip(found, case.results, strict=True)):
        if expected is None:
            continue
        if y is None:
            yield f"result {j} is absent"
            continue
        named = "float64" if expected.dtype.name in _NARROW else expected.dtype.name
        if y.dtype.name != named:
            yield f"result {j} is {y.dtype.name}, not {named}"
        if not any(word in op.type for word in _DRAWN) and not _close(y, expected, case):
            again = _in_single(case, shapes, j)
            if again is None or not _close(y, again, case):
                yield f"result {j} is wrong"
    yield from _narrow(inputs, found, run)


def _captures(case: Case) -> bool:
    """Function bodies of ONNX's tests hold sub-graphs, whose outer names are no operands there."""
    return case.op.type in ("If", "Loop", "Scan") and "_expanded[" in case.name


def _in_single(case: Case, shapes: list[tuple[int, ...] | None], j: int) -> Array | None:
    try:
        return run_local(case.op, case.inputs, output_shapes=shapes)[j]
    except NoKernelError:
        return None


def _close(found: Array, expected: Array, case: Case) -> bool:
    """To the precision of the case; quantised numbers may lie on the border of two steps."""
    if found.size != expected.size:
        return False
    found = found.reshape(expected.shape)
    if expected.dtype.kind in "iu" and found.dtype.kind in "iu":
        return bool(np.all(np.abs(found.astype(np.float64) - expected.astype(np.float64)) <= 1))
    if not is_floating(expected):
        return bool(np.array_equal(found, expected))
    found, expected = found.astype(np.float64), expected.astype(np.float64)
    finite = np.isfinite(expected)
    scale = float(np.abs(expected[finite]).max(initial=0.0))
    tolerance = 2e-2 if case.half else 2e-4
    return bool(np.all(np.abs(found[finite] - expected[finite]) <= tolerance * scale + 1e-30))


def _narrow(inputs: Values, found: Values, run: Callable[[Values], Values]) -> Iterator[str]:
    """Second differences at a step of 1e-6 are 1e-12 of a smooth result, and a unit in the last place of float32 where
    something was rounded to it; that unit stays at a smaller step, while what a kink gives shrinks."""
    for i, x in enumerate(inputs):
        if x is None or x.dtype != np.float64 or not x.size:
            continue
        far, near = (_second_differences(inputs, i, x, found, run, step) for step in (1e-6, 1e-7))
        for j in far.keys() & near.keys():
            if 1e-8 < far[j] < 1e-6 and near[j] > 0.3 * far[j]:
                yield f"result {j} is rounded to single precision on the way from operand {i} ({far[j]:.1g})"


def _second_differences(
    inputs: Values, i: int, x: Array, found: Values, run: Callable[[Values], Values], size: float
) -> dict[int, float]:
    """By result: the median over its elements that move, relative to their values."""
    step = size * np.random.default_rng(0).choice([-1.0, 1.0], x.shape) * np.maximum(np.abs(x), 1e-3)
    try:
        up, down = (run([*inputs[:i], x + s * step, *inputs[i + 1 :]]) for s in (1, -1))
    except (NoKernelError, ValueError, IndexError):  # a scale of 1.999999 may give no shape
        return {}
    shares = {}
    for j, y in enumerate(found):
        a, b = up[j], down[j]
        if y is None or a is None or b is None or y.dtype.kind != "f" or not a.shape == b.shape == y.shape:
            continue
        second = np.abs((a - y) + (b - y))
        moved = np.isfinite(second) & (a != b)
        if moved.any():
            scale = np.maximum(np.abs(y[moved]), 1e-3 * float(np.abs(y[np.isfinite(y)]).max()))
            shares[j] = float(np.median(second[moved] / scale))
    return shares


@pytest.mark.parametrize("family", FAMILIES, ids=lambda f: f.__name__)
def test_families(family: Callable[[], Iterator[Case]]) -> None:
    restart()
    with np.errstate(all="ignore"):
        assert not [f"{case.name}: {p}" for case in family() for p in problems(case)]


@pytest.mark.slow
def test_node_tests_of_onnx() -> None:
    with np.errstate(all="ignore"):
        assert not [f"{case.name}: {p}" for case in node_cases() for p in problems(case)]


@pytest.mark.parametrize("type_", sorted({r.op.type for r in read()}))
def test_results_and_gradients_are_those_of_torch(type_: str) -> None:
    """Torch computed them in double precision; they are recorded in single."""
    for r in (r for r in read_once() if r.op.type == type_):
        op, inputs, seeds = double_op(r.op), [wide(x) for x in r.inputs], [wide(g) for g in r.result_gradients]
        with np.errstate(all="ignore"):
            results = run_local(op, inputs, output_shapes=[None if y is None else y.shape for y in r.results])
            gradients = vjp(op, inputs, results, seeds, [g is not None for g in r.gradients])
        for found, truth in zip((*results, *gradients), (*r.results, *r.gradients), strict=True):
            if truth is not None and is_floating(truth):
                assert found is not None
                assert found.dtype == np.float64
                scale = float(np.abs(truth).max(initial=0.0))
                np.testing.assert_allclose(found, truth, rtol=2e-6, atol=1e-6 * scale, err_msg=r.name)


@cache
def read_once() -> tuple[Record, ...]:
    return read()
