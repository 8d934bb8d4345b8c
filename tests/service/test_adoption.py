"""What was made before the first key is not lost to those who made it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from planner.api.jobs.store import Store
from planner.cli.main import main
from tests.service.http import serving


def _key(data: Path, capsys: pytest.CaptureFixture[str], *more: str) -> tuple[dict[str, object], str]:
    capsys.readouterr()
    assert main(["keys", "create", "--tenant", "team", "--data", str(data), "--json", *more]) == 0
    out, error = capsys.readouterr()
    return json.loads(out), error


def test_a_key_that_adopts_has_what_was_made_without_keys(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with serving(tmp_path) as s:
        plan = s.planned()
        waiting = s.post(b"another").json()["id"]
    made, _ = _key(tmp_path, capsys, "--adopt")
    assert made["adopted"] == {"jobs": 2, "plans": 1}
    with serving(tmp_path, str(made["secret"])) as s:
        assert s.client.get(f"/v1/plans/{plan}").status_code == 200
        assert s.client.get("/v1/jobs").json()["items"][0]["id"] == waiting
        claim = s.work({"plan.json": b"{}"})
        assert claim.tenant == "team"
        assert s.client.get(f"/v1/jobs/{waiting}").json()["status"] == "succeeded"
    assert Store(tmp_path).jobs("local") == []


def test_a_first_key_that_does_not_adopt_says_what_it_leaves(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with serving(tmp_path) as s:
        s.planned()
    _, error = _key(tmp_path, capsys)
    assert "--adopt" in error
    made, _ = _key(tmp_path, capsys, "--adopt")  # a later one does as well
    assert made["adopted"] == {"jobs": 1, "plans": 1}
    _, error = _key(tmp_path, capsys)
    assert error == ""


def test_what_both_have_stays_the_adopters_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with serving(tmp_path) as s:
        s.post(idempotency_key="k")
        s.work({"plan.json": b"{}"})
        s.post(b"waits")
    first, _ = _key(tmp_path, capsys)
    with serving(tmp_path, str(first["secret"])) as s:
        own = s.post(idempotency_key="k").json()
        s.post(b"waits")
        made, _ = _key(tmp_path, capsys, "--adopt")
        assert made["adopted"] == {"jobs": 2, "plans": 0}
        assert s.post(idempotency_key="k").json()["id"] == own["id"]
        assert len(s.client.get("/v1/plans").json()["items"]) == 1
        assert len(s.client.get("/v1/jobs").json()["items"]) == 4
        s.work({"plan.json": b"another"})
        assert s.store.leases.claim("test", (0, 1, 2)) is None


def test_a_key_that_cannot_be_made_adopts_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(tmp_path) as s:
        s.planned()
        monkeypatch.setattr("planner.api.jobs.keys.adopt", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            s.store.keys.create_adopting("team", "", "local")
        assert not s.store.keys.exist()
        assert len(s.store.jobs("local")) == 1
