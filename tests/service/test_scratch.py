"""Folders of workers that have gone are removed without keeping others waiting."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from planner.api.jobs.scratch import bury, own_folder


def test_what_is_removed_keeps_nobody_from_making_a_folder(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name / "in").mkdir(parents=True)
    told = []

    def dead(name: str) -> None:
        handle = os.open(tmp_path, os.O_RDONLY)
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)  # BlockingIOError where the look is not over
        os.close(handle)
        told.append(name)

    with own_folder(tmp_path / "mine"):
        bury(tmp_path, dead)
        assert [p.name for p in tmp_path.iterdir()] == ["mine"]
    assert sorted(told) == ["a", "b"]


def test_a_folder_that_another_removes_is_left_to_it(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    told = []

    def dead(name: str) -> None:
        told.append(name)
        bury(tmp_path, told.append)

    bury(tmp_path, dead)
    assert told == ["a"]
    assert not list(tmp_path.iterdir())
