"""Hostile models end in an error for the user, quickly and in bounded memory."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path

import pytest

from planner.errors import InputError, UsageError
from planner.frontends import Limits, load_model
from planner.frontends.file.sandbox import run_limited

from . import large, make_models

HERE = Path(__file__).parent
BOMBS = {f"{make.__name__}.onnx" for make in make_models.BOMBS}
REFUSED = sorted(set(make_models.contents()) - BOMBS)
TIGHT = Limits(memory_bytes=1 << 30, cpu_seconds=20, wall_seconds=30)


@pytest.mark.parametrize("name", REFUSED)
def test_refused_with_one_screen(name):
    with pytest.raises(InputError) as caught:
        load_model(HERE / name, limits=TIGHT)
    message = str(caught.value)
    assert 20 < len(message) < 2000
    assert message.count("\n") < 25
    assert "Traceback" not in message


@pytest.mark.parametrize("name", sorted(BOMBS))
def test_bombs_cost_little(name):
    assert (HERE / name).stat().st_size < 1 << 17
    began = time.monotonic()
    with contextlib.suppress(InputError):
        load_model(HERE / name, limits=TIGHT)
    assert time.monotonic() - began < 15


def test_files_are_what_the_script_writes():
    for name, data in make_models.contents().items():
        assert (HERE / name).read_bytes() == data, name


def test_large_files_are_what_the_script_writes():
    """By name; two of them by their bytes."""
    assert {p.name for p in large.FOLDER.iterdir()} == {f"{make.__name__}.onnx.gz" for make in large.LARGE}
    for make in (large.empty_nodes, large.attribute_flood):
        assert large.unpacked(large.FOLDER / f"{make.__name__}.onnx.gz") == make()


def test_missing_file_and_directory(tmp_path):
    with pytest.raises(InputError, match="no such file"):
        load_model(tmp_path / "none.onnx")
    with pytest.raises(InputError, match="directory"):
        load_model(tmp_path)


def test_every_truncation_is_refused_or_read(tmp_path):
    """Half a file is never a crash; a cut between two fields may leave a smaller valid message."""
    from planner.frontends import import_bytes

    whole = make_models.plain().SerializeToString()
    for n in range(0, len(whole), 7):
        try:
            import_bytes(whole[:n])
        except InputError:
            continue


def test_child_that_allocates_is_stopped():
    with pytest.raises(InputError, match="memory"):
        run_limited(lambda: bytearray(8 << 30), limits=Limits(memory_bytes=1 << 29), what="test")


def test_child_that_spins_is_stopped():
    def spin():
        while True:
            pass

    began = time.monotonic()
    with pytest.raises(InputError, match="CPU time"):
        run_limited(spin, limits=Limits(cpu_seconds=1, wall_seconds=30), what="test")
    assert time.monotonic() - began < 15


def test_child_that_sleeps_is_stopped():
    with pytest.raises(InputError, match=r"after 0\.5 s"):
        run_limited(lambda: time.sleep(60), limits=Limits(wall_seconds=0.5), what="test")


def test_child_that_dies_is_reported():
    with pytest.raises(InputError, match="SIGSEGV"):
        run_limited(lambda: os.kill(os.getpid(), signal.SIGSEGV), limits=TIGHT, what="test")
    with pytest.raises(InputError, match="without an answer"):
        run_limited(lambda: os._exit(3), limits=TIGHT, what="test")


def test_large_answers_come_through():
    size = 64 << 20
    assert len(run_limited(lambda: b"x" * size, limits=TIGHT, what="test")) == size


def test_planner_errors_keep_their_class():
    def usage():
        raise UsageError("--bind nothing")

    with pytest.raises(UsageError, match="--bind nothing"):
        run_limited(usage, limits=TIGHT, what="test")


def test_no_child_is_left_behind():
    before = children()
    with pytest.raises(InputError):
        run_limited(lambda: time.sleep(60), limits=Limits(wall_seconds=0.2), what="test")
    assert children() <= before  # a service tested before this may have left its fork server


def children() -> set[str]:
    """Processes of which this one is the parent, those that wait to be asked after included."""
    return {n for task in Path("/proc/self/task").iterdir() for n in (task / "children").read_text().split()}
