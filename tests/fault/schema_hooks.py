"""What Schemathesis is told of this service; loaded by `tests.fault.schema`.

Half of the well-formed requests speak of things that are there: a model that can be planned, its plan, its job.  And a
well-formed request may be refused for what it means, but never for its form.
"""

from __future__ import annotations

import json
import os
import random
import urllib.request
from pathlib import Path
from typing import Any

import schemathesis
from hypothesis import strategies as st

URL, KEY = os.environ["PLANNER_TEST_URL"], os.environ["PLANNER_TEST_KEY"]
MODEL = (Path(__file__).parents[2] / "sample_graphs" / "mlp.onnx").read_bytes()
HEADERS = {"authorization": f"Bearer {KEY}", "content-type": "application/octet-stream", "prefer": "wait=30"}
FORM = ("validation", "bad-request", "unsupported-media-type", "method-not-allowed", "not-acceptable", "too-large")

schemathesis.openapi.media_type(
    "application/octet-stream", st.one_of(st.just(MODEL), st.just(MODEL[:-7]), st.binary(min_size=1, max_size=500))
)


def _job(devices: int) -> dict[str, Any]:
    asked = urllib.request.Request(f"{URL}/v1/plans?devices={devices}", data=MODEL, headers=HEADERS, method="POST")
    with urllib.request.urlopen(asked, timeout=60) as answer:
        found: dict[str, Any] = json.load(answer)
    return found


@schemathesis.hook
def before_call(context: Any, case: Any, kwargs: dict[str, Any]) -> None:
    meta = case.meta
    if meta is None or not meta.generation.mode.is_positive or meta.phase.name.value == "stateful":
        return  # what follows from an earlier answer stays as it is
    parameters = case.path_parameters
    if not KEY or not parameters or random.random() < 0.5:
        return
    job = _job(random.choice((2, 4)))
    for name in ("plan_id", "a", "b"):
        if name in parameters and job["plan"] is not None:
            parameters[name] = job["plan"]
    if "job_id" in parameters:
        parameters["job_id"] = job["id"]
    if case.operation.definition.raw.get("operationId") == "getArtifact":
        parameters["name"] = random.choice(("plan.json", "report.json", "summary.txt", "torch.zip", "megatron.zip"))
    if case.operation.definition.raw.get("operationId") == "getHardware":
        parameters["name"] = random.choice(("a100-80", "ascend-910b"))


@schemathesis.check
def well_formed_requests_are_not_refused_for_their_form(ctx: Any, response: Any, case: Any) -> None:
    if case.meta is None or not case.meta.generation.mode.is_positive or response.status_code < 400:
        return
    kind = response.json()["type"].rpartition(":")[2]
    assert kind not in FORM, f"{kind}: {response.json()['detail']}"


@schemathesis.check
def errors_are_problems(ctx: Any, response: Any, case: Any) -> None:
    if response.status_code < 400 or case.method.upper() == "HEAD":
        return
    assert response.headers["content-type"] == ["application/problem+json"], response.headers["content-type"]
    found = response.json()
    assert found["status"] == response.status_code
    assert found["instance"] == f"urn:planner:request:{response.headers['x-request-id'][0]}"
