"""How PyTorch runs operators: whole, and under every strategy of one axis, against the kernels that prove plans."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from planner.ir import DeviceMesh
from planner.rules import rule_for, strategies
from tests.rules.cases import FAMILIES
from tests.rules.cases.values import restart
from tests.rules.prover import Case, Cuts, _whole_gradients

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.peer

from tests.runtime.virtual import check  # noqa: E402  it imports torch

ANY_ORDER = {("TopK", "sorted")}  # results that may come in any order, by the attribute that is zero
PER_CASE = 12  # strategies of a case that are run


def _cases(family: Callable[[], Iterator[Case]]) -> list[Case]:
    restart()
    return [s for s in family() if rule_for(s.op, s.graph) is not None and _plain(s)]


def _plain(s: Case) -> bool:
    """Of element types that PyTorch computes with, with results in a fixed order."""
    values = [v for v in (*s.inputs, *s.results) if v is not None]
    typed = all(v.dtype.isbuiltin == 1 and v.dtype.name not in ("uint16", "uint32", "uint64") for v in values)
    return typed and not any(s.op.type == t and s.op.attributes.get(a) == 0 for t, a in ANY_ORDER)


@pytest.mark.parametrize("family", FAMILIES, ids=lambda f: f.__name__)
def test_ranks_compute_what_the_whole_operator_computes(family: Callable[[], Iterator[Case]]) -> None:
    """Forward, and backward where the operator has a gradient."""
    wrong: list[str] = []
    run = 0
    for subject in _cases(family):
        dy, whole = _gradients(subject)
        mesh = DeviceMesh.of(2)
        cuts = Cuts(mesh, 7)
        trained = dict.fromkeys(strategies(subject.rule, mesh, training=True)) if whole else {}
        offered = {**dict.fromkeys(strategies(subject.rule, mesh, training=False)), **trained}
        for strategy in list(offered)[:PER_CASE]:
            back = strategy in trained
            try:
                run += check(subject, strategy, cuts, dy if back else [], whole if back else [])
            except Exception as error:
                wrong.append(f"{subject.name}, {strategy.text(mesh)}: {type(error).__name__}: {error}")
    assert not wrong, "\n".join(wrong[:20])
    assert run or family.__name__ == "long_tail"


def _gradients(subject: Case) -> tuple[list[Any], list[Any]]:
    try:
        dy, whole = _whole_gradients(subject, subject.rule)
    except Exception:  # without a vector-Jacobian product there is nothing to compare with
        return [], []
    return (dy, whole) if any(w is not None for w in whole) else ([], [])
