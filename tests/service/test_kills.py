"""A few of the kills of `python -m tests.fault.kills`."""

from __future__ import annotations

from pathlib import Path

from tests.fault.kills import Direct, torture


def test_nothing_that_was_accepted_is_lost_when_workers_are_killed(tmp_path: Path) -> None:
    service = Direct(tmp_path / "service")
    try:
        report = torture(service, 3, seed=7, say=lambda _: None)
    finally:
        service.stop()
    assert report.wrong == []
    assert report.accepted > 0
    assert report.blobs > 0
    assert report.kills == {"worker": 3}
