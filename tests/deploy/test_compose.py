"""The compose file starts what the program has, with its own options, and gives nothing more than that needs."""

from __future__ import annotations

import argparse
import configparser
import importlib
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import psycopg
import pytest
import yaml

from planner.api.jobs.opening import open_database
from planner.api.jobs.s3.bucket import bucket_of
from planner.api.settings import Settings, settings_of
from tests.service import postgres
from tests.service.buckets import s3_server
from tests.service.places import postgres_server

__all__ = ["postgres_server", "s3_server"]

DEPLOY = Path(__file__).parents[2] / "docs" / "deploy"
COMPOSE: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text(encoding="utf-8"))
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
OURS = ("bucket", "migrate", "api", "worker")


def test_every_other_image_is_of_one_exact_version() -> None:
    others = {name: s["image"] for name, s in SERVICES.items() if name not in OURS}
    assert set(others) == {"database", "objects"}
    for image in others.values():
        assert re.fullmatch(r"[a-z/]+:(\d+\.\d+-\w+|RELEASE\.[\dTZ-]+)", image)
    assert not re.search(r":latest", str(SERVICES))


@pytest.mark.parametrize("name", OURS)
def test_our_containers_may_do_little(name: str) -> None:
    service = SERVICES[name]
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert [t.partition(":")[0] for t in service["tmpfs"]] == ["/tmp"]
    assert not {"privileged", "cap_add", "user", "volumes", "network_mode"} & set(service)


@pytest.mark.parametrize("name", ["database", "objects", "api", "worker"])
def test_what_goes_on_has_limits_and_a_health_check(name: str) -> None:
    limits = SERVICES[name]["deploy"]["resources"]["limits"]
    assert {"cpus", "memory"} <= set(limits)
    assert name == "api" or "healthcheck" in SERVICES[name]  # the image has that of `api`


@pytest.mark.parametrize("name", ["migrate", "api", "worker"])
def test_commands_are_those_of_the_program(name: str) -> None:
    command, *options = SERVICES[name]["command"]
    modules = {"store": "upkeep", "serve": "serve", "worker": "jobs.command"}
    parser = argparse.ArgumentParser(exit_on_error=False)
    importlib.import_module(f"planner.api.{modules[command]}").configure(parser)
    parser.parse_args(options)


def test_secrets_are_files_that_the_script_makes(tmp_path: Path) -> None:
    folder = tmp_path / "secrets"
    subprocess.run([DEPLOY / "secrets.sh", folder], check=True)
    named = {name: Path(s["file"]).name for name, s in COMPOSE["secrets"].items()}
    assert set(named.values()) == {p.name for p in folder.iterdir()}
    assert {name for s in SERVICES.values() for name in s.get("secrets", [])} == set(named)
    assert folder.stat().st_mode & 0o077 == 0
    again = subprocess.run([DEPLOY / "secrets.sh", folder], capture_output=True, text=True)
    assert (again.returncode, "is there already" in again.stderr) == (1, True)
    for file in ("pg_service", "s3_credentials"):
        (section,) = [s for _, s in _sections(folder / file)]
        password = "pg_password" if file == "pg_service" else "s3_password"
        assert (folder / password).read_text() in section.values()


def _sections(file: Path) -> list[tuple[str, dict[str, str]]]:
    parser = configparser.ConfigParser()
    parser.read(file)
    return [(name, dict(parser[name])) for name in parser.sections()]


def test_the_environment_is_that_of_the_settings() -> None:
    for name in OURS:
        environment = SERVICES[name]["environment"]
        known = {f"PLANNER_{n.upper()}" for n in Settings.__dataclass_fields__}
        assert {n for n in environment if n.startswith("PLANNER_")} <= known
        assert all(not str(v).count("password") for v in environment.values())
    settings = settings_of(argparse.Namespace(), SERVICES["api"]["environment"])
    bucket = bucket_of(settings.blobs)
    assert (bucket.name, bucket.endpoint) == ("plans", "http://objects:9000")


def test_the_database_is_found_by_a_service_file(
    postgres_server: postgres.Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its permissions are those that a container's secret has."""
    parts = psycopg.conninfo.conninfo_to_dict(postgres_server.database())
    file = tmp_path / "pg_service"
    file.write_text("[planner]\n" + "".join(f"{k}={v}\n" for k, v in parts.items()))
    file.chmod(0o444)
    monkeypatch.setenv("PGSERVICEFILE", str(file))
    database = open_database(tmp_path, SERVICES["api"]["environment"]["PLANNER_STORE"])
    try:
        with database.read() as db:
            assert db.execute("SELECT COUNT(*) FROM tasks").fetchone()[0] == 0
    finally:
        database.close()


def test_the_bucket_is_made_once(s3_server: str) -> None:
    program = SERVICES["bucket"]["command"][0].replace("http://objects:9000", s3_server)
    keys = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test"}
    for _ in range(2):
        subprocess.run([sys.executable, "-c", program], check=True, env={**os.environ, **keys})


def test_the_health_check_of_a_worker_looks_at_what_it_touches(tmp_path: Path) -> None:
    command = SERVICES["worker"]["command"]
    file = command[command.index("--alive") + 1]
    test = SERVICES["worker"]["healthcheck"]["test"][1].replace("$$", "$")
    assert file in test
    alive = tmp_path / "alive"
    probe = ["sh", "-c", test.replace(file, str(alive))]
    assert subprocess.run(probe, capture_output=True).returncode != 0
    alive.touch()
    assert subprocess.run(probe).returncode == 0
    os.utime(alive, (0.0, 0.0))
    assert subprocess.run(probe).returncode != 0
