"""No rule is false: every offered strategy is executed and compared, on one- and two-dimensional meshes."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pytest

from planner.ir import DeviceMesh
from planner.rules import Rule, registered_types, registry, rule_for
from planner.rules.operator import Operator, sharded
from tests.rules.cases import FAMILIES
from tests.rules.node_cases import node_cases
from tests.rules.prover import Case, Finding, case, kernel_agrees, missing, prove

# Right by the nature of the kernel, and of no use: comparisons of random pending sums, parameters that arrive pending.
# The depth of attention's values: the scores would be computed again on every rank.
_NOT_WORTH_OFFERING = ("Attention", "Equal", "IsNaN", "Normalization", "RotaryEmbedding", "Shape", "com.microsoft")


@pytest.mark.parametrize("family", FAMILIES, ids=lambda f: f.__name__)
def test_no_strategy_gives_wrong_numbers(family: Callable[[], Iterator[Case]]) -> None:
    forward = backward = 0
    findings: list[Finding] = []
    for subject in family():
        f, b, wrong = prove(subject)
        forward, backward, findings = forward + f, backward + b, findings + wrong
    print(f"{family.__name__}: {forward} forward and {backward} backward executions, {len(findings)} wrong")
    assert not findings, "\n".join(map(str, findings[:20]))


@pytest.mark.slow
def test_no_strategy_gives_wrong_numbers_on_the_node_tests_of_onnx() -> None:
    meshes = (DeviceMesh.of(2), DeviceMesh.of(3), DeviceMesh.of(2, 2))
    forward = backward = executed = unexecuted = 0
    findings: list[Finding] = []
    for subject in node_cases():
        rule = rule_for(subject.op, subject.graph)
        if rule is None or rule.text.startswith("whole:"):
            continue
        if not kernel_agrees(subject):
            unexecuted += 1
            continue
        f, b, wrong = prove(subject, meshes)
        executed, forward, backward, findings = executed + 1, forward + f, backward + b, findings + wrong
    print(
        f"{executed} cases, {forward} forward and {backward} backward executions, {len(findings)} wrong; "
        f"{unexecuted} cases that no kernel here computes as expected"
    )
    assert not findings, "\n".join(map(str, findings[:20]))
    assert executed > 900
    assert unexecuted < 20


def test_strategies_that_would_be_right_are_offered() -> None:
    """Over one mesh axis; what remains is printed, and bounded so that a lost strategy is noticed."""
    found = []
    for family in FAMILIES:
        for subject in family():
            if not any(word in subject.op.type for word in _NOT_WORTH_OFFERING):
                found += [f"{subject.name}: {m}" for m in missing(subject, DeviceMesh.of(2))]
    print("\n".join(["right but not offered:", *found]))
    assert len(found) <= 6


def test_the_prover_catches_a_false_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    """A softmax that claims to be elementwise."""

    def claim(o: Operator) -> Rule:
        return sharded(o, "d... -> d...", linear=[(0,)], differentiable=(0,))

    monkeypatch.setitem(registry._RULES, "Softmax", claim)
    subject = case("Softmax", [np.random.default_rng(0).standard_normal((4, 6)).astype(np.float32)])
    wrong = prove(subject, [DeviceMesh.of(2)])[2]
    assert {f.strategy for f in wrong} >= {"mesh 2, d1=x", "mesh 2, +0=x"}


def test_every_family_file_registers_operators() -> None:
    assert len(registered_types()) > 200
