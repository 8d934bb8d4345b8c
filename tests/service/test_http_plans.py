"""From a model to a plan and what is made of it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from planner.api.jobs.problems import problem
from tests.service.http import ONNX, Service, serving

PLAN = json.dumps({"a": "plan", "of": ["many", "words"] * 400}).encode()


def test_a_model_becomes_a_job_and_the_job_a_plan(service: Service) -> None:
    answer = service.post()
    assert answer.status_code == 202
    job = answer.json()
    assert answer.headers["location"] == job["links"]["self"] == f"/v1/jobs/{job['id']}"
    assert (job["status"], job["plan"], job["options"]["devices"]) == ("queued", None, 4)
    service.work({"plan.json": PLAN}, {"gap": 0.5})
    done = service.client.get(job["links"]["self"]).json()
    assert (done["status"], done["summary"]) == ("succeeded", {"gap": 0.5})
    got = service.client.get(done["links"]["plan"])
    assert got.content == PLAN
    assert [p["id"] for p in service.client.get("/v1/plans").json()["items"]] == [done["plan"]]


def test_what_the_search_gets_are_the_options_that_were_said(service: Service) -> None:
    query = "devices=8&batch=4&pin=rest%3Ddata_parallel&bind=b%3D2&bind=a%3D1&memory_limit=1GiB&name=net&stages=1"
    service.post(query=query)
    claim = service.claim()
    assert dict(claim.options) == {
        **{"devices": 8, "batch": 4, "pin": ["rest=data_parallel"], "bind": ["a=1", "b=2"]},
        **{"memory_limit": "1GiB", "name": "net"},
    }


def test_a_form_carries_model_constraints_and_the_models_name(service: Service) -> None:
    files = {"model": ("../x/my net.onnx", b"the model"), "constraints": ("c.yaml", b"pins: []")}
    answer = service.client.post("/v1/plans?devices=2", files=files)
    assert answer.json()["name"] == "my_net"
    claim = service.claim()
    assert {n: service.store.blobs.read(d) for n, d in claim.inputs.items()} == {
        "model": b"the model",
        "constraints": b"pins: []",
    }


def test_a_large_model_arrives_as_it_was_sent(service: Service) -> None:
    content = bytes(range(256)) * 20_000
    for _ in range(2):  # the second time the blob is there
        service.post(content, query="devices=2")
        service.client.post("/v1/plans?devices=2", files={"model": content})
    claim = service.claim()
    assert service.store.blobs.read(claim.inputs["model"]) == content
    assert not list(service.store.blobs.folder.rglob(".tmp-*"))


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (b"", "multipart/form-data; boundary=b"),
        (b"junk", "multipart/form-data; boundary=b"),
        (b"--b\r\n\r\nx\r\n--b--", "multipart/form-data; boundary=b"),
        (
            b'--b\r\ncontent-disposition: form-data; name="other"\r\n\r\nx\r\n--b--\r\n',
            "multipart/form-data; boundary=b",
        ),
        (b'--b\r\ncontent-disposition: form-data; name="model"\r\n\r\nx\r\n', "multipart/form-data; boundary=b"),
        (b"--b--\r\n", "multipart/form-data; boundary=b"),
        (b"x", "multipart/form-data"),
        (b"x", "multipart/form-data; boundary=" + "b" * 5000),
        (b"--b\r\n" + b"a: " + b"x" * 20_000, "multipart/form-data; boundary=b"),
        (b"--b\r\n" + b"a: x\r\n" * 50 + b"\r\n", "multipart/form-data; boundary=b"),
    ],
)
def test_a_malformed_form_is_refused(service: Service, body: bytes, kind: str) -> None:
    answer = service.client.post("/v1/plans?devices=2", content=body, headers={"content-type": kind})
    assert answer.json()["type"] == "urn:planner:problem:validation", answer.text
    assert not list(service.store.blobs.folder.rglob(".tmp-*"))


def test_whoever_prefers_to_wait_gets_the_finished_job(service: Service) -> None:
    worker = service.working({"plan.json": PLAN})
    answer = service.post(prefer="respond-async, wait=20")
    worker.join()
    assert answer.status_code == 200
    assert answer.json()["status"] == "succeeded"
    assert answer.headers["preference-applied"] == "wait=20"
    assert service.post(query="devices=3", prefer="wait=0").status_code == 202


def test_equal_requests_share_one_computation_and_later_ones_are_answered_at_once(service: Service) -> None:
    first, second = service.post().json(), service.post().json()
    assert first["id"] != second["id"]
    service.work({"plan.json": PLAN})
    assert service.store.counts()["tasks"]["queued"] == 0
    third = service.post(prefer="wait=1")
    assert (third.status_code, third.json()["id"]) == (200, second["id"])
    service.client.delete(third.json()["links"]["plan"])
    fourth = service.post(prefer="wait=1").json()  # whoever gave the plan away gets it again
    assert service.client.get(fourth["links"]["plan"]).content == PLAN
    plans = {
        service.client.get(f"/v1/jobs/{j}").json()["plan"] for j in (first["id"], second["id"], third.json()["id"])
    }
    assert len(plans) == 1


def test_an_idempotency_key_stands_for_one_request(service: Service) -> None:
    first = service.post(idempotency_key="k1").json()
    assert service.post(idempotency_key="k1").json()["id"] == first["id"]
    for model, query in ((b"another", "devices=4"), (b"a model", "devices=5")):
        answer = service.post(model, query, idempotency_key="k1")
        assert (answer.status_code, answer.json()["type"]) == (422, "urn:planner:problem:idempotency-key-reused")
    assert service.post(idempotency_key="k2").json()["id"] != first["id"]


def test_lists_come_in_pages_whose_cursors_cannot_be_made_up(service: Service) -> None:
    ids = [service.post(query=f"devices={n}").json()["id"] for n in range(1, 6)]
    seen: list[str] = []
    url: str | None = "/v1/jobs?limit=2"
    while url is not None:
        page = service.client.get(url)
        seen += [j["id"] for j in page.json()["items"]]
        url = page.links["next"]["url"] if "next" in page.links else None
    assert seen == ids[::-1]
    cursor = service.client.get("/v1/jobs?limit=2").json()["next"]
    for other in (cursor[:-1] + ("A" if cursor[-1] != "A" else "B"), cursor[::-1], "%00", "x" * 400):
        answer = service.client.get("/v1/jobs", params={"cursor": other})
        assert (answer.status_code, answer.json()["type"]) == (400, "urn:planner:problem:cursor-invalid")
    assert service.client.get("/v1/plans", params={"cursor": cursor}).status_code == 400  # of another list


def test_jobs_are_found_by_their_state(service: Service) -> None:
    service.planned()
    service.post(b"another")
    assert [len(service.client.get(f"/v1/jobs?status={s}").json()["items"]) for s in ("queued", "succeeded")] == [1, 1]


def test_a_full_queue_is_said(tmp_path: Path) -> None:
    with serving(tmp_path, queue=1) as s:
        s.post()
        answer = s.post(b"another")
        assert (answer.status_code, answer.json()["type"]) == (429, "urn:planner:problem:queue-full")
        assert answer.headers["retry-after"]


def test_a_job_that_is_given_up_is_cancelled(service: Service) -> None:
    job = service.post().json()
    cancelled = service.client.post(job["links"]["cancel"]).json()
    assert cancelled["status"] == "cancelled"
    assert "cancel" not in cancelled["links"]
    assert service.client.post(job["links"]["cancel"]).json() == cancelled


def test_why_a_job_failed_is_a_problem_in_it(service: Service) -> None:
    job = service.post().json()
    error = problem("cannot-fit", "too big", lower_bound_bytes=5, sufficient_bytes=None)
    service.store.leases.fail(service.claim(), error, lasting=True)
    found = service.client.get(job["links"]["self"]).json()
    assert (found["status"], found["error"]) == ("failed", error)


def test_a_plan_that_the_caller_has_is_not_sent_again(service: Service) -> None:
    plan = service.planned(PLAN)
    for url in (f"/v1/plans/{plan}", f"/v1/plans/{plan}/artifacts/summary.txt"):
        got = service.client.get(url)
        assert got.headers["cache-control"] == "private, no-cache"
        assert service.client.get(url, headers={"if-none-match": got.headers["etag"]}).status_code == 304
        assert service.client.get(url, headers={"if-none-match": '"x"'}).status_code == 200


def test_a_plan_is_forgotten_unless_it_is_another_version(service: Service) -> None:
    plan = service.planned(PLAN)
    tag = service.client.get(f"/v1/plans/{plan}").headers["etag"]
    assert service.client.delete(f"/v1/plans/{plan}", headers={"if-match": '"x"'}).status_code == 412
    assert service.client.delete(f"/v1/plans/{plan}", headers={"if-match": tag}).status_code == 204
    assert service.client.get(f"/v1/plans/{plan}").status_code == 404
    assert service.client.delete(f"/v1/plans/{plan}").status_code == 404


def test_artifacts_are_made_when_they_are_asked_for(service: Service) -> None:
    plan = service.planned(PLAN)
    listed = {a["name"]: a for a in service.client.get(f"/v1/plans/{plan}/artifacts").json()["items"]}
    assert listed["plan.json"]["size"] == len(PLAN)
    assert listed["torch.zip"]["size"] is None
    worker = service.working({"report.html": b"<!doctype html>report"})
    got = service.client.get(listed["report.html"]["href"])
    worker.join()
    assert (got.status_code, got.content) == (200, b"<!doctype html>report")
    assert "sandbox" in got.headers["content-security-policy"]
    assert "frame-ancestors 'self'" in got.headers["content-security-policy"]
    assert service.store.counts()["tasks"]["succeeded"] == 2
    assert service.client.get(listed["report.html"]["href"]).status_code == 200  # found, not made again
    waiting = service.client.get(listed["torch.zip"]["href"], headers={"prefer": "wait=0"})
    assert (waiting.status_code, waiting.json()["status"]) == (202, "queued")
    assert waiting.headers["retry-after"] == "1"
    assert service.client.get(f"/v1/plans/{plan}/artifacts/nothing").status_code == 404


def test_a_target_that_refuses_is_a_problem(service: Service) -> None:
    plan = service.planned(PLAN)
    service.client.get(f"/v1/plans/{plan}/artifacts/megatron.zip", headers={"prefer": "wait=0"})
    service.store.leases.fail(service.claim(), problem("target-refuses", "no words"), lasting=True)
    answer = service.client.get(f"/v1/plans/{plan}/artifacts/megatron.zip")
    assert (answer.status_code, answer.json()["type"]) == (422, "urn:planner:problem:target-refuses")


def test_a_damaged_result_that_is_not_made_again_yet_is_to_be_asked_for_later(tmp_path: Path) -> None:
    with serving(tmp_path, most_wait=0.05) as s:
        at = f"/v1/plans/{s.planned()}"
        blob = s.store.plan("local", at.rpartition("/")[2]).files["plan.json"]
        s.store.blobs.path(blob.digest).unlink()
        answer = s.client.get(at)
        assert (answer.status_code, answer.json()["type"]) == (503, "urn:planner:problem:unavailable")
        assert int(answer.headers["retry-after"]) > 0
        s.work({"plan.json": b'{"a": "plan"}'})
        assert s.client.get(at).content == b'{"a": "plan"}'


def test_a_damaged_result_is_made_again(service: Service) -> None:
    plan = service.planned(PLAN)
    at = service.store.plan("local", plan).files["plan.json"]
    service.store.blobs.path(at.digest).write_bytes(b"torn")
    worker = service.working({"plan.json": PLAN})
    assert service.client.get(f"/v1/plans/{plan}").content == PLAN
    worker.join()


def test_a_diff_is_json_or_a_page_as_the_caller_likes(service: Service) -> None:
    a, b = service.planned(PLAN), service.planned(b"{}", b"another")
    url = f"/v1/diffs/{a}/{b}"
    asked = {
        "application/json": "json",
        "text/html": "html",
        "*/*": "json",
        "text/html;q=0.5, application/json": "json",
        "text/*": "html",
    }
    for accept, form in asked.items():
        got = service.client.get(url, headers={"accept": accept, "prefer": "wait=0"})
        if got.status_code == 202:
            claim = service.work({f"diff.{form}": b"{}"})
            assert claim.options["form"] == form
            got = service.client.get(url, headers={"accept": accept})
        assert got.headers["content-type"].startswith("text/html" if form == "html" else "application/json")
        assert "Accept" in got.headers["vary"]
    refused = service.client.get(url, headers={"accept": "image/png"})
    assert (refused.status_code, refused.json()["type"]) == (406, "urn:planner:problem:not-acceptable")
    assert service.client.get(f"{url}?format=pdf").status_code == 422
    assert service.client.get(f"/v1/diffs/{a}/none").status_code == 404


def test_a_transfer_says_who_sends_what_to_whom(service: Service) -> None:
    a, b = service.planned(PLAN), service.planned(b"{}", b"another")
    url = f"/v1/transfers/{a}/{b}"
    assert service.client.get(f"{url}?lost=7,3&optimizer=sgd", headers={"prefer": "wait=0"}).status_code == 202
    claim = service.work({"transfer.json": b"{}"})
    assert claim.options == {"lost": [3, 7], "optimizer": "sgd"}
    assert service.client.get(f"{url}?lost=3,7&optimizer=sgd").json() == {}
    for query in ("lost=x", "lost=3,", "optimizer=adagrad"):
        assert service.client.get(f"{url}?{query}").status_code == 422
    assert service.client.get(f"/v1/transfers/{a}/none").status_code == 404


def test_an_evaluation_is_a_job_whose_summary_is_the_answer(service: Service) -> None:
    url = "/v1/evaluations?devices=4&strategy=fsdp"
    job = service.client.post(url, content=b"model", headers=ONNX).json()
    assert job["kind"] == "evaluation"
    service.work({"evaluation.json": b"{}"}, {"step_time_s": 1.0})
    assert service.client.get(job["links"]["self"]).json()["summary"] == {"step_time_s": 1.0}


def test_a_plan_is_evaluated_on_another_machine_with_the_model_that_was_kept(service: Service) -> None:
    plan = service.planned(PLAN, b"the model")
    assert service.client.post(f"/v1/evaluations?plan={plan}&hardware=h100").status_code == 202
    claim = service.claim()
    assert {n: service.store.blobs.read(d) for n, d in claim.inputs.items()} == {"model": b"the model", "plan": PLAN}
    for query in ("devices=4", f"plan={plan}&strategy=fsdp", "strategy=fsdp", f"plan={plan}&precision=bf16"):
        assert service.client.post(f"/v1/evaluations?{query}").json()["type"].endswith("usage")
    refused = service.client.post("/v1/evaluations?strategy=fsdp&devices=4").json()
    assert (refused["type"], refused["detail"]) == ("urn:planner:problem:usage", "strategy: send the model in the body")
    assert service.client.post("/v1/evaluations?plan=none").status_code == 404


def test_an_explanation_is_computed_for_an_operator_of_any_name(service: Service) -> None:
    plan = service.planned(PLAN)
    query = {"operator": "/h.0/attn/MatMul:0", "alternatives": "2"}
    worker = service.working({"explanation.json": b"{}"})
    assert service.client.get(f"/v1/plans/{plan}/explanation", params=query).json() == {}
    worker.join()


def test_an_option_that_is_given_twice_is_refused_but_for_lists(service: Service) -> None:
    for query in ("devices=4&devices=8", "devices=4&solver=dp&solver=dp"):
        answer = service.post(query=query)
        assert (answer.status_code, answer.json()["type"]) == (422, "urn:planner:problem:validation")
        assert "more than once" in answer.json()["errors"][0]["detail"]
    assert service.post(query="devices=4&bind=a=2&bind=b=3").status_code == 202
    model = service.planned()
    answer = service.client.post(f"/v1/evaluations?plan={model}&hardware=h100&hardware=a100-80")
    assert answer.status_code == 422


def test_a_compressed_body_is_refused_before_it_becomes_a_job(service: Service) -> None:
    answer = service.post(content_encoding="gzip")
    assert (answer.status_code, answer.headers["accept-encoding"]) == (415, "identity")
    assert service.post(content_encoding="identity").status_code == 202
    assert len(service.client.get("/v1/jobs").json()["items"]) == 1
