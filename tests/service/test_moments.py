"""Moments are RFC 3339 wherever others read them, and keep their order."""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from planner.api.client import Client
from planner.api.moments import moment
from tests.service.http import Service

SECONDS = st.floats(0, 253402300799, allow_nan=False)  # to the end of the year 9999


@given(SECONDS)
def test_a_moment_is_read_back_to_the_millisecond(seconds: float) -> None:
    read = datetime.fromisoformat(moment(seconds))
    assert read.tzinfo == UTC
    assert -1e-4 <= seconds - read.timestamp() < 0.001 + 1e-4  # a float of the year 9999 has steps of 3e-5


@given(SECONDS, SECONDS)
def test_later_moments_have_no_lesser_text(a: float, b: float) -> None:
    assert (moment(a) <= moment(b)) or a > b


def test_jobs_plans_and_events_have_them(service: Service, tmp_path: Path) -> None:
    before = moment(time.time())
    plan = service.planned()
    (job,) = service.client.get("/v1/jobs").json()["items"]
    events = service.client.get(job["links"]["events"]).text
    told = [json.loads(line[6:])["at"] for line in events.splitlines() if line.startswith("data: ")]
    assert [before, job["created_at"], *told] == sorted([before, job["created_at"], *told])
    assert job["created_at"] <= job["started_at"] <= job["finished_at"] == told[-1]
    with Client("http://127.0.0.1:8080", http=service.client) as client:
        (entry,) = client.plans()
    assert entry.id == plan
    assert moment(entry.created_at.timestamp() + 1e-6) == job["finished_at"]
