"""The service answers health checks and lists the hardware."""

from __future__ import annotations

from fastapi.testclient import TestClient

from api.app import create_app
from cost_models import profile_names


def test_health() -> None:
    client = TestClient(create_app())
    assert client.get("/healthz").json()["status"] == "ok"
    assert client.get("/readyz").status_code == 200


def test_hardware_lists_every_profile() -> None:
    found = TestClient(create_app()).get("/v1/hardware").json()
    assert [h["name"] for h in found] == list(profile_names())
