"""What is proved of every operator: all node tests of ONNX, each once more at twice its size, and the cases kept here.

For each case every offered strategy is executed and compared (`prover.prove`), on one-dimensional meshes of the primes
that divide one of its dimensions and on two-dimensional ones of these; and every assignment over one mesh axis that is
not offered is executed too: those found right are the missing strategies.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache

from planner.ir import DeviceMesh
from planner.rules import axis_roles, opaque_reason, rule_for
from tests.rules.cases import FAMILIES
from tests.rules.cases.values import restart
from tests.rules.node_cases import NodeTest, node_tests
from tests.rules.prover import Case, Finding, kernel_agrees, prove
from tests.rules.unoffered import assignments
from tests.rules.variants import doubled

__all__ = ["OperatorProof", "Proof", "prove_everything", "prove_family", "prove_node_tests"]

Family = Callable[[], Iterator[Case]]

_PRIMES = (2, 3, 5, 7)


@dataclass
class OperatorProof:
    """Figures of one operator type."""

    type: str
    node_cases: int = 0
    own_cases: int = 0
    doubled_cases: int = 0
    forward: int = 0
    backward: int = 0
    skipped: Counter[str] = field(default_factory=Counter)
    roles: dict[str, None] = field(default_factory=dict)  # in order of appearance
    texts: Counter[str] = field(default_factory=Counter)
    offered: int = 0  # assignments over one axis that are right and offered
    missing: list[str] = field(default_factory=list)
    opaque: str = ""

    def add(self, other: OperatorProof) -> None:
        self.node_cases += other.node_cases
        self.own_cases += other.own_cases
        self.doubled_cases += other.doubled_cases
        self.forward += other.forward
        self.backward += other.backward
        self.offered += other.offered
        self.skipped += other.skipped
        self.texts += other.texts
        self.roles |= other.roles
        self.missing += other.missing

    @property
    def splits(self) -> bool:
        """At least one strategy other than replication is offered."""
        return any(r not in ("_", "d~") for r in self.roles)


@dataclass
class Proof:
    """Figures of all operators, what was wrong, and how many node tests of ONNX came to what end."""

    operators: dict[str, OperatorProof] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)
    tests: int = 0  # node tests, all nodes of which are proved (or repeat proved ones)
    tests_in_part: int = 0
    tests_skipped: Counter[str] = field(default_factory=Counter)

    @classmethod
    def sum(cls, parts: Iterable[Proof]) -> Proof:
        total = cls()
        for part in parts:
            total.findings += part.findings
            total.tests += part.tests
            total.tests_in_part += part.tests_in_part
            total.tests_skipped += part.tests_skipped
            for type_, figures in part.operators.items():
                total.of(type_).add(figures)
        return total

    def of(self, type_: str) -> OperatorProof:
        return self.operators.setdefault(type_, OperatorProof(type_, opaque=opaque_reason(type_) or ""))

    @property
    def total(self) -> int:
        return self.tests + self.tests_in_part + sum(self.tests_skipped.values())

    @property
    def missing(self) -> list[str]:
        return [m for p in self.operators.values() for m in p.missing]

    @property
    def offered(self) -> int:
        return sum(p.offered for p in self.operators.values())


@cache
def prove_family(family: Family) -> Proof:
    """The cases of one family that are kept here."""
    proof = Proof()
    restart()  # whatever ran before, the same cases
    for subject in family():
        figures = proof.of(subject.op.type)
        figures.own_cases += 1
        _prove_case(proof, figures, subject)
    return proof


@cache
def prove_node_tests() -> Proof:
    """ONNX's node tests, single nodes of them at twice the size as well."""
    proof = Proof()
    for test in node_tests():
        _prove_test(proof, test)
    return proof


def prove_everything() -> Proof:
    """Both together."""
    return Proof.sum([prove_node_tests(), *map(prove_family, FAMILIES)])


def _prove_test(proof: Proof, test: NodeTest) -> None:
    proved = 0
    reasons: list[str] = []
    for type_, reason in test.left_out:
        proof.of(type_).skipped[reason] += 1
        reasons.append(f"{type_}: {reason}")
    for subject in test.cases:
        figures = proof.of(subject.op.type)
        if not kernel_agrees(subject):
            reason = "no kernel here gives the expected result"
            figures.skipped[reason] += 1
            reasons.append(f"{subject.op.type}: {reason}")
            continue
        figures.node_cases += 1
        proved += 1
        few = len(test.types) > 1  # function bodies hold the same operators again and again
        _prove_case(proof, figures, subject, axes=1 if few else 3)
        larger = None if few else doubled(subject)
        if larger is not None:
            figures.doubled_cases += 1
            _prove_case(proof, figures, larger, axes=1)
    if not reasons:
        proof.tests += 1
    elif proved + test.repeated:
        proof.tests_in_part += 1
    else:
        proof.tests_skipped[reasons[0]] += 1


def _prove_case(proof: Proof, figures: OperatorProof, subject: Case, *, axes: int = 3) -> None:
    rule = rule_for(subject.op, subject.graph)
    if rule is None:
        figures.skipped["no rule: it stays whole"] += 1
        return
    figures.texts[rule.text] += 1
    figures.roles |= dict.fromkeys(str(r) for r in axis_roles(rule, training=False))
    primes = _primes(subject)
    forward, backward, wrong = prove(subject, list(_meshes(primes, axes)))
    figures.forward += forward
    figures.backward += backward
    proof.findings += wrong
    if primes:
        tried = assignments(subject, rule, DeviceMesh.of(primes[0]))
        figures.offered += tried.offered
        figures.missing += [f"{subject.name}: {m}" for m in tried.missing]


def _primes(subject: Case) -> list[int]:
    sizes = {n for v in (*subject.inputs, *subject.results) if v is not None for n in v.shape}
    return [p for p in _PRIMES if any(n and n % p == 0 for n in sizes)]


def _meshes(primes: list[int], axes: int) -> Iterator[DeviceMesh]:
    """One axis of each of the first primes, and two: the smallest prime twice, and with the second."""
    for p in primes[:axes]:
        yield DeviceMesh.of(p)
    for p in primes[: min(axes, 2)]:
        yield DeviceMesh.of(p, primes[0])
