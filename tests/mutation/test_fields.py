"""No field of a plan.json can be changed without anybody noticing, but for those that are named here.

A mutant is caught where the file is refused when it is read, or where the document derived from its choice differs.
"""

from __future__ import annotations

import json
import os
import zlib
from pathlib import Path
from typing import Any, Final

import pytest
from pydantic import ValidationError

from planner.ir import DeviceMesh
from planner.planning import PlanDocument, plan_text
from planner.planning.consistency import contradiction
from planner.pricing import PriceTables
from planner.verify.derive import differences
from tests.mutation.fields import Mutation, mutations
from tests.mutation.plans import CASES, Case, Made, make

# Of larger plans one mutant in so many, unless PLANNER_ALL_MUTANTS is set.
SHARES: Final = {"searched": 2, "pinned": 2, "int8": 2, "recomputed": 12, "pipeline": 12, "inference": 12}
SHARE: Final = 12

# What nobody can notice, pattern → (what was done to it: all where it is empty; why that is no fault).
ASKED = "what was asked for and left open in the answer: the plan is as right"
EQUIVALENT: Final[dict[str, tuple[tuple[str, ...], str]]] = {
    "model.name": ((), "a label: the digest says which model it is"),
    "search.version": ((), "which release wrote the file; whether another one derives the same is what is checked"),
    "search.solver": ((), "which of the solvers found the choice, whose cost and bound are checked themselves"),
    "search": (("without request",), "a plan that was made by the library, and not by a command, has none"),
    "search.request": (("null",), "likewise"),
    "search.request.mode": (("null",), ASKED),
    "search.request.batch": (("null",), ASKED),
    "search.request.micro_batches": (("null",), ASKED),
    "search.request.mesh": (("null",), ASKED),
    "search.request.recompute": (("→ 'none'", "→ 'blocks'", "→ 'auto'"), ASKED),
    "search.request.solver": (("→ 'auto'", "→ 'dp'", "→ 'ilp'"), ASKED),
    "search.request.stages": (("one more", "doubled"), "--strategy says how many, whatever else was said"),
    "search.request.reproducible": (("flipped",), "a promise about searching again, with a limit checked beside it"),
    "search.request.pins": (
        ("first twice", "last twice", "reversed", "0 and 1 swapped", "1 and 2 swapped"),
        "the same pins said twice, or in another order, are the same pins",
    ),
}


def excused(mutation: Mutation) -> bool:
    what, _ = EQUIVALENT.get(mutation.pattern, (("",), ""))
    return not what or mutation.what in what


@pytest.fixture(scope="module", params=CASES, ids=lambda c: c.name)
def case(request: pytest.FixtureRequest) -> Case:
    found: Case = request.param
    return found


@pytest.fixture(scope="module")
def made(case: Case, tmp_path_factory: pytest.TempPathFactory) -> Made:
    folder = tmp_path_factory.mktemp(case.name)
    return make(case, folder)


def test_a_plan_is_what_is_derived_from_it(made: Made) -> None:
    assert differences(made.plan, made.graph) == []


def test_every_changed_field_is_noticed(case: Case, made: Made) -> None:
    document: dict[str, Any] = json.loads(made.path.read_text(encoding="utf-8"))
    share = 1 if os.environ.get("PLANNER_ALL_MUTANTS") else SHARES.get(case.name, SHARE)
    tables: dict[DeviceMesh, PriceTables] = {}
    survivors: list[str] = []
    total = 0
    for mutation in mutations(document):
        if zlib.crc32(str(mutation).encode()) % share:
            continue
        changed = parsed(mutation.of(document))
        if changed is not None and plan_text(changed) == plan_text(made.plan):
            continue  # left out and set to its default are one
        total += 1
        if changed is None or contradiction(changed) or differences(changed, made.graph, tables=tables):
            continue
        if not excused(mutation):
            survivors.append(str(mutation))
    print(f"{case.name}: {total} mutants, {len(survivors)} survive")
    assert total > 100
    assert not survivors, "\n".join(survivors)


def parsed(document: dict[str, Any]) -> PlanDocument | None:
    """The plan; None where the file is refused."""
    try:
        return PlanDocument.model_validate(document)
    except ValidationError:
        return None


def test_the_list_of_what_is_equivalent_is_short() -> None:
    assert len(EQUIVALENT) <= 16
    assert all(reason for _, reason in EQUIVALENT.values())


def test_patterns_leave_names_and_numbers_out(tmp_path: Path) -> None:
    document = {"operators": {"a": {"runs": [{"seconds": 1.0}, {"seconds": 2.0}]}, "b": {"runs": []}}}
    found = {m.pattern for m in mutations(document)}
    assert found == {
        "operators",
        "operators.*",
        "operators.*.runs",
        "operators.*.runs[*]",
        "operators.*.runs[*].seconds",
    }
    times = {m.path: m.of(document) for m in mutations(document) if m.what == "doubled"}
    assert times["operators", "a", "runs", 1, "seconds"]["operators"]["a"]["runs"] == [
        {"seconds": 1.0},
        {"seconds": 4.0},
    ]
