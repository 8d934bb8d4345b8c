"""`planner store`: what is damaged is found, and a backup is a store that serves."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest

from planner.api.jobs.store import Store
from planner.cli.main import main
from tests.service.http import serving


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """The folder of a service that holds a plan, and a job that waits."""
    folder = tmp_path / "data"
    with serving(folder) as s:
        s.planned()
        s.post(b"another model")
    return folder


def _checked(data: Path, capsys: pytest.CaptureFixture[str]) -> tuple[int, dict[str, object]]:
    capsys.readouterr()
    status = main(["store", "check", "--data", str(data), "--json"])
    return status, json.loads(capsys.readouterr().out)


def test_a_sound_store_is_said_to_be_sound(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, found = _checked(data, capsys)
    assert (status, found["sound"], found["jobs"], found["blobs"]) == (0, True, 2, 4)
    assert main(["store", "check", "--data", str(data)]) == 0
    assert capsys.readouterr().out.startswith("ok: 2 jobs, 4 blobs")


def test_damaged_and_missing_blobs_are_named_and_left_as_they_are(
    data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = Store(data)
    plan = store.plans("local")[0]
    damaged, missing = (store.blobs.path(plan.files[name].digest) for name in ("plan.json", "summary.txt"))
    damaged.write_bytes(b"other content")
    missing.unlink()
    status, found = _checked(data, capsys)
    assert (status, found["damaged"], found["missing"]) == (1, [damaged.name], [missing.name])
    assert damaged.read_bytes() == b"other content"
    assert main(["store", "check", "--data", str(data)]) == 1
    out = capsys.readouterr().out
    assert f"blob {damaged.name}: its file has other content" in out
    assert f"blob {missing.name}: a row names it, and it is gone" in out


def test_a_torn_database_is_a_finding(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = data / "store.sqlite"
    content = bytearray(path.read_bytes())
    content[4096 : 3 * 4096] = bytes(range(256)) * 32
    path.write_bytes(content)
    for beside in data.glob("store.sqlite-*"):
        beside.unlink()
    status, found = _checked(data, capsys)
    assert status == 1
    assert found["database"]


def test_what_holds_no_store_is_refused_and_stays_empty(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["store", "check", "--data", str(tmp_path)]) == 2
    assert main(["store", "backup", str(tmp_path / "copy"), "--data", str(tmp_path)]) == 2
    assert "found no store.sqlite in it" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_backup_serves_the_same_plans_and_goes_on_with_what_waited(data: Path, tmp_path: Path) -> None:
    plan = Store(data).plans("local")[0]
    assert main(["store", "backup", str(tmp_path / "copy"), "--data", str(data)]) == 0
    with serving(tmp_path / "copy") as s:
        assert s.client.get(f"/v1/plans/{plan.id}").content == b'{"a": "plan"}'
        assert s.claim().kind == "plan"
    assert (tmp_path / "copy" / "secret").read_bytes() == (data / "secret").read_bytes()


def test_a_backup_is_of_one_moment_while_others_write(data: Path, tmp_path: Path) -> None:
    end = threading.Event()

    def write() -> None:
        with serving(data) as s:
            k = 0
            while not end.is_set():
                k += 1
                s.planned(b'{"plan": %d}' % k, b"model %d" % k)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for k in range(3):
            assert main(["store", "backup", str(tmp_path / f"copy{k}"), "--data", str(data)]) == 0
            assert main(["store", "check", "--data", str(tmp_path / f"copy{k}")]) == 0
    finally:
        end.set()
        writer.join()


def test_a_backup_of_a_damaged_store_leaves_nothing(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = Store(data)
    store.blobs.path(store.plans("local")[0].files["plan.json"].digest).write_bytes(b"other content")
    assert main(["store", "backup", str(tmp_path / "copy"), "--data", str(data)]) == 3
    assert "so that no backup was made" in capsys.readouterr().err
    assert [p.name for p in tmp_path.iterdir()] == ["data"]


def test_a_backup_replaces_nothing(data: Path, tmp_path: Path) -> None:
    assert main(["store", "backup", str(data), "--data", str(data)]) == 2
