"""MindSpore itself reads the checkpoints that we write, and moves shards as we do.

MindSpore wants another protobuf than OR-Tools: it runs in an environment of its own, whose interpreter the variable
PLANNER_MINDSPORE_PYTHON names.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
from pathlib import Path

import numpy as np
import pytest

from planner.checkpoint.layouts import Layouts, read_layouts
from planner.checkpoint.source import rank_files
from planner.emit.mindspore.arrangement import Arrangement
from planner.emit.mindspore.strategy_map import ParameterLayout, StrategyMap, read_strategy_map, to_protobuf
from tests.checkpoint.layouts import Whole, random_tensors, write_file, write_ranks
from tests.checkpoint.test_transforming import arrays_of, check_ranks, moved

PYTHON = os.environ.get("PLANNER_MINDSPORE_PYTHON", "")
CASES = int(os.environ.get("PLANNER_MINDSPORE_CASES", "60"))
pytestmark = [
    pytest.mark.peer,
    pytest.mark.skipif(not PYTHON, reason="PLANNER_MINDSPORE_PYTHON names no interpreter that has MindSpore"),
]


def mindspore(jobs: list[dict[str, str]], folder: Path) -> list[str]:
    (folder / "jobs.json").write_text(json.dumps(jobs))
    script = Path(__file__).with_name("mindspore_checkpoints.py")
    done = subprocess.run([PYTHON, script, folder / "jobs.json"], cwd=folder, capture_output=True, text=True)
    assert done.returncode in (0, -6), done.stderr[-2000:]  # it may abort at its exit
    return [line for line in done.stdout.splitlines() if line[:1].isdigit()]


def test_each_reads_what_the_other_writes(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    types = (np.float32, np.float16, np.int32, np.int64, np.uint8, np.bool_, np.float64)
    shapes: tuple[tuple[int, ...], ...] = ((2, 3), (5,), (), (1,), (2, 2, 2))
    values: Whole = {f"p{i}.{t.__name__}": rng.integers(0, 2, s).astype(t) for t in types for i, s in enumerate(shapes)}
    write_file(tmp_path / "ours.ckpt", values)
    np.savez(tmp_path / "values.npz", **values)
    jobs = [
        {"do": "load", "from": "ours.ckpt", "to": "ours.npz"},
        {"do": "save", "from": "values.npz", "to": "theirs.ckpt"},
    ]
    assert mindspore(jobs, tmp_path) == []
    found, theirs = np.load(tmp_path / "ours.npz"), arrays_of(tmp_path / "theirs.ckpt")
    for name, value in values.items():
        for other in (found[name], theirs[name]):
            assert (other.dtype, other.shape) == (value.dtype, value.shape)
            np.testing.assert_array_equal(other, value)


def random_arrangement(rng: random.Random, ranks: int, dims: int) -> Arrangement:
    """A device matrix of so many ranks, dimensions on its axes, and now and then shards of the optimizer."""
    matrix, left = [], ranks
    while left > 1:
        taken = rng.choice([n for n in (2, 4, 8) if left % n == 0])
        matrix.append(taken)
        left //= taken
    rng.shuffle(matrix)
    axes = list(range(len(matrix)))
    rng.shuffle(axes)
    places: list[int] = [axes.pop() if axes and rng.random() < 0.6 else -1 for _ in range(dims)]
    made = Arrangement(tuple(matrix or [1]), tuple(places))
    if made.replicas > 1 and dims and rng.random() < 0.5:
        used = {p for p in made.tensor_map if p != -1}
        idle = [n for a, n in enumerate(reversed(made.device_matrix)) if a not in used]
        return made.divided(int(np.prod(idle[: rng.randint(1, len(idle))])))  # of the innermost, one or more
    return made


def misread_by_mindspore(a: Arrangement) -> bool:
    """Whether its transform_checkpoints takes the ranks in another order than its training does.

    Where the outermost axis alone holds replicas, and the optimizer divides them, mindspore/parallel/_tensor.py (2.10,
    `_construct_tensor_layout_for_opt_shard`) makes the device matrix anew of the shards of each dimension, in the order
    of the dimensions: axes that split them in another order are lost.
    """
    used = [p for p in a.tensor_map if isinstance(p, int) and p != -1]
    idle = [i for i, n in enumerate(a.device_matrix) if n > 1 and len(a.device_matrix) - 1 - i not in used]
    return a.optimizer_shards > 0 and idle == [0] and used != sorted(used, reverse=True)


@pytest.mark.slow
def test_shards_move_as_mindspore_moves_them(tmp_path: Path) -> None:
    rng = random.Random(20)
    jobs: list[dict[str, str]] = []
    expected: list[tuple[Path, Layouts, set[str]]] = []
    shapes = {"w": (16, 32), "fc.bias": (64,), "embedding_table": (32, 16, 8)}
    slots = ("moment1", "moment2")
    for case in range(CASES):
        sizes = [rng.choice([1, 2, 4, 8, 16]) for _ in range(2)]
        folder = tmp_path / f"case{case}"
        folder.mkdir()
        for side, ranks in zip(("source", "target"), sizes, strict=True):
            parameters = {}
            for name, shape in shapes.items():
                layout = ParameterLayout(random_arrangement(rng, ranks, len(shape)))
                parameters |= dict.fromkeys((name, *(f"{s}.{name}" for s in slots)), layout)
            (folder / f"{side}.ckpt").write_bytes(to_protobuf(StrategyMap({}, parameters)))
        before, after = (read_layouts(folder / f"{side}.ckpt") for side in ("source", "target"))
        weights, _ = random_tensors(rng, shapes)
        state = random_tensors(rng, {f"{s}.{n}": shape for n, shape in shapes.items() for s in slots})[0]
        write_ranks(folder / "a", before, weights, state, ".ckpt")
        moved(folder / "a", before, folder / "ours", after)
        jobs.append({"do": "transform", "from": str(folder / "a"), "to": str(folder / "theirs"),
                     "source": str(folder / "source.ckpt"), "target": str(folder / "target.ckpt")})  # fmt: skip
        sides = [read_strategy_map(folder / f"{side}.ckpt").parameters for side in ("source", "target")]
        misread = {n for side in sides for n, p in side.items() if misread_by_mindspore(p.arrangement)}
        expected.append((folder, after, misread))
        check_ranks(folder / "ours", after, weights, state)  # numpy has the last word
    assert mindspore(jobs, tmp_path) == []
    compared = 0
    for folder, after, misread in expected:
        ours = rank_files(folder / "ours")
        assert len(ours) == after.ranks == len(list((folder / "theirs").glob("rank_*.npz")))
        for rank, file in ours.items():
            theirs, mine = np.load(folder / f"theirs/rank_{rank}.npz"), arrays_of(file)
            assert set(theirs.files) == set(mine)
            for name in set(mine) - misread:
                compared += 1
                value = mine[name]
                np.testing.assert_array_equal(theirs[name], value, err_msg=f"{folder} rank {rank} {name}")
    assert compared > 10 * CASES
