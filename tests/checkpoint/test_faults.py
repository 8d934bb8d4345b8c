"""What goes wrong on the way: cut-off runs, damaged files, ranks that are gone, full disks."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from planner.checkpoint.comparing import unsound
from planner.checkpoint.layouts import Layouts, Spread
from planner.checkpoint.source import open_checkpoint, rank_files
from planner.checkpoint.transforming import Options, planned, transform
from planner.errors import InputError, UsageError
from planner.ir import DeviceMesh, Layout
from planner.stored import copying
from planner.stored.arrays import Files
from tests.checkpoint.layouts import random_tensors, write_file, write_ranks
from tests.checkpoint.test_transforming import arrays_of, check_ranks, moved

SHAPES = {"a": (8, 12), "b": (24,), "c": (4, 6, 8)}


def rows_and_columns() -> tuple[Layouts, Layouts]:
    """Four ranks with rows, two with columns."""
    four, two = DeviceMesh.of(4), DeviceMesh.of(2)
    rows = {n: Spread(Layout((("x",), *((),) * (len(s) - 1))), four, (0,), s) for n, s in SHAPES.items()}
    columns = {n: Spread(Layout((*((),) * (len(s) - 1), ("x",))), two, (0,), s) for n, s in SHAPES.items()}
    return Layouts("rows.json", 4, rows), Layouts("columns.json", 2, columns)


@pytest.fixture
def given(tmp_path: Path) -> tuple[Path, Layouts, Layouts]:
    rows, columns = rows_and_columns()
    weights, slots = random_tensors(random.Random(0), SHAPES)
    write_ranks(tmp_path / "source", rows, weights, slots)
    return tmp_path / "source", rows, columns


def test_a_run_that_was_killed_goes_on_where_it_was(given: tuple[Path, Layouts, Layouts], tmp_path: Path,
                                                    monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    source, rows, columns = given
    plan = planned(open_checkpoint(source, rows), tmp_path / "target", columns, Options(memory=400, sync=False))
    copied, made = copying._copied, []

    def dies(*arguments: object) -> object:
        if len(made) == 20:
            raise KeyboardInterrupt
        made.append(1)
        return copied(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(copying, "_copied", dies)
    with pytest.raises(KeyboardInterrupt):
        transform(plan)
    assert not (tmp_path / "target").exists()
    monkeypatch.setattr(copying, "_copied", copied)
    with (plan.writing.part / "rank_0/checkpoint.safetensors").open("r+b") as damaged:  # of what was written already
        damaged.seek(-1, os.SEEK_END)
        damaged.write(b"\x7f")
    again = planned(
        open_checkpoint(source, rows), tmp_path / "target", columns, Options(memory=1 << 28, sync=False, resume=True)
    )
    done = transform(again)
    assert 0 < done.found_bytes < done.target_bytes
    check_ranks(tmp_path / "target", columns, *random_tensors(random.Random(0), SHAPES))
    assert unsound(tmp_path / "target")[0] == []
    assert not again.writing.part.exists()


def test_another_job_does_not_go_on_with_what_is_left(given: tuple[Path, Layouts, Layouts], tmp_path: Path) -> None:
    source, rows, columns = given
    left = tmp_path / ".target.part"
    left.mkdir()
    (left / ".job").write_text('{"what": "another", "block": 5}')
    (left / ".journal").write_text("0 0000000000000000\n")
    done = transform(planned(open_checkpoint(source, rows), tmp_path / "target", columns, Options(resume=True)))
    assert done.found_bytes == 0
    check_ranks(tmp_path / "target", columns, *random_tensors(random.Random(0), SHAPES))


@pytest.mark.slow
def test_killed_processes_leave_nothing_half_and_go_on(tmp_path: Path) -> None:
    shapes = {f"p{i}": (512, 1024) for i in range(8)}
    mesh = DeviceMesh.of(2)
    rows = Layouts("rows", 2, {n: Spread(Layout((("x",), ())), mesh, (0,), s) for n, s in shapes.items()})
    weights, _ = random_tensors(random.Random(1), shapes)
    write_ranks(tmp_path / "source", rows, weights, {})
    (tmp_path / "rows.json").write_text(_strategy(shapes, [0, -1]))
    (tmp_path / "columns.json").write_text(_strategy(shapes, [-1, 0]))
    command = [sys.executable, "-m", "planner", "checkpoint", "transform", "source", "target", "--from", "rows.json",
               "--to", "columns.json", "--memory", "1MiB", "--resume"]  # fmt: skip
    killed = 0
    for attempt in range(40):
        process = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        part = tmp_path / ".target.part" / ".journal"
        until = time.monotonic() + 30
        while process.poll() is None and not part.exists() and time.monotonic() < until:
            time.sleep(0.002)
        time.sleep(0.004 * attempt)
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
            killed += 1
        process.wait()
        if (tmp_path / "target").exists():
            break
    else:
        subprocess.run(command, cwd=tmp_path, check=True, stdout=subprocess.DEVNULL)
    assert killed
    columns = Layouts("columns", 2, {n: Spread(Layout(((), ("x",))), mesh, (0,), s) for n, s in shapes.items()})
    check_ranks(tmp_path / "target", columns, weights, {})
    assert unsound(tmp_path / "target")[0] == []


def _strategy(shapes: dict[str, tuple[int, ...]], places: list[int]) -> str:
    import json

    layout = {"dev_matrix": [2], "field": 0, "opt_weight_shard_size": 0, "opt_weight_shard_step": 0,
              "tensor_map": places}  # fmt: skip
    return json.dumps({"current_stage": 0, "parallel_layout_item": dict.fromkeys(shapes, layout)})


def test_a_rank_that_is_gone_is_named_with_what_only_it_had(
    given: tuple[Path, Layouts, Layouts], tmp_path: Path
) -> None:
    source, rows, columns = given
    (source / "rank_2/checkpoint.safetensors").unlink()
    with pytest.raises(InputError, match=r"tensor a: lacks elements \[4:6, 0:6\], which rank 2 would have"):
        planned(open_checkpoint(source, rows), tmp_path / "target", columns, Options())
    assert not (tmp_path / "target").exists()


def test_a_rank_that_is_gone_does_no_harm_where_others_have_the_same(tmp_path: Path) -> None:
    mesh = DeviceMesh.of(2, 2)
    halves = {n: Spread(Layout((("y",), *((),) * (len(s) - 1))), mesh, (0,), s) for n, s in SHAPES.items()}
    lays = Layouts("plan", 4, halves)
    weights, slots = random_tensors(random.Random(3), SHAPES)
    write_ranks(tmp_path / "source", lays, weights, slots)
    (tmp_path / "source/rank_1/checkpoint.safetensors").unlink()
    (tmp_path / "source/rank_2/checkpoint.safetensors").unlink()
    moved(tmp_path / "source", lays, tmp_path / "target", rows_and_columns()[1])
    check_ranks(tmp_path / "target", rows_and_columns()[1], weights, slots)


@pytest.mark.parametrize("suffix", [".safetensors", ".ckpt", ".npz", ".pt"])
def test_files_that_are_cut_short_are_refused_and_nothing_stays(suffix: str, tmp_path: Path) -> None:
    rows, columns = rows_and_columns()
    weights, slots = random_tensors(random.Random(0), SHAPES)
    write_ranks(tmp_path / "source", rows, weights, slots, suffix)
    file = tmp_path / f"source/rank_1/checkpoint{suffix}"
    whole = file.read_bytes()
    for length in (0, 3, 100, len(whole) // 2, len(whole) - 1):
        file.write_bytes(whole[:length])
        with pytest.raises(InputError, match=r"rank[_ ]1"):
            moved(tmp_path / "source", rows, tmp_path / "target", columns)
        assert not (tmp_path / "target").exists()


def test_every_flipped_byte_is_found(given: tuple[Path, Layouts, Layouts], tmp_path: Path) -> None:
    source, rows, columns = given
    for kind in ("safetensors", "mindspore", "npz", "torch"):
        place = moved(source, rows, tmp_path / kind, columns, format=kind)
        assert unsound(place)[0] == []
        rng = random.Random(kind)
        for _ in range(60):
            file = rng.choice(list(rank_files(place).values()))
            data = bytearray(file.read_bytes())
            at = rng.randrange(len(data))
            data[at] ^= 1 << rng.randrange(8)
            before = file.read_bytes()
            file.write_bytes(data)
            assert unsound(place)[0], f"{kind}: byte {at} of {len(data)}"
            file.write_bytes(before)


def test_the_source_is_not_touched(given: tuple[Path, Layouts, Layouts], tmp_path: Path) -> None:
    source, rows, columns = given
    before = {f: (f.read_bytes(), f.stat().st_mtime_ns) for f in rank_files(source).values()}
    for file in before:
        file.chmod(0o444)
    moved(source, rows, tmp_path / "target", columns)
    assert {f: (f.read_bytes(), f.stat().st_mtime_ns) for f in rank_files(source).values()} == before


def test_what_is_there_is_not_replaced_unless_it_is_said(given: tuple[Path, Layouts, Layouts], tmp_path: Path) -> None:
    source, rows, columns = given
    (tmp_path / "target").mkdir()
    (tmp_path / "target/mine").write_text("mine")
    for force in (False, True):
        with pytest.raises(UsageError, match="is there already" if not force else "not written here"):
            moved(source, rows, tmp_path / "target", columns, force=force)
    assert (tmp_path / "target/mine").read_text() == "mine"
    moved(source, rows, tmp_path / "other", rows)
    moved(source, rows, tmp_path / "other", columns, force=True)
    check_ranks(tmp_path / "other", columns, *random_tensors(random.Random(0), SHAPES))
    assert not list(tmp_path.glob(".other*"))


def test_a_full_disk_is_a_clear_error_and_the_run_goes_on_later(given: tuple[Path, Layouts, Layouts], tmp_path: Path,
                                                                monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    source, rows, columns = given
    write, writes = os.pwrite, []

    def full(*arguments: object) -> int:
        writes.append(1)
        if len(writes) > 5:
            raise OSError(28, "No space left on device")
        return write(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(UsageError, match=r"No space left on device.*--resume"):
        moved(source, rows, tmp_path / "target", columns)
    assert not (tmp_path / "target").exists()
    monkeypatch.setattr(os, "pwrite", write)
    moved(source, rows, tmp_path / "target", columns, resume=True)
    check_ranks(tmp_path / "target", columns, *random_tensors(random.Random(0), SHAPES))


def test_a_disk_without_room_is_said_before_anything_is_written(given: tuple[Path, Layouts, Layouts], tmp_path: Path,
                                                               monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    import shutil

    source, rows, columns = given
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(10**12, 10**12, 100))  # type: ignore[attr-defined]
    with pytest.raises(UsageError, match="bytes of room on its disk, found 100"):
        moved(source, rows, tmp_path / "target", columns)


def test_no_byte_is_read_that_geometry_does_not_need(given: tuple[Path, Layouts, Layouts], tmp_path: Path) -> None:
    source, rows, columns = given
    needed = sum(4 * int(np.prod(s)) for s in SHAPES.values()) * 2  # weights and a slot
    done = transform(planned(open_checkpoint(source, rows), tmp_path / "t", columns, Options(sync=False)))
    assert done.read_bytes == needed
    assert done.written_bytes == done.target_bytes == needed
    one = transform(planned(open_checkpoint(source, rows), tmp_path / "one", columns, Options(ranks=(1,), sync=False)))
    assert one.read_bytes == needed // 2
    assert sorted(rank_files(tmp_path / "one")) == [1]


def test_a_tensor_without_a_layout_that_differs_between_ranks_is_refused(tmp_path: Path) -> None:
    rows, columns = rows_and_columns()
    weights, slots = random_tensors(random.Random(0), SHAPES)
    write_ranks(tmp_path / "source", rows, weights, slots)
    for rank, file in rank_files(tmp_path / "source").items():
        write_file(file, {**arrays_of(file), "scale": np.array([float(rank)], np.float32)})
    with pytest.raises(InputError, match="tensor scale differs between rank 0 and rank 1"):
        moved(tmp_path / "source", rows, tmp_path / "target", columns)


def test_what_belongs_to_no_parameter_and_is_alike_goes_to_every_rank(tmp_path: Path) -> None:
    rows, columns = rows_and_columns()
    weights, slots = random_tensors(random.Random(0), SHAPES)
    write_ranks(tmp_path / "source", rows, weights, slots)
    for file in rank_files(tmp_path / "source").values():
        write_file(file, {**arrays_of(file), "global_step": np.array(7, np.int32)})
    moved(tmp_path / "source", rows, tmp_path / "target", columns)
    for file in rank_files(tmp_path / "target").values():
        assert arrays_of(file)["global_step"] == 7


def test_files_stay_open_in_bounds(tmp_path: Path) -> None:
    mesh = DeviceMesh.of(600)
    lays = Layouts("plan", 600, {"a": Spread(Layout((("x",),)), mesh, (0,), (1200,))})
    write_ranks(tmp_path / "source", lays, {"a": np.arange(1200, dtype=np.float32)}, {})
    moved(tmp_path / "source", lays, tmp_path / "whole.safetensors", None)
    np.testing.assert_array_equal(arrays_of(tmp_path / "whole.safetensors")["a"], np.arange(1200, dtype=np.float32))
    with Files() as files:
        for file in rank_files(tmp_path / "source").values():
            files.descriptor(file)
        assert len(files._open) <= 64
