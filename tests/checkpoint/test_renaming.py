"""Names, turned matrices, fused and separate weights: what `--map` says, against numpy."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from planner.checkpoint.layouts import Layouts, Spread
from planner.checkpoint.naming import parameters_among, parse, spelled, style_of
from planner.checkpoint.renaming import read_rules
from planner.errors import InputError
from planner.ir import Layout
from tests.checkpoint.layouts import Whole, random_layout, random_layouts, random_mesh, random_tensors, write_ranks
from tests.checkpoint.test_transforming import check_ranks, moved


def rules_of(tmp_path: Path, document: Any) -> Any:
    (tmp_path / "map.json").write_text(json.dumps(document))
    return read_rules(tmp_path / "map.json")


@pytest.mark.parametrize("seed", range(30))
def test_turned_joined_and_cut_tensors_are_those_of_numpy(seed: int, tmp_path: Path) -> None:
    rng = random.Random(seed)
    shapes: dict[str, tuple[int, ...]] = {
        "h.0.q": (6, 8), "h.0.k": (2, 8), "h.0.v": (4, 8), "h.0.proj": (8, 6), "h.0.gate_up": (12, 8), "norm": (8,),
    }  # fmt: skip
    before = random_layouts(rng, shapes)
    weights, slots = random_tensors(rng, shapes)
    write_ranks(tmp_path / "a", before, weights, slots)
    rules = rules_of(tmp_path, {
        "layers.*.qkv": {"joined": ["h.*.q", "h.*.k", "h.*.v"], "dim": 0},
        "h.*.proj": {"name": "layers.*.out", "transposed": True},
        "h.*.gate_up": {"parts": {"layers.*.gate": 5, "layers.*.up": 7}},
    })  # fmt: skip

    def mapped(w: Whole, end: str) -> Whole:
        gate_up = w[f"h.0.gate_up{end}"]
        return {
            f"layers.0.qkv{end}": np.concatenate([w[f"h.0.{x}{end}"] for x in "qkv"]),
            f"layers.0.out{end}": w[f"h.0.proj{end}"].T.copy(),
            f"layers.0.gate{end}": gate_up[:5].copy(), f"layers.0.up{end}": gate_up[5:].copy(),
            f"norm{end}": w[f"norm{end}"],
        }  # fmt: skip

    new_weights, new_slots = mapped(weights, ""), mapped(slots, ".exp_avg")
    after = random_layouts(rng, {n: v.shape for n, v in new_weights.items()})
    moved(tmp_path / "a", before, tmp_path / "b", after, rules=rules)
    check_ranks(tmp_path / "b", after, new_weights, new_slots)


def test_queries_keys_and_values_that_are_cut_each_by_itself_are_joined(tmp_path: Path) -> None:
    """Separate matrices under tensor parallelism become one whose ranks have their heads of all three."""
    from planner.ir import DeviceMesh, Layout

    mesh = DeviceMesh.of(2)
    separate = Layouts("a", 2, {n: Spread(Layout((("x",), ())), mesh, (0,), (4, 3)) for n in "qkv"})
    fused = Layouts("b", 2, {"qkv": Spread(Layout((("x",), ()), (), (3, 1)), mesh, (0,), (12, 3))})
    weights = {
        n: np.full((4, 3), i, np.float32) + np.arange(4, dtype=np.float32)[:, None] / 8 for i, n in enumerate("qkv")
    }
    write_ranks(tmp_path / "a", separate, weights, {})
    moved(
        tmp_path / "a", separate, tmp_path / "b", fused, rules=rules_of(tmp_path, {"qkv": {"joined": ["q", "k", "v"]}})
    )
    check_ranks(tmp_path / "b", fused, {"qkv": np.concatenate([weights[n] for n in "qkv"])}, {})


@pytest.mark.parametrize(("document", "message"), [
    ([], "expected an object"),
    ({"a": 3}, "expected a name or an object"),
    ({"a": {"joined": []}}, 'expected "name", "joined" or "parts"'),
    ({"a": {"parts": {"b": -1}}}, 'expected "name", "joined" or "parts"'),
    ({"a": {"name": "b"}, "x": {"joined": ["b"], "dim": -1}}, "dim: expected the number of a dimension"),
    ({"nobody": "b"}, "'nobody' is no tensor of"),
    ({"a": "b"}, "two tensors"),
    ({"a": {"parts": {"c": 3, "d": 3}}}, "expected parts that make 8, found"),
    ({"x": {"joined": ["a", "b"], "dim": 1}}, "differ in dimension 1 alone"),
    ({"x": {"joined": ["a", "zzz"]}}, "needs 'zzz'"),
    ({"c": {"name": "x", "transposed": True}}, "expected a matrix to turn"),
    ({"x": {"joined": ["a", "a"]}}, "'a' stands there twice"),
    ({"a": "x.*.y"}, r"expected one \* in each name, or in none"),
])  # fmt: skip
def test_what_a_map_cannot_mean_is_said(document: Any, message: str, tmp_path: Path) -> None:
    from tests.checkpoint.layouts import write_file

    write_file(tmp_path / "a.npz", {"a": np.ones((8, 2)), "b": np.ones((3, 3)), "c": np.ones(3)})
    with pytest.raises(InputError, match=message):
        moved(tmp_path / "a.npz", None, tmp_path / "b.npz", None, rules=rules_of(tmp_path, document))


def test_a_key_that_stands_twice_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "map.json").write_text('{"a": "x", "a": "y"}')
    with pytest.raises(InputError, match="the key 'a' twice"):
        read_rules(tmp_path / "map.json")


@pytest.mark.parametrize("style", ["mindspore", "torch", "plain"])
def test_names_are_spelled_and_understood_again(style: str) -> None:
    known = {"h.0.weight", "h.0.bias", "weight", "model.norm"}
    for parameter in known:
        for slot in ("", "exp_avg", "exp_avg_sq", "momentum_buffer", "step"):
            name = spelled(parse(f"{parameter}.{slot}" if slot else parameter, known), style)
            found = parse(name, known)
            assert (found.parameter, found.slot) == (parameter, slot), name


def test_parameters_are_told_from_slots() -> None:
    names = ["a.weight", "a.weight.exp_avg", "moment1.a.weight", "step", "b"]
    assert parameters_among(names) == {"a.weight", "step", "b"}
    torch = ["model.a", "optimizer.state.a.exp_avg", "optimizer.state.a.step"]
    assert style_of(torch) == "torch"
    assert parameters_among(torch) == {"a"}


@pytest.mark.parametrize("seed", range(10))
def test_random_layouts_of_turned_matrices(seed: int, tmp_path: Path) -> None:
    rng = random.Random(seed)
    before, mesh = random_layouts(rng, {"w": (6, 10)}), random_mesh(rng)
    weights, slots = random_tensors(rng, {"w": (6, 10)})
    write_ranks(tmp_path / "a", before, weights, slots)
    rules = rules_of(tmp_path, {"w": {"name": "w", "transposed": True}})
    after = Layouts("b", mesh.devices, {"w": Spread(random_layout(rng, 2, mesh, (10, 6)), mesh, (0,), (10, 6))})
    moved(tmp_path / "a", before, tmp_path / "b", after, rules=rules, memory=rng.choice([1 << 20, 100]))
    check_ranks(tmp_path / "b", after, {"w": weights["w"].T}, {"w.exp_avg": slots["w.exp_avg"].T})


def test_slots_that_a_strategy_file_names_are_slots(tmp_path: Path) -> None:
    from planner.checkpoint.layouts import read_layouts
    from planner.emit.mindspore.arrangement import Arrangement
    from planner.emit.mindspore.strategy_map import ParameterLayout, StrategyMap, to_protobuf

    rows, columns = (ParameterLayout(Arrangement((2,), places)) for places in ((0, -1), (-1, 0)))
    names = {"w": rows, "moment1.w": columns, "moment2.w": columns, "adam_m.w": columns, "moments.other": rows}
    (tmp_path / "strategy.ckpt").write_bytes(to_protobuf(StrategyMap({}, names)))
    found = read_layouts(tmp_path / "strategy.ckpt")
    assert set(found.parameters) == {"w", "moments.other"}
    assert found.of_slot("w").layout == Layout(((), ("x",)))
    assert found.of_slot("moments.other") is found.parameters["moments.other"]
