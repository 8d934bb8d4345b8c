"""A model that is gone takes with it only what needs the model."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from planner.api.jobs.blobs import digest_bytes
from tests.service.http import Service, serving


@pytest.fixture
def plan(service: Service) -> str:
    """A plan whose model.onnx is gone."""
    found = service.planned(model=b"the model")
    _model(service).unlink()
    return found


def _model(service: Service) -> Path:
    (plan,) = service.store.plans("local")
    return service.store.blobs.path(plan.files["model.onnx"].digest)


@pytest.mark.parametrize(
    "name", ["report.html", "report.json", "trace.json", "megatron.zip", "deepspeed.zip", "huggingface.zip"]
)
def test_what_is_made_of_the_plan_alone_is_made_without_the_model(service: Service, plan: str, name: str) -> None:
    worker = service.working({name: b"made"})
    answer = service.client.get(f"/v1/plans/{plan}/artifacts/{name}", headers={"prefer": "wait=10"})
    worker.join()
    assert (answer.status_code, answer.content) == (200, b"made")


@pytest.mark.parametrize("name", ["report.html", "report.json"])
def test_a_report_is_made_without_the_record_of_the_search_where_that_is_lost(service: Service, name: str) -> None:
    service.post()
    service.work({"plan.json": b"plan", "history.json": b"record"})
    (plan,) = service.store.plans("local")
    service.store.blobs.path(plan.files["history.json"].digest).unlink()
    worker = service.working({name: b"made"})
    answer = service.client.get(f"/v1/plans/{plan.id}/artifacts/{name}", headers={"prefer": "wait=10"})
    worker.join()
    assert (answer.status_code, answer.content) == (200, b"made")


def test_what_was_made_of_the_model_is_served_without_it(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = service.planned(model=b"the model")
    worker = service.working({"torch.zip": b"made"})
    at = f"/v1/plans/{plan}/artifacts/torch.zip"
    assert service.client.get(at, headers={"prefer": "wait=10"}).status_code == 200
    worker.join()
    _model(service).unlink()
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + 7200.0)  # so long after that its use is to be noted again
    answer = service.client.get(at)
    assert (answer.status_code, answer.content) == (200, b"made")


def test_what_is_still_to_be_made_of_the_model_says_that_it_is_lost(service: Service, plan: str) -> None:
    answer = service.client.get(f"/v1/plans/{plan}/artifacts/torch.zip")
    assert (answer.status_code, answer.json()["type"]) == (500, "urn:planner:problem:input-lost")


def test_what_is_computed_again_stays_the_tenants_own(tmp_path: Path) -> None:
    with serving(tmp_path, share="tenant") as s:
        plan = s.planned(b"plan", b"a model")
        s.store.blobs.path(digest_bytes(b"plan")).write_bytes(b"p1an")
        again = s.working({"plan.json": b"plan", "summary.txt": b"a summary", "model.onnx": b"a model"})
        assert s.client.get(f"/v1/plans/{plan}").content == b"plan"
        again.join()
        assert s.post(b"a model").json()["status"] == "succeeded"
