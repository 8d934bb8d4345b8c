"""Who may ask, and what the others do not see."""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from planner.api import keys
from planner.api.app import create_app
from planner.api.auth import COOKIE
from planner.api.jobs.store import Store
from planner.api.serve import refuse_open_door
from planner.api.settings import Settings, is_loopback, settings_of
from planner.errors import UsageError
from tests.service.http import Service, serving

PATHS = ("/v1/plans", "/v1/jobs", "/v1/hardware", "/v1/hardware/a100-80", "/v1/sessions", "/v1/diffs/a/b")


def _key(folder: Path, tenant: str) -> tuple[str, str]:
    return Store(folder).keys.create(tenant, "")


def test_without_any_key_whoever_is_on_this_machine_is_local(service: Service) -> None:
    assert service.client.get("/v1/sessions").json() == {"tenant": "local", "keys": False}


def test_with_a_key_every_path_needs_one(tmp_path: Path) -> None:
    key, secret = _key(tmp_path, "team")
    with serving(tmp_path) as s:
        for path in PATHS:
            answer = s.client.get(path)
            assert (answer.status_code, answer.json()["type"]) == (401, "urn:planner:problem:unauthorised")
            assert answer.headers["www-authenticate"] == 'Bearer realm="planner"'
        assert s.post().status_code == 401
        for value in ("Bearer wrong", "Basic abc", f"Basic {secret}", "Bearer", "Bearer \xe9"):
            assert s.client.get("/v1/jobs", headers={"authorization": value.encode("latin-1")}).status_code == 401
        good = {"authorization": f"Bearer {secret}"}
        assert s.client.get("/v1/sessions", headers=good).json() == {"tenant": "team", "keys": True}
        assert s.client.get("/healthz").status_code == 200
        s.store.keys.revoke(key)
        assert s.client.get("/v1/jobs", headers=good).status_code == 401
        assert s.client.get("/v1/jobs").status_code == 401  # the last key is gone, the door stays shut


def test_tenants_do_not_see_each_other(tmp_path: Path) -> None:
    secrets = {t: _key(tmp_path, t)[1] for t in ("a", "b")}
    with serving(tmp_path, secrets["a"]) as s:
        plan = s.planned()
        job = s.client.get("/v1/jobs").json()["items"][0]
        cursor = s.post(b"another").json() and s.client.get("/v1/jobs?limit=1").json()["next"]
        other = {"authorization": f"Bearer {secrets['b']}"}
        for method, path in (
            ("GET", f"/v1/jobs/{job['id']}"),
            ("GET", f"/v1/jobs/{job['id']}/events"),
            ("POST", f"/v1/jobs/{job['id']}:cancel"),
            ("GET", f"/v1/plans/{plan}"),
            ("DELETE", f"/v1/plans/{plan}"),
            ("GET", f"/v1/plans/{plan}/artifacts"),
            ("GET", f"/v1/plans/{plan}/artifacts/plan.json"),
            ("GET", f"/v1/plans/{plan}/explanation"),
            ("GET", f"/v1/diffs/{plan}/{plan}"),
            ("POST", f"/v1/evaluations?plan={plan}"),
        ):
            answer = s.client.request(method, path, headers=other)
            assert (answer.status_code, answer.json()["type"]) == (404, "urn:planner:problem:not-found"), path
        for path in ("/v1/jobs", "/v1/plans"):
            assert s.client.get(path, headers=other).json()["items"] == []
        assert s.client.get("/v1/jobs", params={"cursor": cursor}).status_code == 200
        assert s.client.get("/v1/jobs", params={"cursor": cursor}, headers=other).status_code == 400
        assert s.client.get(f"/v1/plans/{plan}").status_code == 200
        # The same request of another tenant is answered by the same computation, with a plan of its own.
        done = s.post(prefer="wait=1", authorization=other["authorization"])
        assert (done.status_code, done.json()["plan"]) == (200, plan)
        assert s.client.delete(f"/v1/plans/{plan}").status_code == 204
        assert s.client.get(f"/v1/plans/{plan}", headers=other).status_code == 200


def test_a_key_becomes_a_session_that_ends_with_the_key(tmp_path: Path) -> None:
    key, secret = _key(tmp_path, "team")
    with serving(tmp_path) as s:
        c = s.client
        assert c.post("/v1/sessions", json={"key": "wrong"}).status_code == 401
        answer = c.post("/v1/sessions", json={"key": secret})
        cookie = answer.headers["set-cookie"]
        assert "HttpOnly" in cookie
        assert "samesite=strict" in cookie.lower()
        assert secret not in cookie
        assert c.get("/v1/sessions").json() == {"tenant": "team", "keys": True}
        assert c.delete("/v1/sessions").status_code == 204
        assert c.get("/v1/jobs").status_code == 401
        c.post("/v1/sessions", json={"key": secret})
        value = c.cookies["planner_session"]
        for forged in (value[:-2] + "AA", "x", value[::-1]):
            c.cookies.clear()
            assert c.get("/v1/jobs", headers={"cookie": f"planner_session={forged}"}).status_code == 401
        good = {"cookie": f"planner_session={value}"}
        assert c.get("/v1/jobs", headers=good).status_code == 200
        s.store.keys.revoke(key)
        assert c.get("/v1/jobs", headers=good).status_code == 401


