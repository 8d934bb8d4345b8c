"""What a refused request leaves on disk, and how much a tenant may have there."""

from __future__ import annotations

import asyncio
import errno
import io
import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from planner.api import admission, quota
from planner.api.admission import SMALL
from planner.api.client.problems import LimitMet, problem_error
from planner.api.errors import Problem
from planner.api.jobs.blobs import Blobs
from planner.api.jobs.errors import QueueFull, StoreFull
from planner.api.jobs.problems import problem
from planner.api.jobs.store import Store
from planner.api.quota import Quotas
from planner.api.upkeep.backup import _unpurged
from planner.api.uploads import IN_MEMORY
from tests.service.http import ONNX, Service, serving

LARGE = os.urandom(IN_MEMORY + 1)


def _stored(service: Service) -> int:
    """Bytes of blobs, and of what may become one."""
    return sum(p.stat().st_size for p in service.store.blobs.folder.rglob("*") if p.is_file())


def _problem(answer: Any, status: int, name: str) -> dict[str, Any]:
    found: dict[str, Any] = answer.json()
    assert (answer.status_code, found["type"]) == (status, f"urn:planner:problem:{name}"), answer.text
    return found


@pytest.mark.parametrize("model", [b"another model", LARGE], ids=["small", "large"])
def test_nothing_stays_of_what_finds_the_queue_full(tmp_path: Path, model: bytes) -> None:
    with serving(tmp_path, queue=1) as s:
        assert s.post(b"a model").status_code == 202
        before = _stored(s)
        for k in range(3):
            _problem(s.post(model + bytes([k])), 429, "queue-full")
            form = {"model": model + bytes([k]), "constraints": b"rest: data_parallel"}
            _problem(s.client.post("/v1/plans?devices=4", files=form), 429, "queue-full")
            evaluation = s.client.post("/v1/evaluations?devices=4&strategy=fsdp", content=model, headers=ONNX)
            _problem(evaluation, 429, "queue-full")
        assert _stored(s) == before


def test_a_large_body_is_refused_before_it_is_read(tmp_path: Path) -> None:
    with serving(tmp_path, queue=1) as s:
        s.post(b"a model", idempotency_key="k")
        spool = s.store.blobs.folder / "00"
        _problem(s.post(b"x" * 2 * SMALL), 429, "queue-full")
        assert not spool.exists()
        # What was accepted is answered again, whatever waits.
        assert s.post(b"a model").status_code == 202
        assert s.post(b"a model", idempotency_key="k").status_code == 202
        with pytest.raises(QueueFull):
            s.store.expect_room("local", None, "unknown")
        assert s.store.expect_room("local", None, "k")


@pytest.mark.parametrize("model", [b"another model", LARGE], ids=["small", "large"])
def test_nothing_stays_where_the_store_refuses_late(
    service: Service, monkeypatch: pytest.MonkeyPatch, model: bytes
) -> None:
    """The queue filled, or the disk did, while the model was being written."""
    errors = ((QueueFull("1 waits"), 429, "queue-full"), (StoreFull("no space"), 507, "storage-full"))
    for error, status, name in errors:

        def submit(*_: Any, error: Exception = error, **__: Any) -> Any:
            raise error

        with monkeypatch.context() as patch:
            patch.setattr(Store, "submit_all", submit)
            _problem(service.post(model), status, name)
        assert _stored(service) == 0
        assert not service.client.app.state.service.arriving  # type: ignore[attr-defined]
    assert service.post(model).status_code == 202


def test_a_refused_model_stays_where_a_task_or_another_request_needs_it(tmp_path: Path) -> None:
    with serving(tmp_path, queue=1) as s:
        s.post(b"a model")
        _problem(s.post(b"a model", "devices=8"), 429, "queue-full")
        assert s.store.blobs.read(s.store.leases.claim("test", (0, 1)).inputs["model"]) == b"a model"  # type: ignore[union-attr]
        found = s.client.app.state.service  # type: ignore[attr-defined]
        digest = s.store.blobs.put(b"of two requests")

        async def fail() -> None:
            with pytest.raises(RuntimeError):
                async with admission._arriving(found, (digest,)):
                    raise RuntimeError

        async def two() -> None:
            async with admission._arriving(found, (digest,)):
                await fail()
                assert digest in s.store.blobs
            await fail()
            assert digest not in s.store.blobs

        asyncio.run(two())


