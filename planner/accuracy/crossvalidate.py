"""Cross-validation by group: no row is predicted with parameters that saw a row of its own configuration."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Final, TypeVar

from planner.accuracy.rows import Case

__all__ = ["FOLDS", "cross_validated", "folds"]

FOLDS: Final = 10

P = TypeVar("P")
R = TypeVar("R")


def folds(cases: Sequence[Case]) -> list[list[int]]:
    """Indices of `cases` in at most ten parts that never divide a group.

    Each data set's groups are dealt in turn, in the order of their SHA-256: of a set with fewer than ten groups no
    part holds two, which leaves one group out at a time.
    """
    sets: dict[str, set[str]] = defaultdict(set)
    for case in cases:
        sets[case.dataset].add(case.group)
    part: dict[tuple[str, str], int] = {}
    for name, groups in sets.items():
        for i, group in enumerate(sorted(groups, key=lambda g: hashlib.sha256(g.encode()).hexdigest())):
            part[name, group] = i % FOLDS
    out: list[list[int]] = [[] for _ in range(FOLDS)]
    for i, case in enumerate(cases):
        out[part[case.dataset, case.group]].append(i)
    return [members for members in out if members]


def cross_validated(
    cases: Sequence[Case],
    fit: Callable[[Sequence[Case]], P],
    predict: Callable[[Case, P], R],
    progress: Callable[[str], None] = lambda line: None,
) -> list[R]:
    """Each case predicted with what was fitted to the other parts, in the order of `cases`.

    A single part leaves nothing to fit to: `fit` is then given no cases.
    """
    out: list[R | None] = [None] * len(cases)
    parts = folds(cases)
    for number, part in enumerate(parts, 1):
        held = set(part)
        progress(f"fold {number} of {len(parts)}: {len(part)} rows held out")
        parameters = fit([c for i, c in enumerate(cases) if i not in held])
        for i in part:
            out[i] = predict(cases[i], parameters)
    return [r for r in out if r is not None]