def test_a_session_that_was_ended_opens_nothing_in_any_process(tmp_path: Path) -> None:
    _, secret = _key(tmp_path, "team")
    with serving(tmp_path / ".") as s, serving(tmp_path) as other:
        cookies = []
        for _ in range(2):
            s.client.post("/v1/sessions", json={"key": secret})
            cookies.append({"cookie": f"planner_session={s.client.cookies['planner_session']}"})
            s.client.cookies.clear()
        assert cookies[0] != cookies[1]
        for each in (s, other):
            assert [each.client.get("/v1/jobs", headers=c).status_code for c in cookies] == [200, 200]
        assert s.client.delete("/v1/sessions", headers=cookies[0]).status_code == 204
        for each in (s, other):
            assert [each.client.get("/v1/jobs", headers=c).status_code for c in cookies] == [401, 200]
        for odd in ("x", "", cookies[1]["cookie"][:-3]):
            assert s.client.delete("/v1/sessions", headers={"cookie": f"planner_session={odd}"}).status_code == 204
        assert s.client.get("/v1/jobs", headers=cookies[1]).status_code == 200


def test_sessions_are_not_ended_without_a_pause(tmp_path: Path) -> None:
    """Each end is written to the disk, and whoever had a session once has its cookie for good."""
    _, secret = _key(tmp_path, "team")
    with serving(tmp_path, rate=2.0) as s:
        s.client.post("/v1/sessions", json={"key": secret})
        cookie = {"cookie": f"{COOKIE}={s.client.cookies[COOKIE]}"}
        found = [s.client.delete("/v1/sessions", headers=cookie).status_code for _ in range(5)]
        assert found[:2] == [204, 204]
        assert found[-1] == 429


def test_logins_of_one_network_have_one_rate(tmp_path: Path) -> None:
    """A machine with IPv6 has as many addresses as it likes."""
    app = create_app(Settings(data=tmp_path, rate=2.0), Store(tmp_path))

    async def login(address: str) -> int:
        transport = httpx.ASGITransport(app, client=(address, 1))
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8080") as client:
            return (await client.post("/v1/sessions", json={"key": "x"})).status_code

    async def logins() -> list[int]:
        return [await login(f"2001:db8::{k}") for k in range(1, 6)] + [await login("2001:db8:0:1::1")]

    found = asyncio.run(logins())
    assert found[4:] == [429, 200]


def test_ends_of_sessions_are_kept_until_these_would_have_ended(tmp_path: Path) -> None:
    sessions = Store(tmp_path).sessions
    sessions.end("old", time.time() - 90_000)
    sessions.end("just over", time.time() - 60)  # not yet by the clock of another host
    sessions.end("new", time.time() + 60)
    sessions.end("new", time.time() + 60)
    ended = [sessions.ended(session) for session in ("old", "just over", "new", "other")]
    assert ended == [False, True, True, False]


def test_a_session_of_an_earlier_version_goes_on_and_can_be_ended(tmp_path: Path) -> None:
    _, secret = _key(tmp_path, "team")
    with serving(tmp_path) as s:
        text = f"{int(time.time()) + 60}.{s.store.keys.mark(secret)}"
        sealed = s.client.app.state.service.signer.seal("session", text)  # type: ignore[attr-defined]
        cookie = {"cookie": f"planner_session={sealed}"}
        assert s.client.get("/v1/jobs", headers=cookie).status_code == 200
        s.client.delete("/v1/sessions", headers=cookie)
        assert s.client.get("/v1/jobs", headers=cookie).status_code == 401


def test_metrics_need_a_key_of_their_own_which_opens_nothing_else(tmp_path: Path, capsys: Any) -> None:
    keys.run(_keys(tmp_path, "create", "--metrics", "--name", "prometheus"))
    made = json.loads(capsys.readouterr().out)
    monitor = {"authorization": f"Bearer {made['secret']}"}
    with serving(tmp_path) as s:
        assert s.client.get("/v1/jobs").status_code == 200  # there is no tenant's key: whoever is here is local
        assert s.client.get("/metrics").status_code == 200
        with pytest.raises(UsageError, match="planner keys create"):
            refuse_open_door(Settings(data=tmp_path, host="0.0.0.0"), s.store)
        _, secret = _key(tmp_path, "team")
        tenant = {"authorization": f"Bearer {secret}"}
        assert s.client.get("/metrics", headers=monitor).text.startswith("# HELP")
        for refused in ({}, tenant, {"authorization": "Bearer x"}, {"authorization": f"Basic {made['secret']}"}):
            answer = s.client.get("/metrics", headers=refused)
            assert (answer.status_code, answer.json()["type"]) == (401, "urn:planner:problem:unauthorised")
            assert "planner_" not in answer.text
        assert s.client.get("/v1/jobs", headers=monitor).status_code == 401
        assert s.client.post("/v1/sessions", json={"key": made["secret"]}).status_code == 401
        s.store.keys.revoke(made["id"])
        assert s.client.get("/metrics", headers=monitor).status_code == 401


