"""Places where a store may lie, each of which every test of what a store does is run in."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from planner.api.jobs.store import Store
from tests.service import postgres

__all__ = ["Place", "place", "postgres_server", "store"]


@dataclass
class Place:
    """`open` opens the store of this place once more, as another process would; `at` sets the clock that it goes by."""

    folder: Path
    patch: pytest.MonkeyPatch
    url: str | None = None
    _stores: list[Store] = field(default_factory=list)
    _moment: float | None = None

    def open(self) -> Store:
        if self.url is None:
            return Store(self.folder, queue=20)
        from planner.api.jobs.postgres.database import PostgresDatabase

        store = Store(self.folder, queue=20, database=PostgresDatabase(self.url, connections=4))
        self._stores.append(store)
        if self._moment is not None:
            self.at(self._moment)
        return store

    def at(self, moment: float) -> None:
        self._moment = moment
        if self.url is None:
            self.patch.setattr(time, "time", lambda: moment)
        for store in self._stores:
            store.database.now = f"SELECT {moment!r}::float8"  # type: ignore[attr-defined]

    def close(self) -> None:
        for store in self._stores:
            store.database.close()


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[postgres.Server]:
    if postgres.found() is None:
        pytest.skip("no PostgreSQL server is installed (postgres and initdb, with an account `postgres` for root)")
    with postgres.serving_postgres() as server:
        yield server


@pytest.fixture(params=["sqlite", "postgres"])
def place(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    url = None if request.param == "sqlite" else request.getfixturevalue("postgres_server").database()
    with ExitStack() as stack:
        found = Place(tmp_path / "service", monkeypatch, url)
        stack.callback(found.close)
        yield found


@pytest.fixture
def store(place: Place) -> Store:
    return place.open()
