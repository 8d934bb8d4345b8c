"""Our recurrent layers, whose backward is derived step by step, are those of ONNX Runtime."""

from __future__ import annotations

import numpy as np
import pytest

from planner.kernels.session import run_node
from planner.operators.recurrent.gradient import recurrent_forward
from tests.rules.cases.recurrent import recurrent
from tests.rules.prover import Case

TIME_FIRST = [c for c in recurrent() if not c.op.attributes.get("layout")]


@pytest.mark.parametrize("case", TIME_FIRST, ids=lambda c: c.name[:60])
def test_states_agree(case: Case) -> None:
    for mine, theirs in zip(recurrent_forward(case.op, case.inputs), run_node(case.op, case.inputs), strict=False):
        if theirs is not None:
            np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=1e-4)
