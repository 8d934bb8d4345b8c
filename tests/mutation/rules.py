"""Faults of rules.  A wrong rule is planned with, so that everything in the program agrees with it but the numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

import numpy as np

from planner.lowering import Program
from planner.pricing import active_tensors
from planner.rules.localize import local_op
from planner.rules.rule import Combine, Dims, Rule
from planner.rules.strategy import Strategy, bind, strategies
from tests.mutation.collectives import shuffled
from tests.mutation.faults import Mutant, kind
from tests.mutation.subjects import Subject, planned

__all__: list[str] = []

Changes = Callable[[Rule, np.random.Generator], "Iterator[tuple[str, Rule]]"]


def _each(subject: Subject, rng: np.random.Generator, changes: Changes) -> Iterator[Mutant]:
    """The rule of one operator, and of all that look the same, changed; under a plan in which that matters."""
    program = subject.program
    alike: dict[int, list[str]] = {}
    for name, rule in program.rules.items():
        alike.setdefault(id(rule), []).append(name)
    for names in shuffled(alike.values(), rng):
        right = program.rules[names[0]]
        for what, wrong in changes(right, rng):
            found = _planned(
                subject, {**program.rules, **dict.fromkeys(names, wrong)}, names, int(rng.integers(1 << 30))
            )
            if found is not None:
                op = subject.graph.op(names[0])
                program_text = found.strategies[names[0]].text(subject.mesh)
                yield Mutant(f"{op.type} {op.name} ({program_text}): {what}", found)
                break


def _planned(subject: Subject, rules: Mapping[str, Rule], names: list[str], seed: int) -> Program | None:
    """A plan by the wrong rules that one by the right ones could not be; None where there is none."""
    right = subject.program.rules

    def differs(name: str, strategy: Strategy) -> bool:
        if name not in names:
            return False
        try:
            return bind(right[name], subject.mesh, strategy.roles) != strategy
        except LookupError:  # a role that the right rule does not know
            return True

    mesh = subject.mesh
    if not any(differs(n, s) for n in names for s in _strategies(rules[n], subject)):
        return None
    try:
        found = planned(
            subject.graph, mesh, rules, seed, training=subject.training, recompute=subject.recompute, prefer=differs
        )
    except (ArithmeticError, AssertionError, LookupError, ValueError):
        return None  # the planner itself does not accept it
    if found is None:
        return None
    return found if any(differs(n, found.strategies[n]) for n in names) else None


def _strategies(rule: Rule, subject: Subject) -> tuple[Strategy, ...]:
    try:
        return strategies(rule, subject.mesh, training=subject.training)
    except (ArithmeticError, AssertionError, LookupError, ValueError):
        return ()


def _turned(dims: Dims) -> Dims:
    return (*dims[1:], dims[0])


@kind("rule")
def rule_of_operand_dimensions_exchanged(subject: Subject, rng: np.random.Generator) -> Iterator[Mutant]:
    """Where they are of equal size."""

    def changes(rule: Rule, rng: np.random.Generator) -> Iterator[tuple[str, Rule]]:
        for i, dims in enumerate(rule.operands):
            for a in range(len(dims or ())):
                for b in range(a):
                    assert dims is not None
                    if _size(rule, dims[a]) == _size(rule, dims[b]) > 1:
                        new = list(dims)
                        new[a], new[b] = dims[b], dims[a]
                        operands = (*rule.operands[:i], tuple(new), *rule.operands[i + 1 :])
                        yield f"dimensions {b} and {a} of operand {i}", replace(rule, operands=operands)

    yield from _each(subject, rng, changes)


@kind("rule")
def rule_of_result_dimensions_exchanged(subject: Subject, rng: np.random.Generator) -> Iterator[Mutant]:
    def changes(rule: Rule, rng: np.random.Generator) -> Iterator[tuple[str, Rule]]:
        for j, dims in enumerate(rule.results):
            for a in range(len(dims or ())):
                for b in range(a):
                    assert dims is not None
                    if _size(rule, dims[a]) == _size(rule, dims[b]) > 1:
                        new = list(dims)
                        new[a], new[b] = dims[b], dims[a]
                        results = (*rule.results[:j], tuple(new), *rule.results[j + 1 :])
                        yield f"dimensions {b} and {a} of result {j}", replace(rule, results=results)

    yield from _each(subject, rng, changes)


def _size(rule: Rule, factors: tuple[str, ...]) -> int:
    return int(np.prod([rule.factors[f] for f in factors], dtype=np.int64))


def _contracted(rule: Rule) -> list[str]:
    """Factors that some operand has and no result."""
    there = {f for dims in rule.operands if dims for d in dims for f in d}
    kept = {f for dims in rule.results if dims for d in dims for f in d}
    return sorted(f for f in there - kept if rule.factors[f] > 1 and f in rule.cuts)


def _combining(subject: Subject, rng: np.random.Generator, given: Combine, new: Combine) -> Iterator[Mutant]:
    def changes(rule: Rule, rng: np.random.Generator) -> Iterator[tuple[str, Rule]]:
        for f in _contracted(rule):
            if rule.combine(f) is given:
                yield f"{f} combines by {new}", replace(rule, cuts={**rule.cuts, f: replace(rule.cuts[f], combine=new)})

    yield from _each(subject, rng, changes)


@kind("rule")
def rule_without_the_sum_of_a_contraction(subject: Subject, rng: np.random.Generator) -> Iterator[Mutant]:
    yield from _combining(subject, rng, Combine.SUM, Combine.INNER)


@kind("rule")
def rule_of_a_maximum_for_a_sum(subject: Subject, rng: np.random.Generator) -> Iterator[Mutant]:
    yield from _combining(subject, rng, Combine.SUM, Combine.MAX)


@kind("rule")
def rule_of_a_mean_for_a_sum(subject: Subject, rng: np.random.Generator) -> Iterator[Mutant]:
    yield from _combining(subject, rng, Combine.SUM, Combine.MEAN)


@kind("rule")
def rule_of_a_sum_for_a_mean(subject: Subject, rng: np.random.Generator) -> Iterator[Mutant]:
    yield from _combining(subject, rng, Combine.MEAN, Combine.SUM)


@kind("rule")
def rule_of_a_sum_for_what_is_reduced_inside(subject: Subject, rng: np.random.Generator) -> Iterator[Mutant]:
    yield from _combining(subject, rng, Combine.INNER, Combine.SUM)


@kind("rule")
def rule_that_forgets_what_is_added(subject: Subject, rng: np.random.Generator) -> Iterator[Mutant]:
    """A bias is added by every rank of a sum."""

    def changes(rule: Rule, rng: np.random.Generator) -> Iterator[tuple[str, Rule]]:
        if rule.additive and _contracted(rule):
            yield "nothing is additive", replace(rule, additive=frozenset())

    yield from _each(subject, rng, changes)


@kind("rule")
def rule_that_adds_an_operand(subject: Subject, rng: np.random.Generator) -> Iterator[Mutant]:
    def changes(rule: Rule, rng: np.random.Generator) -> Iterator[tuple[str, Rule]]:
        contracted = _contracted(rule)
        for i, dims in enumerate(rule.operands):
            has = {f for d in dims or () for f in d}
            if dims is not None and i not in rule.additive and contracted and not has.issuperset(contracted):
                yield f"operand {i} is additive", replace(rule, additive=rule.additive | {i})

    yield from _each(subject, rng, changes)


@kind("rule")
def rule_linear_where_it_is_not(subject: Subject, rng: np.random.Generator) -> Iterator[Mutant]:
    """Pending sums pass through an operator that is not linear in one of its operands."""

    def changes(rule: Rule, rng: np.random.Generator) -> Iterator[tuple[str, Rule]]:
        known = {i for group in rule.linear for i in group}
        for i, dims in enumerate(rule.operands):
            if dims is not None and i not in known:
                yield f"linear in operand {i}", replace(rule, linear=(*rule.linear, frozenset({i})))

    yield from _each(subject, rng, changes)


@kind("rule")
def rule_jointly_linear_where_it_is_not(subject: Subject, rng: np.random.Generator) -> Iterator[Mutant]:
    """Linear in each of two operands is not linear in both together."""

    def changes(rule: Rule, rng: np.random.Generator) -> Iterator[tuple[str, Rule]]:
        if len(rule.linear) > 1:
            joint = frozenset(i for group in rule.linear for i in group)
            yield f"jointly linear in {sorted(joint)}", replace(rule, linear=(joint,))

    yield from _each(subject, rng, changes)


@kind("rule")
def rule_linear_in_one_of_a_sum(subject: Subject, rng: np.random.Generator) -> Iterator[Mutant]:
    """Terms of a sum may only be pending together."""

    def changes(rule: Rule, rng: np.random.Generator) -> Iterator[tuple[str, Rule]]:
        for k, group in enumerate(rule.linear):
            if len(group) > 1:
                rest = frozenset(sorted(group)[:1])
                yield f"linear in {sorted(rest)}", replace(rule, linear=(*rule.linear[:k], rest, *rule.linear[k + 1 :]))

    yield from _each(subject, rng, changes)


@kind("rule")
def rule_that_communicates_nothing(subject: Subject, rng: np.random.Generator) -> Iterator[Mutant]:
    """The operator is not told of a split of which it must be aware."""

    def changes(rule: Rule, rng: np.random.Generator) -> Iterator[tuple[str, Rule]]:
        if rule.inner:
            told = {name: replace(way, aware=False) for name, way in rule.cuts.items()}
            yield "nothing inside", replace(rule, cuts=told, inner=())

    yield from _each(subject, rng, changes)


@kind("rule")
def rule_with_an_operand_left_whole(subject: Subject, rng: np.random.Generator) -> Iterator[Mutant]:
    """One dimension of an operand is taken for one of its own, which is never split."""

    def changes(rule: Rule, rng: np.random.Generator) -> Iterator[tuple[str, Rule]]:
        for i, dims in enumerate(rule.operands):
            for k, d in enumerate(dims or ()):
                size = _size(rule, d)
                if dims is None or size < 2 or not set(d) <= rule.cuts.keys():
                    continue
                new = (*dims[:k], ("own",), *dims[k + 1 :])
                operands = (*rule.operands[:i], new, *rule.operands[i + 1 :])
                factors = {**rule.factors, "own": size}
                what = f"dimension {k} of operand {i}"
                yield what, replace(rule, operands=operands, factors=factors)

    yield from _each(subject, rng, changes)


@kind("rule")
def rule_that_counts_the_whole(subject: Subject, rng: np.random.Generator) -> Iterator[Mutant]:
    def changes(rule: Rule, rng: np.random.Generator) -> Iterator[tuple[str, Rule]]:
        if rule.counts:
            yield "counts nothing", replace(rule, counts={})

    yield from _each_rule(subject, rng, changes)


def _each_rule(subject: Subject, rng: np.random.Generator, changes: Changes) -> Iterator[Mutant]:
    """The rule of one operator changed in a field that no layout depends on."""
    program = subject.program
    for name in shuffled(program.rules, rng):
        if not program.strategies[name].split:
            continue
        for what, wrong in changes(program.rules[name], rng):
            rules = {**program.rules, name: wrong}
            strategy = bind(wrong, subject.mesh, program.strategies[name].roles)
            op = subject.graph.op(name)
            if strategy is None or (
                strategy == program.strategies[name]
                and local_op(op, wrong, strategy, subject.mesh)
                == local_op(op, program.rules[name], strategy, subject.mesh)
            ):
                continue
            strategies = {**program.strategies, name: strategy}
            site = f"{op.type} {op.name} ({strategy.text(subject.mesh)}): {what}"
            yield Mutant(site, replace(program, rules=rules, strategies=strategies))
            break


@kind("rule")
def rule_without_the_gradient_of_an_operand(subject: Subject, rng: np.random.Generator) -> Iterator[Mutant]:
    """The planner believes that nothing flows back into it."""
    program = subject.program
    if not subject.training:
        return
    for name in shuffled(program.rules, rng):
        rule, op = program.rules[name], subject.graph.op(name)
        reached = [i for i in rule.differentiable if i < len(op.inputs) and op.inputs[i] in program.active]
        alike = [n for n, r in program.rules.items() if r is rule]
        for i in shuffled(reached, rng):
            wrong = replace(rule, differentiable=rule.differentiable - {i})
            rules = {**program.rules, **dict.fromkeys(alike, wrong)}
            if active_tensors(subject.graph, rules):
                found = planned(subject.graph, subject.mesh, rules, subject.seed, training=True)
                if found is not None:
                    yield Mutant(f"{op.type} {name}: operand {i}", found)


# What is said to be communicated inside


def _inside(subject: Subject, rng: np.random.Generator, **fields: Callable[[int], int]) -> Iterator[Mutant]:
    def changes(rule: Rule, rng: np.random.Generator) -> Iterator[tuple[str, Rule]]:
        for k in shuffled(range(len(rule.inner)), rng):
            c = rule.inner[k]
            new = replace(c, **{f: change(getattr(c, f)) for f, change in fields.items()})  # type: ignore[arg-type]
            if new != c:
                inner = (*rule.inner[:k], new, *rule.inner[k + 1 :])
                yield f"{c.kind} over {c.factor}: {', '.join(fields)}", replace(rule, inner=inner)

    yield from _each_rule(subject, rng, changes)


@kind("rule")
def inner_bytes_doubled(subject: Subject, rng: np.random.Generator) -> Iterator[Mutant]:
    yield from _inside(subject, rng, item_bytes=lambda n: 2 * n)


@kind("rule")
def inner_collectives_counted_twice(subject: Subject, rng: np.random.Generator) -> Iterator[Mutant]:
    yield from _inside(subject, rng, count=lambda n: 2 * n)


@kind("rule")
def halo_wider_than_it_is(subject: Subject, rng: np.random.Generator) -> Iterator[Mutant]:
    def changes(rule: Rule, rng: np.random.Generator) -> Iterator[tuple[str, Rule]]:
        for k in shuffled(range(len(rule.inner)), rng):
            c = rule.inner[k]
            if c.extent is not None:
                wider = replace(c, extent=lambda n, real=c.extent: real(n) + 1)
                yield f"{c.kind} over {c.factor}", replace(rule, inner=(*rule.inner[:k], wider, *rule.inner[k + 1 :]))

    yield from _each_rule(subject, rng, changes)


@kind("rule")
def inner_collective_forgotten(subject: Subject, rng: np.random.Generator) -> Iterator[Mutant]:
    """It takes place, and nobody counts it."""

    def changes(rule: Rule, rng: np.random.Generator) -> Iterator[tuple[str, Rule]]:
        for k in shuffled(range(len(rule.inner)), rng):
            yield f"{rule.inner[k].kind}", replace(rule, inner=(*rule.inner[:k], *rule.inner[k + 1 :]))

    yield from _each_rule(subject, rng, changes)


@kind("rule")
def inner_collective_of_another_kind(subject: Subject, rng: np.random.Generator) -> Iterator[Mutant]:
    def changes(rule: Rule, rng: np.random.Generator) -> Iterator[tuple[str, Rule]]:
        for k in shuffled(range(len(rule.inner)), rng):
            c = rule.inner[k]
            new = replace(c, kind="all_gather" if c.kind == "all_reduce" else "all_reduce")
            yield f"{c.kind} over {c.factor}", replace(rule, inner=(*rule.inner[:k], new, *rule.inner[k + 1 :]))

    yield from _each_rule(subject, rng, changes)
