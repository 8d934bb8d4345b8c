"""How many processors a process may use, whatever says so."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from planner.processors import processors


@pytest.fixture(autouse=True)
def eight(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))


def process(folder: Path, groups: str, kind: str, options: str = "rw") -> Path:
    """A folder as /proc/self is, whose groups are mounted at `folder/mount`."""
    (folder / "mount").mkdir(exist_ok=True)
    (folder / "cgroup").write_text(groups)
    group = f"30 24 0:26 / {folder}/mount rw,nosuid shared:4 - {kind} cgroup {options}\n"
    (folder / "mountinfo").write_text(f"25 1 0:1 / /proc rw - proc proc rw\n{group}")
    return folder


def write(folder: Path, **files: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(text)


@pytest.mark.parametrize(
    ("limit", "found"), [("max 100000", 8), ("300000 100000", 3), ("150000 100000", 1), ("20000 100000", 1), ("", 8)]
)
def test_a_quota_of_version_2_counts(tmp_path: Path, limit: str, found: int) -> None:
    here = process(tmp_path, "0::/a/b\n", "cgroup2")
    write(tmp_path / "mount" / "a" / "b", cpu__max=limit)
    assert processors(here) == found


def test_the_least_of_the_groups_around_counts(tmp_path: Path) -> None:
    here = process(tmp_path, "0::/a/b\n", "cgroup2")
    write(tmp_path / "mount" / "a" / "b", cpu__max="600000 100000")
    write(tmp_path / "mount" / "a", cpu__max="400000 100000")
    assert processors(here) == 4


@pytest.mark.parametrize(("quota", "found"), [("-1", 8), ("250000", 2)])
def test_a_quota_of_version_1_counts_also_where_its_path_is_not_to_be_seen(
    tmp_path: Path, quota: str, found: int
) -> None:
    groups = "9:memory:/docker/0123\n4:cpu,cpuacct:/docker/0123\n0::/\n"
    here = process(tmp_path, groups, "cgroup", "rw,cpu,cpuacct")
    write(tmp_path / "mount", cpu__cfs_quota_us=quota, cpu__cfs_period_us="100000")
    assert processors(here) == found


@pytest.mark.parametrize("groups", ["", "nonsense\n", "0::/gone\n", "4:cpu:/\n"])
def test_what_says_nothing_leaves_what_there_is(tmp_path: Path, groups: str) -> None:
    assert processors(process(tmp_path, groups, "cgroup2")) == 8
    assert processors(tmp_path / "gone") == 8


def test_the_service_searches_by_what_it_may_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from planner.api import settings

    monkeypatch.setattr(settings, "processors", lambda: 4)
    assert settings.Settings().workers == 3
    monkeypatch.setattr(settings, "processors", lambda: 1)
    assert settings.Settings().workers == 1
