"""Checkpoints: how fast they are moved, in how much memory, and that nothing is lost however often a run is killed.

    python -m tests.bench.checkpoints speed [--rounds 7] [--sync] [--mindspore PYTHON] [--torch PYTHON]
    python -m tests.bench.checkpoints memory [--gigabytes 8]
    python -m tests.bench.checkpoints layouts --count 10000
    python -m tests.bench.checkpoints kills --count 1000
    python -m tests.bench.checkpoints plan

`speed`: four ranks with rows become two with columns, alternated with `cp -r` of the same bytes; MindSpore's
`transform_checkpoints`, and a load and save by torch.distributed.checkpoint, where interpreters that have them are
named.  `plan`: a transfer plan of Llama 70B with Adam from 1,024 ranks to 768, and of twice as many.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import numpy as np

from planner.checkpoint.comparing import unsound
from planner.checkpoint.layouts import Layouts, Spread
from planner.checkpoint.moving import transfer_plan
from planner.emit.mindspore.arrangement import Arrangement
from planner.emit.mindspore.strategy_map import ParameterLayout, StrategyMap, to_protobuf
from planner.ir import DeviceMesh, Layout
from tests.checkpoint.layouts import random_layouts, random_shape, random_tensors, write_file, write_ranks
from tests.checkpoint.test_transforming import check_ranks, moved

__all__ = ["main"]

_ROWS = 4096
_DCP = """
import sys, torch, torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint import FileSystemReader
found = {n: torch.empty(m.size) for n, m in FileSystemReader(sys.argv[1]).read_metadata().state_dict_metadata.items()}
dcp.load(found, checkpoint_id=sys.argv[1])
dcp.save(found, checkpoint_id=sys.argv[2])
"""
_MINDSPORE = """
import sys, mindspore
mindspore.transform_checkpoints(*sys.argv[1:3], "c", *sys.argv[3:5])
"""


def _strategy(file: Path, names: list[str], ranks: int, places: tuple[int, int]) -> None:
    layout = ParameterLayout(Arrangement((ranks,), places))
    file.write_bytes(to_protobuf(StrategyMap({}, dict.fromkeys(names, layout))))


def _source(folder: Path, gigabytes: float, suffix: str) -> None:
    """Four ranks with rows of square matrices of 64 MiB; made by another process, whose memory is its own."""
    made = multiprocessing.get_context("spawn").Process(target=_made, args=(folder, gigabytes, suffix))
    made.start()
    made.join()
    assert made.exitcode == 0


def _made(folder: Path, gigabytes: float, suffix: str) -> None:
    names = [f"w{i}" for i in range(max(1, round(gigabytes * 1e9 / (4 * _ROWS**2))))]
    value = np.random.default_rng(0).standard_normal((_ROWS // 4, _ROWS)).astype(np.float32)
    for rank in range(4):
        write_file(folder / f"source/rank_{rank}/w{suffix}", {n: value + np.float32(i) for i, n in enumerate(names)})
    _strategy(folder / "rows.ckpt", names, 4, (0, -1))
    _strategy(folder / "columns.ckpt", names, 2, (-1, 0))


def _timed(command: list[str], target: Path, cwd: Path) -> tuple[float, int]:
    """(seconds, KiB that the process had at most)."""
    shutil.rmtree(target, ignore_errors=True)
    began = time.perf_counter()
    with subprocess.Popen(command, cwd=cwd, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0, command
    return time.perf_counter() - began, used.ru_maxrss


def speed(options: argparse.Namespace, folder: Path) -> None:
    suffix = ".ckpt" if options.mindspore else ".safetensors"
    _source(folder, options.gigabytes, suffix)
    planner = [sys.executable, "-m", "planner", "checkpoint", "transform", "source"]
    layouts = ["--from", "rows.ckpt", "--to", "columns.ckpt"]
    copy = ["sh", "-c", "cp -r source copy" + (" && sync copy/*/* copy/* copy" if options.sync else "")]
    jobs: dict[str, tuple[list[str], str]] = {
        "cp -r": (copy, "copy"),
        "planner": ([*planner, "target", *layouts, *([] if options.sync else ["--no-sync"])], "target"),
    }
    if options.mindspore:
        jobs["MindSpore"] = (
            [options.mindspore, "-c", _MINDSPORE, "source", "theirs", "rows.ckpt", "columns.ckpt"],
            "theirs",
        )
    if options.torch:
        subprocess.run([*planner, "dcp", "--from", "rows.ckpt", "--format", "dcp"], cwd=folder, check=True)
        jobs["DCP"] = ([options.torch, "-c", _DCP, "dcp", "again"], "again")
    times: dict[str, list[float]] = {name: [] for name in jobs}
    for turn in range(options.rounds + 1):
        for name, (command, target) in jobs.items():
            seconds, _ = _timed(command, folder / target, folder)
            if turn:  # the first fills the cache
                times[name].append(seconds)
    base = median(times["planner"])
    for name, found in times.items():
        spread, ratio = f"{min(found):.2f} to {max(found):.2f}", base / median(found)
        print(f"{name:<10} {median(found):.2f} s, {spread}; planner / it {ratio:.2f}")


def memory(options: argparse.Namespace, folder: Path) -> None:
    _source(folder, options.gigabytes, ".safetensors")
    command = [sys.executable, "-m", "planner", "checkpoint", "transform", "source", "target", "--from", "rows.ckpt",
               "--to", "columns.ckpt", "--memory", "512MiB"]  # fmt: skip
    seconds, largest = _timed(command, folder / "target", folder)
    size = sum(f.stat().st_size for f in (folder / "target").rglob("*") if f.is_file())
    sound = "FAULTS" if unsound(folder / "target")[0] else "sound"
    print(f"{size / 1e9:.2f} GB in {seconds:.1f} s, {largest / 1024:.0f} MiB at most, {sound}")


def layouts(options: argparse.Namespace, folder: Path) -> None:
    for number in range(options.count):
        rng = random.Random(number)
        shapes = {f"p{i}.weight": random_shape(rng) for i in range(rng.randint(1, 3))}
        a, b, c = (random_layouts(rng, shapes) for _ in range(3))
        weights, slots = random_tensors(rng, shapes)
        place = folder / str(number)
        write_ranks(place / "a", a, weights, slots)
        moved(place / "a", a, place / "b", b)
        moved(place / "b", b, place / "c", c)  # as A to C has to be
        moved(place / "b", b, place / "d", a)
        for name, lays in (("b", b), ("c", c), ("d", a)):
            check_ranks(place / name, lays, weights, slots)
        shutil.rmtree(place)
    print(f"{options.count} cases of three random layouts: A to B, A to B to C and A to B to A are what numpy says")


def kills(options: argparse.Namespace, folder: Path) -> None:
    _source(folder, options.gigabytes, ".safetensors")
    command = [sys.executable, "-m", "planner", "checkpoint", "transform", "source", "target", "--from", "rows.ckpt",
               "--to", "columns.ckpt", "--resume", "--json", "--memory", "16MiB"]  # fmt: skip
    rng, killed, runs, found = random.Random(0), 0, 0, 0
    whole, _ = _timed(command, folder / "target", folder)
    while killed < options.count:
        process = subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        try:
            process.wait(rng.uniform(0.3, 1.1) * whole)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            process.wait()
            killed += 1
            if (folder / "target").exists():  # it was in its place, and whole
                assert unsound(folder / "target")[0] == []
                shutil.rmtree(folder / "target")
            continue
        if process.returncode:
            shutil.rmtree(folder / "target", ignore_errors=True)  # it was there already
            continue
        assert process.stdout is not None
        done = json.loads(process.stdout.read())
        found += done["found_bytes"]
        assert unsound(folder / "target")[0] == []
        runs += 1
        shutil.rmtree(folder / "target")
    print(f"{killed} kills, {runs} targets that were gone on with, whole and sound; {found / 1e9:.1f} GB of them found")


def plan(_: argparse.Namespace, folder: Path) -> None:
    hidden, ffn, kv, words, count = 8192, 28672, 1024, 128256, 80
    each = {"q": (hidden, hidden), "k": (kv, hidden), "v": (kv, hidden), "o": (hidden, hidden), "gate": (ffn, hidden),
            "up": (ffn, hidden), "down": (hidden, ffn), "norm1": (hidden,), "norm2": (hidden,)}  # fmt: skip
    shapes: dict[str, tuple[int, ...]] = {f"{i}.{n}": s for i in range(count) for n, s in each.items()}
    shapes |= {"0.words": (words, hidden), f"{count - 1}.norm": (hidden,), f"{count - 1}.head": (words, hidden)}

    def spread(name: str, tp: int, pp: int, dp: int) -> Spread:
        layer, kind = name.split(".")
        rows = kind in ("o", "down")
        dims: tuple[tuple[str, ...], ...] = (("x",), ("y",)) if rows else (("y", "x"), ())
        mesh = DeviceMesh.of(dp, tp)
        return Spread(
            Layout(dims if len(shapes[name]) == 2 else (("x",),)),
            mesh,
            (int(layer) * pp // count * mesh.devices,),
            shapes[name],
        )

    def lays(tp: int, pp: int, dp: int) -> Layouts:
        return Layouts(f"TP {tp} x PP {pp} x DP {dp}", tp * pp * dp, {n: spread(n, tp, pp, dp) for n in shapes})

    for a, b in (((8, 4, 32), (8, 4, 24)), ((8, 4, 64), (8, 4, 48))):
        before, after = lays(*a), lays(*b)
        began = time.process_time()
        found = transfer_plan(before, after, itemsize=2)
        seconds = time.process_time() - began
        print(f"{before.ranks} to {after.ranks} ranks, {len(shapes)} tensors: {seconds:.2f} CPU-s, "
              f"{found.schedule.moved_bytes / found.state_bytes:.2f} of the state moves")  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("speed", "memory", "layouts", "kills", "plan"))
    parser.add_argument("--gigabytes", type=float, default=1.07)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--sync", action="store_true")
    parser.add_argument("--mindspore", default="")
    parser.add_argument("--torch", default="")
    options = parser.parse_args()
    run: Callable[[argparse.Namespace, Path], None] = {
        "speed": speed, "memory": memory, "layouts": layouts, "kills": kills, "plan": plan,
    }[options.what]  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        run(options, Path(folder))


if __name__ == "__main__":
    main()
