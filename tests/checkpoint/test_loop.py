"""Weights and Adam's state from MindSpore through all frameworks and back, bit by bit."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest

from planner import checkpoint
from planner.checkpoint.layouts import Layouts, read_layouts
from planner.checkpoint.source import open_checkpoint
from planner.emit.mindspore.arrangement import Arrangement
from planner.emit.mindspore.strategy_map import OperatorStrategy, ParameterLayout, StrategyMap, to_protobuf
from planner.stored.arrays import Files
from planner.stored.copying import read_block
from planner.stored.moves import Held, without_repeats
from tests.checkpoint.layouts import Whole, write_file, write_ranks
from tests.checkpoint.test_megatron import CONFIG, hugging_face, shapes
from tests.checkpoint.test_transforming import arrays_of


def strategy(path: Path, rng: random.Random) -> Path:
    """Of four ranks: each parameter divided along some dimension by two or four, by the optimizer or by nobody."""
    layouts = {}
    for name, shape in shapes("hf-llama").items():
        fits = [d for d, n in enumerate(shape) if n % 2 == 0]
        dim, both = rng.choice([None, *fits]), rng.random() < 0.3
        places = tuple((1 if shape[d] % 4 or not both else 0) if d == dim else -1 for d in range(len(shape)))
        layouts[name] = ParameterLayout(Arrangement((2, 2) if dim is None or 1 in places else (4,), places))
    operators = {f"MatMul_{n}": OperatorStrategy(0, ((1,),)) for n in layouts}
    path.write_bytes(to_protobuf(StrategyMap(operators, layouts, 1)))
    return path


def contents(folder: Path, lays: Layouts) -> dict[str, tuple[object, bytes]]:
    """Of each tensor of a checkpoint of ranks: its shape and its bytes."""
    found = open_checkpoint(folder, lays)
    with Files() as files:
        return {
            n: (h.shape, read_block(Held(without_repeats(h.pieces), h.arrays, h.dtype, h.order),
                                    [(0, s) for s in h.shape], files).tobytes())
            for n, h in found.tensors.items()
        }  # fmt: skip


@pytest.mark.parametrize("seed", range(3))
def test_mindspore_hugging_face_dcp_megatron_deepspeed_mindspore(seed: int, tmp_path: Path) -> None:
    rng = random.Random(seed)
    before = strategy(tmp_path / "before.ckpt", rng)
    after = strategy(tmp_path / "after.ckpt", rng)
    lays = checkpoint_layouts(before)
    weights, state = hugging_face(tmp_path / "unused", "hf-llama")
    slots: Whole = {
        f"moment{i}.{n}": state[f"{n}.{s}"] for n in weights for i, s in ((1, "exp_avg"), (2, "exp_avg_sq"))
    }
    write_ranks(tmp_path / "mindspore", lays, weights, slots, ".ckpt")
    for rank in range(4):
        add(tmp_path / f"mindspore/rank_{rank}/checkpoint.ckpt", {"global_step": np.array([9], np.int32)})
    config = tmp_path / "unused/config.json"
    checkpoint.transform(tmp_path / "mindspore", tmp_path / "hf", source=before, format="huggingface")
    checkpoint.transform(tmp_path / "hf", tmp_path / "dcp", format="dcp")
    checkpoint.transform(tmp_path / "dcp", tmp_path / "megatron", map="hf-llama:megatron", config=config)
    checkpoint.transform(tmp_path / "megatron", tmp_path / "again", map="megatron:hf-llama", config=config)
    checkpoint.transform(tmp_path / "again", tmp_path / "deepspeed", format="deepspeed")
    checkpoint.transform(tmp_path / "deepspeed", tmp_path / "back", target=after, format="mindspore")
    found, expected = contents(tmp_path / "back", checkpoint_layouts(after)), contents(tmp_path / "mindspore", lays)
    assert found.keys() >= expected.keys()
    assert {n: found[n] for n in expected} == expected
    assert CONFIG["num_hidden_layers"] == 3  # several layers were stacked and taken apart


def checkpoint_layouts(path: Path) -> Layouts:
    return read_layouts(path).in_format("mindspore")


def add(file: Path, more: Whole) -> None:
    write_file(file, {**arrays_of(file), **more})