def test_a_session_is_asked_for_in_json(service: Service) -> None:
    c = service.client
    assert c.post("/v1/sessions", data={"key": "x"}).status_code == 415
    for body in ("[]", "{}", '{"key": 3}', "nonsense", '{"key": "x", "more": 1}', "\xff"):
        answer = c.post("/v1/sessions", content=body, headers={"content-type": "application/json"})
        assert (answer.status_code, answer.json()["type"]) == (422, "urn:planner:problem:validation")
        assert answer.json()["errors"]
    assert c.post("/v1/sessions", json={"key": "x"}).json() == {"tenant": "local", "keys": False}


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.2", "planner.example"])
def test_beyond_this_machine_the_service_refuses_to_listen_without_a_key(tmp_path: Path, host: str) -> None:
    store, settings = Store(tmp_path), Settings(data=tmp_path, host=host)
    with pytest.raises(UsageError, match="planner keys create"):
        refuse_open_door(settings, store)
    store.keys.create("team", "")
    refuse_open_door(settings, store)


def test_loopback_is_what_only_this_machine_reaches() -> None:
    assert all(map(is_loopback, ("127.0.0.1", "127.1.2.3", "::1", "[::1]", "localhost")))
    assert not any(map(is_loopback, ("0.0.0.0", "::", "10.0.0.1", "localhost.example", "")))


def _keys(folder: Path, *words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    keys.configure(parser)
    return parser.parse_args([*words, "--data", str(folder), "--json"])


def test_keys_are_made_listed_and_revoked_on_the_command_line(tmp_path: Path, capsys: Any) -> None:
    keys.run(_keys(tmp_path, "create", "--tenant", "team", "--name", "laptop"))
    made = json.loads(capsys.readouterr().out)
    assert Store(tmp_path).keys.authenticate(made["secret"]) == "team"
    assert made["secret"].encode() not in b"".join(p.read_bytes() for p in tmp_path.iterdir() if p.is_file())
    keys.run(_keys(tmp_path, "list"))
    (listed,) = json.loads(capsys.readouterr().out)
    assert (listed["tenant"], listed["name"], listed["revoked_at"]) == ("team", "laptop", None)
    keys.run(_keys(tmp_path, "revoke", made["id"]))
    assert Store(tmp_path).keys.authenticate(made["secret"]) is None
    with pytest.raises(UsageError, match="none"):
        keys.run(_keys(tmp_path, "revoke", "nothing"))
    for tenant in ("local", "", "A b"):
        with pytest.raises(UsageError, match="--tenant"):
            keys.run(_keys(tmp_path, "create", "--tenant", tenant))


def test_looking_for_keys_makes_no_folder(tmp_path: Path, capsys: Any) -> None:
    for words in (["list"], ["revoke", "nothing"]):
        with pytest.raises(UsageError, match="no such folder"):
            keys.run(_keys(tmp_path / "typo", *words))
    assert not (tmp_path / "typo").exists()
    Store(tmp_path)
    parser = argparse.ArgumentParser()
    keys.configure(parser)
    assert keys.run(parser.parse_args(["list", "--data", str(tmp_path)])) == 0
    assert "no keys" in capsys.readouterr().err


def test_settings_come_from_options_then_variables_then_defaults(tmp_path: Path) -> None:
    environment = {"PLANNER_PORT": "9000", "PLANNER_DATA": str(tmp_path), "PLANNER_UPLOAD_LIMIT": "1MiB"}
    found = settings_of(argparse.Namespace(port="7"), environment)
    assert (found.port, found.data, found.upload_limit, found.host) == (7, tmp_path, 2**20, "127.0.0.1")
    for name, value in (
        ("PORT", "x"),
        ("PORT", "65536"),
        ("RATE", "-1"),
        ("RATE", "x"),
        ("UPLOAD_LIMIT", "much"),
        ("QUEUE", "0"),
        ("HTTPS", "maybe"),
    ):
        with pytest.raises(UsageError, match=f"PLANNER_{name} '{value}': expected"):
            settings_of(argparse.Namespace(), {f"PLANNER_{name}": value})


def test_serving_to_others_without_a_key_ends_with_a_message(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "planner", "serve", "--host", "0.0.0.0", "--port", "0", "--data", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert "planner keys create --tenant NAME" in done.stderr
