"""Every target makes the same bytes of the same plan; what they are was read (tests/golden/emit)."""

from __future__ import annotations

import pytest

from planner.emit import TARGETS
from tests.unit.emit_golden import FOLDER, cases_of, emitted, expected


@pytest.mark.parametrize(("target", "case"), [(t, c) for t in TARGETS for c in cases_of(t)])
def test_files_are_those_that_were_read(target: str, case: str) -> None:
    wanted, found = expected(target, case), emitted(target, case)
    assert set(found) == set(wanted)
    for name, content in found.items():
        assert content == wanted[name], f"{target}/{case}/{name}: python -m tests.unit.emit_golden, and look"


def test_no_golden_file_is_left_over() -> None:
    assert {p.name for p in FOLDER.iterdir()} == {"plans", *TARGETS}
    assert all({p.name for p in (FOLDER / target).iterdir()} == set(cases_of(target)) for target in TARGETS)