def test_a_reused_idempotency_key_leaves_nothing(service: Service) -> None:
    service.post(b"a model", idempotency_key="k")
    before = _stored(service)
    _problem(service.post(LARGE, idempotency_key="k"), 422, "idempotency-key-reused")
    assert _stored(service) == before


def test_a_tenant_has_a_quota_that_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quota, "TRUSTED_S", 0.0)
    monkeypatch.setattr(quota, "TIMES", 0)  # however busy the machine is
    monkeypatch.setattr(quota, "REFUSED_S", 0.0)
    with serving(tmp_path, tenant_quota=1000) as s:
        s.planned(b"p" * 100, b"m" * 500)  # and a summary of 9 bytes
        assert s.store.used_bytes("local") == 609
        found = _problem(s.post(b"n" * 500), 403, "quota-exceeded")
        assert (found["used_bytes"], found["requested_bytes"], found["limit_bytes"]) == (609, 500, 1000)
        assert "DELETE /v1/jobs/ID" in found["detail"]
        assert isinstance(problem_error(found, 403), LimitMet)
        assert len(list(s.store.blobs.digests())) == 3
        assert s.post(b"m" * 500, "devices=8").status_code == 202  # it has these bytes
        assert s.post(b"m" * 500).status_code == 202  # answered
        assert s.post(b"n" * 391).status_code == 202
        _problem(s.post(b"o"), 403, "quota-exceeded")
        assert s.store.used_bytes("other") == 0


def test_what_is_removed_counts_no_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quota, "TRUSTED_S", 0.0)
    monkeypatch.setattr(quota, "TIMES", 0)  # however busy the machine is
    with serving(tmp_path, tenant_quota=1000) as s:
        plan = s.planned(b"p" * 100, b"m" * 600)
        (job,) = s.client.get("/v1/jobs").json()["items"]
        _problem(s.post(b"n" * 500), 403, "quota-exceeded")
        assert s.client.delete(f"/v1/plans/{plan}").status_code == 204
        _problem(s.post(b"n" * 500), 403, "quota-exceeded")
        assert s.client.delete(job["links"]["self"]).status_code == 204
        _problem(s.client.get(job["links"]["self"]), 404, "not-found")
        waits = s.post(b"n" * 500)
        assert waits.status_code == 202
        _problem(s.client.delete(waits.json()["links"]["self"]), 409, "job-unfinished")
        _problem(s.client.delete("/v1/jobs/none"), 404, "not-found")


def test_a_large_body_beyond_the_quota_is_refused_before_it_is_read(tmp_path: Path) -> None:
    with serving(tmp_path, tenant_quota=1000) as s:
        large = b"x" * 2 * SMALL
        found = _problem(s.post(large), 403, "quota-exceeded")
        assert found["requested_bytes"] < len(large)  # by its declared length, less what a form may need
        assert not (s.store.blobs.folder / "00").exists()


def test_a_large_body_with_a_known_key_is_answered_whatever_the_quota(tmp_path: Path) -> None:
    large = b"x" * 2 * SMALL
    with serving(tmp_path, tenant_quota=3 * SMALL) as s:
        first = s.post(large, idempotency_key="k")
        assert first.status_code == 202
        _problem(s.post(b"y" * 2 * SMALL), 403, "quota-exceeded")
        assert s.post(large, idempotency_key="k").json()["id"] == first.json()["id"]


