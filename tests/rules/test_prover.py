"""No rule is false, and hardly a strategy is missing: all are executed, on one- and two-dimensional meshes."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest

from planner.ir import DeviceMesh
from planner.rules import InnerCollective, Rule, opaque_reason, registered_types, registry
from planner.rules.operator import Operator, sharded
from tests.rules import catalogue
from tests.rules.cases import FAMILIES
from tests.rules.proof import Family, Proof, prove_everything, prove_family, prove_node_tests
from tests.rules.prover import case, prove
from tests.rules.reasons import reason_for
from tests.rules.unoffered import assignments

PAIR = DeviceMesh.of(2)
registered_types()  # rules of families are there before a test puts others in their place


def said(proof: Proof) -> str:
    operators = proof.operators.values()
    return (
        f"{sum(p.node_cases + p.own_cases + p.doubled_cases for p in operators)} cases, "
        f"{sum(p.forward for p in operators)} forward and {sum(p.backward for p in operators)} backward executions, "
        f"{len(proof.findings)} wrong; {proof.offered} assignments over one axis offered, {len(proof.missing)} not"
    )


@pytest.mark.parametrize("family", FAMILIES, ids=lambda f: f.__name__)
def test_no_strategy_gives_wrong_numbers(family: Family) -> None:
    proof = prove_family(family)
    print(f"{family.__name__}: {said(proof)}")
    assert not proof.findings, "\n".join(map(str, proof.findings[:20]))


@pytest.mark.slow
def test_no_strategy_gives_wrong_numbers_on_the_node_tests_of_onnx() -> None:
    proof = prove_node_tests()
    print(f"{proof.total} node tests, {proof.tests} proved, {proof.tests_in_part} in part: {said(proof)}")
    print("skipped:", dict(proof.tests_skipped))
    assert not proof.findings, "\n".join(map(str, proof.findings[:20]))
    assert proof.tests > 1750
    assert sum(p.splits for p in proof.operators.values()) >= 150


@pytest.mark.slow
def test_strategies_that_would_be_right_are_offered() -> None:
    """At most one in twenty over one mesh axis is not, and each of those for a stated reason."""
    proof = prove_everything()
    unexplained = [f"{p.type}: {m}" for p in proof.operators.values() for m in p.missing if not reason_for(p.type, m)]
    assert not unexplained, "\n".join(unexplained[:40])
    assert catalogue.share_missing(proof) <= 0.05


@pytest.mark.slow
def test_the_table_of_operators_is_current() -> None:
    """Written with the same versions of ONNX and ONNX Runtime; `python -m tests.rules.catalogue --write` writes it."""
    if json.loads(catalogue.TABLE.read_text(encoding="utf-8"))["versions"] != catalogue.versions():
        pytest.skip("docs/operators.md was written with other versions: other node tests, or other kernels to run them")
    proof = prove_everything()
    assert catalogue.TABLE.read_text(encoding="utf-8") == catalogue.table(proof)
    assert catalogue.DOCUMENT.read_text(encoding="utf-8") == catalogue.document(proof)


# The prover is proved in turn: what is planted is found.


def test_the_prover_catches_a_false_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    """A softmax that claims to be elementwise."""

    def claim(o: Operator) -> Rule:
        return sharded(o, "d... -> d...", linear=[(0,)], differentiable=(0,))

    monkeypatch.setitem(registry._RULES, "Softmax", claim)
    subject = case("Softmax", [np.random.default_rng(0).standard_normal((4, 6)).astype(np.float32)])
    wrong = prove(subject, [PAIR])[2]
    assert {f.strategy for f in wrong} >= {"mesh 2, d1=x", "mesh 2, +0=x"}


def test_the_prover_catches_a_false_backward(monkeypatch: pytest.MonkeyPatch) -> None:
    """A product whose bias claims to be split like a contracted factor's partner: its gradient would be doubled."""
    true = registry._RULES["MatMul"]

    def claim(o: Operator) -> Rule:
        found = true(o)
        left = tuple(tuple(f for f in d if f != "m") for d in found.operands[0] or ())
        return dataclasses.replace(found, operands=(left, found.operands[1]), cuts={"m": found.cuts["m"]})

    monkeypatch.setitem(registry._RULES, "MatMul", claim)
    rng = np.random.default_rng(0)
    subject = case("MatMul", [rng.standard_normal((4, 6)), rng.standard_normal((6, 8))])
    assert "mesh 2, m=x" in {f.strategy for f in prove(subject, [PAIR])[2]}


@pytest.mark.parametrize(("type_", "lost"), [("MatMul", "k"), ("MatMul", "n"), ("Add", "d1"), ("Transpose", "d0")])
def test_the_prover_catches_a_crippled_rule(monkeypatch: pytest.MonkeyPatch, type_: str, lost: str) -> None:
    """A rule that no longer splits one of its factors."""
    true = registry._RULES[type_]
    rng = np.random.default_rng(0)
    subject = case(type_, [rng.standard_normal((4, 4)) for _ in range(1 if type_ == "Transpose" else 2)])
    assert not assignments(subject, subject.rule, PAIR).missing

    def crippled(o: Operator) -> Rule:
        found = true(o)
        return dataclasses.replace(found, cuts={name: way for name, way in found.cuts.items() if name != lost})

    monkeypatch.setitem(registry._RULES, type_, crippled)
    assert len(assignments(subject, subject.rule, PAIR).missing) == 1
    assert not prove(subject, [PAIR])[2]


def test_the_prover_catches_a_rule_that_lost_its_pending_sums(monkeypatch: pytest.MonkeyPatch) -> None:
    true = registry._RULES["Add"]
    monkeypatch.setitem(registry._RULES, "Add", lambda o: dataclasses.replace(true(o), linear=()))
    subject = case("Add", [np.ones((4, 4)), np.ones((4, 4))])
    assert assignments(subject, subject.rule, PAIR).missing == ("[_,_]+x [_,_]+x -> [_,_]+x",)


@pytest.mark.parametrize("times", [0, 0.5, 8])
def test_the_prover_catches_a_price_that_is_no_one_s(monkeypatch: pytest.MonkeyPatch, times: float) -> None:
    """Collectives inside a softmax that carry other bytes than its rule says."""
    true = registry._RULES["Softmax"]

    def claim(o: Operator) -> Rule:
        found = true(o)
        inner = tuple(dataclasses.replace(c, item_bytes=int(c.item_bytes * times)) for c in found.inner)
        return dataclasses.replace(found, inner=inner)

    subject = case("Softmax", [np.random.default_rng(0).standard_normal((8, 12, 6)).astype(np.float32)])
    assert any(isinstance(c, InnerCollective) for c in subject.rule.inner)
    assert not prove(subject, [PAIR])[2]
    monkeypatch.setitem(registry._RULES, "Softmax", claim)
    assert any("the rule says" in f.problem for f in prove(subject, [PAIR])[2])


def test_every_rule_is_proved() -> None:
    """Every registered type is among the operators of the table, or opaque for a stated reason."""
    proved = json.loads(catalogue.TABLE.read_text(encoding="utf-8"))["operators"]
    unproved = {t for t in registered_types() if t not in proved and opaque_reason(t) is None}
    assert not unproved
    assert len(proved) > 250
