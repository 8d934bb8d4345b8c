"""Plans kept on disk: found again, never stale, never torn."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import onnx
import pytest

from planner.cache import Store
from planner.cli.main import main
from tests.unit.semantics_model import transformer

KEY = "0" * 64


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "transformer.onnx"
    path.write_bytes(transformer())
    return path


def search(capsys: pytest.CaptureFixture[str], model: Path, *extra: object, devices: int = 4) -> dict[str, Any]:
    arguments = ["search", model, "--devices", devices, "--out", model.parent / "out", "--force", "--json", *extra]
    assert main([str(a) for a in arguments]) == 0
    document: dict[str, Any] = json.loads(capsys.readouterr().out)
    return document


def test_a_hit_gives_the_same_bytes_and_says_so(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = search(capsys, model)
    written = Path(first["plan"]).read_bytes()
    Path(first["plan"]).unlink()
    second = search(capsys, model)
    assert not first.pop("cached")
    assert second.pop("cached")
    assert first == second, "search_seconds are those of the search"
    assert Path(second["plan"]).read_bytes() == written


@pytest.mark.parametrize(
    "option",
    [
        ("--batch", 8), ("--optimizer", "sgd"), ("--precision", "fp32"), ("--memory-limit", "64GiB"), ("--mesh", "2x2"),
        ("--top-k", 2), ("--mode", "inference"), ("--hardware", "h100"), ("--pin", "rest=data_parallel"),
    ],
)  # fmt: skip
def test_another_request_is_another_entry(
    model: Path, capsys: pytest.CaptureFixture[str], option: tuple[str, object]
) -> None:
    search(capsys, model)
    assert not search(capsys, model, *option)["cached"]
    assert search(capsys, model, *option)["cached"]


def test_the_content_of_files_counts(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pins = model.parent / "pins.json"
    pins.write_text('{"schema": "planner.constraints/1", "rest": "data_parallel"}')
    search(capsys, model, "--constraints", pins)
    assert search(capsys, model, "--constraints", pins)["cached"]
    pins.write_text('{"schema": "planner.constraints/1", "rest": "search"}')
    assert not search(capsys, model, "--constraints", pins)["cached"]


def test_the_same_graph_in_another_file_hits_under_its_own_name(
    model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    search(capsys, model)
    proto = onnx.load(model)
    proto.doc_string = "exported once more"
    other = model.parent / "other.onnx"
    onnx.save(proto, other)
    hit = search(capsys, other)
    assert hit["cached"]
    cold = search(capsys, other, "--no-cache", "--out", model.parent / "cold")
    assert Path(hit["plan"]).read_bytes() == Path(cold["plan"]).read_bytes()


def test_changed_code_misses(model: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    search(capsys, model)
    monkeypatch.setattr("planner.requests.key.source_digest", lambda: "another")
    assert not search(capsys, model)["cached"]


def test_no_cache_neither_reads_nor_writes(model: Path, own_cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    search(capsys, model, "--no-cache")
    assert not any(own_cache.iterdir())


@pytest.mark.parametrize("damage", [lambda b: b[: len(b) // 2], lambda b: b[:-1] + bytes([b[-1] ^ 1]), lambda _: b""])
def test_damaged_entries_are_noticed_and_replaced(
    model: Path, own_cache: Path, capsys: pytest.CaptureFixture[str], damage: Any
) -> None:
    first = search(capsys, model)
    written = Path(first["plan"]).read_bytes()
    for kind in ("plans", "requests"):
        for entry in (own_cache / kind).iterdir():
            entry.write_bytes(damage(entry.read_bytes()))
    arguments = ["search", str(model), "--devices", "4", "--out", str(model.parent / "out"), "--json"]
    assert main(arguments) == 0
    out, err = capsys.readouterr()
    assert "damaged" in err
    assert not json.loads(out)["cached"]
    assert Path(first["plan"]).read_bytes() == written
    assert search(capsys, model)["cached"]


def test_a_place_that_cannot_be_written_is_no_error(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = model.parent / "file"
    file.write_text("in the way")
    assert not search(capsys, model, "--cache", file / "cache")["cached"]


def test_entries_unused_for_longest_make_room(tmp_path: Path) -> None:
    keys = [f"{k:064x}" for k in range(8)]
    store = Store(tmp_path, limit=8000)
    for k, key in enumerate(keys):
        store.write("plans", key, os.urandom(1500))
        if (tmp_path / "plans" / key).exists():
            os.utime(tmp_path / "plans" / key, (k, k))
        if (tmp_path / "plans" / keys[0]).exists():
            os.utime(tmp_path / "plans" / keys[0], (1000, 1000))
    left = store.keys("plans")
    assert store.contents().size <= 8000
    assert keys[0] in left, "used last"
    assert keys[1] not in left
    assert keys[-1] in left


def test_writers_at_once_leave_one_whole_entry(tmp_path: Path) -> None:
    contents = [bytes([k]) * 200_000 for k in range(6)]
    stores = [Store(tmp_path) for _ in contents]
    threads = [
        threading.Thread(target=lambda s=s, c=c: [s.write("plans", KEY, c) for _ in range(5)])  # type: ignore[misc]
        for s, c in zip(stores, contents, strict=True)
    ]
    for t in threads:
        t.start()
    for _ in range(20):
        assert Store(tmp_path).read("plans", KEY) in (None, *contents)
    for t in threads:
        t.join()
    assert Store(tmp_path).read("plans", KEY) in contents
    assert [p.name for p in (tmp_path / "plans").iterdir()] == [KEY]


def test_the_command_shows_and_clears(model: Path, own_cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    search(capsys, model)
    (own_cache / "plans" / "notes.txt").write_text("not ours")
    assert main(["cache", "info", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["kept"] == 1
    assert found["bytes"] > 0
    assert main(["cache", "clear"]) == 0
    assert "removed 1" in capsys.readouterr().out
    assert [p.name for p in own_cache.rglob("*") if p.is_file()] == ["notes.txt"], "only what it wrote itself"


def test_a_hit_loads_nothing_heavy(model: Path, own_cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    search(capsys, model)
    code = (
        "import sys; from planner.cli.main import main; "
        f"assert main(['search', {str(model)!r}, '--devices', '4', '--out', {str(model.parent)!r}]) == 0; "
        "print('loaded', sorted({'numpy', 'onnx', 'pydantic', 'ortools', 'networkx', 'yaml'} & sys.modules.keys()))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, "PLANNER_CACHE_DIR": str(own_cache)}, capture_output=True,
        text=True, check=True,
    )  # fmt: skip
    assert "cached      found again" in done.stdout
    assert done.stdout.endswith("loaded []\n")
