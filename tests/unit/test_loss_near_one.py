"""Gradients of cross-entropies where the label's probability is one to all digits but the last few."""

from __future__ import annotations

import numpy as np
import pytest

from planner.ir import Op
from planner.kernels.gradients import vjp
from planner.verify.pipeline import verify_pipeline
from tests.unit.test_verify_pipeline import plan_of, staged_of


@pytest.mark.parametrize("lead", [10.0, 25.0, 35.0])
def test_the_gradient_of_the_label_is_less_those_of_the_others(lead: float) -> None:
    scores = np.array([[lead, 0.25, -0.5, 0.125], [0.5, -1.0, lead + 1, 0.75]])
    labels = np.array([0, 2])
    op = Op("l", "SoftmaxCrossEntropyLoss", ("s", "labels"), ("l",), {"reduction": "sum"}, 20)
    (dx, _) = vjp(op, [scores, labels], [np.zeros(())], [np.ones(())], [True, False])
    assert dx is not None
    own = scores[np.arange(2), labels]
    ratios = np.exp(scores - own[:, None])
    ratios[np.arange(2), labels] = 0.0
    others = ratios.sum(axis=1)
    np.testing.assert_allclose(dx[np.arange(2), labels], -others / (1 + others), rtol=1e-14)


@pytest.mark.parametrize("seed", [1, 2, 10])
def test_shards_of_such_a_gradient_are_those_of_the_whole(seed: int) -> None:
    graph, plan = plan_of("gpt_tiny", 2, 4)
    verdict = verify_pipeline(staged_of(graph, plan), seed=seed)
    assert (verdict.failures, verdict.unproved) == ((), ())
