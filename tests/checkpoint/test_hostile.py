"""Files of strangers: no code of theirs runs, no path leaves the folder, memory stays in bounds, errors are clear."""

from __future__ import annotations

import contextlib
import os
import pickle
import random
import struct
import tracemalloc
import zipfile
from pathlib import Path

import numpy as np
import pytest

from planner.checkpoint.source import open_checkpoint
from planner.errors import InputError
from planner.stored.formats.archive import Member, zipped
from planner.stored.formats.pickled import Call, Name, read_pickle, write_pickle
from planner.stored.formats.registry import FORMATS, read_file
from tests.checkpoint.layouts import write_file
from tests.checkpoint.test_transforming import moved


class Evil:
    def __init__(self, place: Path) -> None:
        self.place = place

    def __reduce__(self) -> tuple[object, ...]:
        return os.system, (f"touch {self.place}",)


def torch_file(path: Path, data: bytes) -> Path:
    made = zipped([Member("archive/data.pkl", data), Member("archive/version", b"3\n")])
    content = bytearray(made.size)
    for offset, part in made.fixed:
        content[offset : offset + len(part)] = part
    path.write_bytes(content)
    return path


@pytest.mark.parametrize("protocol", range(6))
def test_no_code_of_a_pickle_runs(protocol: int, tmp_path: Path) -> None:
    place = tmp_path / "ran"
    file = torch_file(tmp_path / "x.pt", pickle.dumps({"weights": Evil(place), "x": [Evil(place)]}, protocol))
    found = read_file(file)
    assert not found.arrays
    assert not place.exists()
    (tmp_path / "dcp").mkdir()
    (tmp_path / "dcp/.metadata").write_bytes(pickle.dumps(Evil(place), protocol))
    with pytest.raises(InputError, match=r"torch\.distributed\.checkpoint"):
        open_checkpoint(tmp_path / "dcp", None)
    assert not place.exists()


@pytest.mark.parametrize("data", [
    b"cos\nsystem\n(S'true'\ntR.",  # a call by protocol 0
    b"(S'true'\nios\nsystem\n.",  # INST
    b"(cos\nsystem\nS'true'\no.",  # OBJ
    b"\x80\x04\x8c\x02os\x8c\x06system\x93\x8c\x04true\x85R.",  # STACK_GLOBAL
    b"cbuiltins\nexec\n(S'open(\"ran\", \"w\")'\ntR.",
    b"\x80\x02cbuiltins\neval\nX\x03\x00\x00\x001+1\x85R0N.",
])  # fmt: skip
def test_calls_become_data(data: bytes) -> None:
    found = read_pickle(data)
    assert found is None or isinstance(found, Call)


@pytest.mark.parametrize("data", [
    b"", b".", b"garbage", b"\x80\xff.", b"\x80\x02}q\x00(", b"\x82\x01.", b"Pabc\n.", b"\x80\x02Q.",
    b"\x80\x05\x96" + struct.pack("<Q", 1 << 40) + b".",  # a buffer of a terabyte
    b"\x80\x04\x8d" + struct.pack("<Q", 1 << 62) + b".",
    b"\x80\x02r" + b"\xff\xff\xff\x7f" + b".", b"L" + b"9" * 100_000 + b"L\n.",
    b"\x80\x02" + b"]" * 200_000 + b"a" * 199_999 + b".",  # lists in lists
    b"\x80\x02G\x40\x09", b"\x80\x02J\x01", b"\x80\x02M", b"\x80\x04\x95\x05",  # numbers that are cut off
    b"\x80\x02K\x01K\x02R.", b"\x80\x02K\x01b.", b"\x80\x02)\x81.", b"\x80\x02]K\x01s.",
])  # fmt: skip
def test_broken_pickles_are_errors_within_bounds(data: bytes) -> None:
    tracemalloc.start()
    with contextlib.suppress(ValueError):
        read_pickle(data)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 100 << 20


def test_pickles_that_are_written_are_read_alike() -> None:
    made = Call(Name("torch", "Size"), ((1, 2),))
    found = read_pickle(write_pickle({"a": made, "b": [1, "x", None, 2.5, True]}))
    assert (found["a"].name, found["a"].arguments) == (made.name, made.arguments)
    assert found["b"] == [1, "x", None, 2.5, True]


def test_metadata_that_names_files_elsewhere_is_refused(tmp_path: Path) -> None:
    write_file(tmp_path / "a.npz", {"a": np.ones(3)})
    moved(tmp_path / "a.npz", None, tmp_path / "dcp", None, format="dcp")
    metadata = tmp_path / "dcp/.metadata"
    data = metadata.read_bytes()
    assert b"__0_0.distcp" in data
    for path in (b"../../secret", b"/etc/secret1"):
        metadata.write_bytes(data.replace(b"__0_0.distcp", path))
        with pytest.raises(InputError, match="outside of the folder"):
            open_checkpoint(tmp_path / "dcp", None)


def test_compressed_members_are_refused(tmp_path: Path) -> None:
    np.savez_compressed(tmp_path / "a.npz", a=np.zeros(1000))
    with pytest.raises(InputError, match=r"compressed member 'a\.npy'"):
        read_file(tmp_path / "a.npz")
    with zipfile.ZipFile(tmp_path / "b.pt", "w", zipfile.ZIP_DEFLATED) as made:
        made.writestr("archive/data.pkl", b"}.")
    with pytest.raises(InputError, match="compressed member"):
        read_file(tmp_path / "b.pt")


@pytest.mark.parametrize("name", list(FORMATS))
def test_damaged_files_are_read_or_refused_and_never_crash(name: str, tmp_path: Path) -> None:
    rng = random.Random(name)
    suffix = FORMATS[name].suffixes[0]
    file = tmp_path / f"a{suffix}"
    write_file(file, {"a": np.arange(12, dtype=np.float32).reshape(3, 4), "b.c": np.ones((), np.int64)})
    whole = file.read_bytes()
    refused = 0
    for _ in range(1500):
        data = bytearray(whole)
        for _ in range(rng.choice([1, 1, 2, 8])):
            at = rng.randrange(len(data))
            match rng.randrange(4):
                case 0:
                    data[at] = rng.randrange(256)
                case 1:
                    del data[at : at + rng.randint(1, 9)]
                case 2:
                    data[at:at] = bytes(rng.randrange(256) for _ in range(rng.randint(1, 9)))
                case _:
                    data[at : at + 8] = struct.pack("<Q", rng.choice([0, 1, 1 << 31, (1 << 63) - 1, (1 << 64) - 1]))
            if not data:
                data = bytearray(b"\0")
        file.write_bytes(data)
        try:
            arrays = read_file(file).arrays
        except InputError as error:
            refused += str(file) in str(error)
            continue
        for array in arrays.values():
            assert array.end <= len(data), "an array behind the end of its file"
    assert refused > 100
