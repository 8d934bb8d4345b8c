"""Mutated checkpoints for every reader: each is read, or refused with an InputError, and nothing else happens.

    python -m tests.bench.checkpoint_fuzz [--count N] [--seed S] [--folders]

A file of every format (`--folders`: a folder of DeepSpeed under each level of ZeRO, a universal one, one of Megatron,
one of torch.distributed.checkpoint) is changed in one to eight places: bytes set, taken out and put in, lengths and
offsets replaced by numbers that matter, tails cut off.  What is read may lie nowhere beyond its file.  A case that ends
otherwise is written to the working directory, and ends the run.
"""

from __future__ import annotations

import argparse
import random
import resource
import shutil
import struct
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from planner.checkpoint.source import open_checkpoint
from planner.errors import PlannerError
from planner.stored.formats.registry import FORMATS, read_file
from tests.checkpoint.deepspeed_files import state_of, write_zero
from tests.checkpoint.layouts import write_file
from tests.checkpoint.test_megatron import hugging_face
from tests.checkpoint.test_transforming import moved

__all__ = ["main"]

_NUMBERS = (0, 1, 255, 1 << 16, 1 << 31, (1 << 32) - 1, (1 << 63) - 1, (1 << 64) - 1)


def mutated(data: bytes, rng: random.Random) -> bytes:
    out = bytearray(data)
    for _ in range(rng.choice([1, 1, 2, 8])):
        at = rng.randrange(len(out) + 1)
        match rng.randrange(6):
            case 0 | 1 if at < len(out):
                out[at] = rng.randrange(256)
            case 2:
                del out[at : at + rng.randint(1, 9)]
            case 3:
                out[at:at] = bytes(rng.randrange(256) for _ in range(rng.randint(1, 9)))
            case 4:
                out[at : at + 8] = struct.pack("<Q", rng.choice(_NUMBERS))
            case 5 if rng.random() < 0.1:
                del out[at:]
    return bytes(out)


def _files(folder: Path) -> list[Path]:
    """A small file of each format of single files."""
    out = []
    for each in FORMATS.values():
        out.append(folder / f"a{each.suffixes[0]}")
        write_file(out[-1], {"a": np.arange(12, dtype=np.float32).reshape(3, 4), "b.c": np.ones((), np.int64)})
    return out


def _folders(folder: Path) -> list[Path]:
    """A checkpoint of each format that is a folder."""
    shapes = {"w": (3, 4), "b": (5,)}
    state = state_of(random.Random(0), shapes)
    for stage in (1, 2, 3):
        write_zero(folder / f"zero{stage}", state, [["w"], ["b"]], 2, stage)
    moved(folder / "zero1", None, folder / "universal", None, format="deepspeed")
    moved(folder / "zero1", None, folder / "dcp", None, format="dcp")
    hugging_face(folder / "hf", "hf-llama")
    moved(folder / "hf", None, folder / "megatron", None, format="megatron")
    return [folder / n for n in ("zero1", "zero2", "zero3", "universal", "dcp", "hf", "megatron")]


def _read(place: Path) -> None:
    if place.is_file():
        size = place.stat().st_size
        for array in read_file(place).arrays.values():
            assert array.data is not None or array.end <= size, array
        return
    for held in open_checkpoint(place, None).tensors.values():
        for array in held.arrays:
            assert array.data is not None or array.end <= array.file.stat().st_size, array
            assert array.data is not None or array.file.resolve().is_relative_to(place.resolve()), array


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folders", action="store_true")
    options = parser.parse_args()
    rng = random.Random(options.seed)
    base = Path("/dev/shm") if Path("/dev/shm").is_dir() else None
    with tempfile.TemporaryDirectory(dir=base) as made:
        places = (_folders if options.folders else _files)(Path(made))
        inside = {p: [p] if p.is_file() else [f for f in sorted(p.rglob("*")) if f.is_file()] for p in places}
        whole = {f: f.read_bytes() for files in inside.values() for f in files}
        read = refused = 0
        began = time.perf_counter()
        for number in range(options.count):
            place = rng.choice(places)
            file = rng.choice(inside[place])
            file.write_bytes(mutated(whole[file], rng))
            try:
                _read(place)
                read += 1
            except PlannerError:
                refused += 1
            except BaseException:
                kept = Path(f"checkpoint-fuzz-{options.seed}-{number}")
                (shutil.copytree if place.is_dir() else shutil.copy)(place, kept)
                print(f"{place.name}, {file.name}: kept as {kept}", file=sys.stderr)
                raise
            file.write_bytes(whole[file])
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    print(f"seed {options.seed}: {options.count:,} mutated, {read:,} read, {refused:,} refused, "
          f"{time.perf_counter() - began:.0f} s, {most} MiB at most")  # fmt: skip
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