def test_nothing_stays_of_a_body_that_fills_the_disk(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is still to be written when the disk is full cannot be written when its file is closed either."""
    spooled: list[str] = []

    class Full(io.BytesIO):
        name = ""

        def writelines(self, lines: Any, /) -> None:
            raise OSError(errno.ENOSPC, "no space")

        def close(self) -> None:
            raise OSError(errno.ENOSPC, "no space")

    def spool(self: Blobs) -> Full:
        made = Full()
        made.name = str(self.folder / "spooled")
        Path(made.name).touch()
        spooled.append(made.name)
        return made

    service.store.blobs.put(b"makes the folder")
    monkeypatch.setattr(Blobs, "spool", spool)
    _problem(service.post(LARGE), 507, "storage-full")
    assert len(spooled) == 1
    assert not Path(spooled[0]).exists()


def test_what_is_refused_while_a_backup_holds_the_blobs_delays_nobody(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    def submit(*_: Any) -> Any:
        raise QueueFull("1 waits")

    monkeypatch.setattr(Store, "submit_all", submit)
    service.store.blobs.put(b"makes the folder")
    with _unpurged(service.store.folder), ThreadPoolExecutor() as pool:
        refused = [pool.submit(service.post, b"model %d" % k) for k in range(2)]
        began = time.monotonic()
        while not all(r.done() for r in refused):
            assert service.client.get("/healthz").status_code == 200
            time.sleep(0.01)
        assert time.monotonic() < began + 10.0
    for answer in refused:
        _problem(answer.result(), 429, "queue-full")


def test_a_store_that_is_away_hides_no_refusal_and_leaves_no_count(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    def submit(*_: Any) -> Any:
        raise QueueFull("1 waits")

    def discard(*_: Any) -> None:
        raise StoreFull("no space")

    monkeypatch.setattr(Store, "submit_all", submit)
    monkeypatch.setattr(Store, "discard", discard)
    form = {"model": b"a model", "constraints": b"rest: data_parallel"}
    _problem(service.client.post("/v1/plans?devices=4", files=form), 429, "queue-full")
    assert not service.client.app.state.service.arriving  # type: ignore[attr-defined]


def test_sums_are_made_now_and_then() -> None:
    now, made, used = 0.0, 0, 900

    def sums(tenant: str, beside: Any) -> int:
        nonlocal made
        made += 1
        return used

    quotas = Quotas(1000, sums, clock=lambda: now)
    for k in range(5):
        quotas.hold("a", k, {str(k): 10})
        quotas.let_go("a", k, accepted=True)
    assert made == 1
    with pytest.raises(Problem):
        quotas.check("a", 100)
    assert made == 1
    now = 2.0
    quotas.check("a", 100)  # what was added had been there
    assert made == 2
    used = 950
    quotas.check("a", 100)
    now = 20.0
    with pytest.raises(Problem):
        quotas.check("a", 100)
    quotas.forget("a")
    used = 0
    quotas.check("a", 100)


def test_requests_of_one_moment_do_not_exceed_the_quota_together(tmp_path: Path) -> None:
    with serving(tmp_path, tenant_quota=1000) as s, ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda k: s.post(b"%03d" % k * 130).status_code, range(24)))
        assert answers.count(202) == 2
        assert s.store.used_bytes("local") == 780
        assert not any(s.client.app.state.service.quotas._held.values())  # type: ignore[attr-defined]


def test_what_one_request_brings_counts_for_another_unless_it_is_the_same() -> None:
    quotas = Quotas(1000, lambda tenant, beside: 0 if "known" in beside else 600)
    quotas.hold("a", 1, {"new": 300})
    quotas.hold("a", 2, {"new": 300})
    quotas.hold("a", 3, {"known": 600})
    with pytest.raises(Problem):
        quotas.hold("a", 4, {"another": 300})
    quotas.hold("b", 1, {"another": 300})
    for k in (1, 2):
        quotas.let_go("a", k, accepted=False)
    quotas.hold("a", 4, {"another": 300})


def test_what_failed_and_cancelled_jobs_brought_goes_early(service: Service) -> None:
    failed, cancelled = service.post(b"fails"), service.post(b"is cancelled")
    service.store.leases.fail(service.claim(), problem("input-invalid", "made up"), lasting=True)
    service.client.post(f"{cancelled.json()['links']['self']}:cancel")
    service.planned(b"plan", b"a model")
    time.sleep(0.01)
    for path in service.store.blobs.folder.rglob("*"):
        if path.is_file():
            os.utime(path, (0, 0))
    assert service.store.purge(3600.0, 3600.0).blobs == 0
    assert service.store.purge(3600.0, 0.0).blobs == 2
    assert service.client.get(failed.json()["links"]["self"]).json()["error"]["detail"] == "made up"
    assert service.store.used_bytes("local") == len(b"plan" + b"a model" + b"a summary")
    assert service.post(b"fails").status_code == 202
