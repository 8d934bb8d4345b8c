"""Files that are there whole or not at all, and what is no file."""

from __future__ import annotations

import os
import stat
import threading
from pathlib import Path

import pytest

from planner.cache import file_digest
from planner.files import write_whole


def test_a_file_is_replaced_and_nothing_else_is_left(tmp_path: Path) -> None:
    path = tmp_path / "new" / "plan.json"
    write_whole(path, b"a")
    write_whole(path, b"b")
    assert path.read_bytes() == b"b"
    assert [p.name for p in path.parent.iterdir()] == ["plan.json"]


def test_a_link_stays_and_what_it_points_to_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "real").write_bytes(b"old")
    link = tmp_path / "link"
    link.symlink_to("real")
    write_whole(link, b"new")
    assert link.is_symlink()
    assert (tmp_path / "real").read_bytes() == b"new"


def test_what_is_no_file_is_written_to_and_not_replaced(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    read: list[bytes] = []
    reader = threading.Thread(target=lambda: read.append(pipe.read_bytes()), daemon=True)
    reader.start()
    write_whole(pipe, b"content")
    assert stat.S_ISFIFO(pipe.stat().st_mode)
    reader.join(10)
    assert read == [b"content"]


def test_a_pipe_has_no_digest(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="not a regular file"):
        file_digest(tmp_path / "pipe")


def test_a_folder_is_refused_and_kept(tmp_path: Path) -> None:
    with pytest.raises(IsADirectoryError):
        write_whole(tmp_path, b"content")
    assert list(tmp_path.iterdir()) == []
