"""A service of each test's own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.service.buckets import bucket_url, s3_server
from tests.service.http import Service, serving
from tests.service.places import place, postgres_server, store

__all__ = ["bucket_url", "place", "postgres_server", "s3_server", "service", "store"]


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    with serving(tmp_path) as s:
        yield s
