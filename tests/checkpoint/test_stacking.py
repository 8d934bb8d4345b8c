"""Stacks, groups of heads, padded vocabularies: what `--map` says and its inverse, against numpy."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.errors import InputError
from planner.stored.arrays import StoredArray
from tests.checkpoint.layouts import (
    Whole,
    random_layout,
    random_layouts,
    random_mesh,
    random_tensors,
    write_file,
    write_ranks,
)
from tests.checkpoint.test_renaming import rules_of
from tests.checkpoint.test_transforming import arrays_of, check_ranks, moved

LAYERS, EXPERTS, GROUPS, HEADS, HEAD, WIDTH = 3, 2, 2, 4, 5, 6
SHAPES: dict[str, tuple[int, ...]] = {
    **{f"h.{i}.{x}": ((HEADS if x == "q" else GROUPS) * HEAD, WIDTH) for i in range(LAYERS) for x in "qkv"},
    **{f"h.{i}.norm": (WIDTH,) for i in range(LAYERS)},
    **{f"h.{i}.conv": (WIDTH, 3 * HEADS * HEAD) for i in range(LAYERS)},
    **{f"h.{i}.e.{e}.{x}": (7, WIDTH) for i in range(LAYERS) for e in range(EXPERTS) for x in ("gate", "up")},
    "wte": (11, WIDTH), "ln": (WIDTH,),
}  # fmt: skip
THERE: dict[str, Any] = {
    "d.qkv": {"stacked": {"joined": ["h.#.q", "h.#.k", "h.#.v"], "groups": GROUPS}},
    "d.norm": {"stacked": "h.#.norm"},
    "d.conv": {"stacked": {"name": "h.#.conv", "transposed": True,
                           "grouped": {"sizes": [HEADS * HEAD] * 3, "groups": HEADS}}},
    "d.fc1": {"stacked": {"joined": ["h.#.e.#.gate", "h.#.e.#.up"]}},
    "wte": {"name": "emb", "padded": 16},
}  # fmt: skip
BACK: dict[str, Any] = {
    "d.qkv": {"unstacked": {"parts": {"h.#.q": HEADS * HEAD, "h.#.k": GROUPS * HEAD, "h.#.v": GROUPS * HEAD},
                            "groups": GROUPS}},
    "d.norm": {"unstacked": "h.#.norm"},
    "d.conv": {"unstacked": {"name": "h.#.conv", "transposed": True, "dim": 1,
                             "ungrouped": {"sizes": [HEADS * HEAD] * 3, "groups": HEADS}}},
    "d.fc1": {"unstacked": {"parts": {"h.#.e.#.gate": 7, "h.#.e.#.up": 7}}},
    "emb": {"name": "wte", "cut": 11},
}  # fmt: skip


def by_numpy(w: Whole, end: str) -> Whole:
    """As the rules have it, in other words: reshapes and transposes of whole arrays."""

    def fused(i: int) -> np.ndarray[Any, Any]:
        parts = [w[f"h.{i}.{x}{end}"].reshape(GROUPS, -1, WIDTH) for x in "qkv"]
        return np.concatenate(parts, axis=1).reshape(-1, WIDTH)

    def conv(i: int) -> np.ndarray[Any, Any]:
        return w[f"h.{i}.conv{end}"].T.reshape(3, HEADS, HEAD, WIDTH).transpose(1, 0, 2, 3).reshape(-1, WIDTH)

    def experts(i: int) -> np.ndarray[Any, Any]:
        return np.stack([np.concatenate([w[f"h.{i}.e.{e}.{x}{end}"] for x in ("gate", "up")]) for e in range(EXPERTS)])

    layers = range(LAYERS)
    return {
        f"d.qkv{end}": np.stack([fused(i) for i in layers]),
        f"d.norm{end}": np.stack([w[f"h.{i}.norm{end}"] for i in layers]),
        f"d.conv{end}": np.stack([conv(i) for i in layers]),
        f"d.fc1{end}": np.stack([experts(i) for i in layers]),
        f"emb{end}": np.concatenate([w[f"wte{end}"], np.zeros((5, WIDTH), np.float32)]),
        f"ln{end}": w[f"ln{end}"],
    }  # fmt: skip


@pytest.mark.parametrize("seed", range(24))
def test_there_and_back_under_any_layouts(seed: int, tmp_path: Path) -> None:
    rng = random.Random(seed)
    weights, slots = random_tensors(rng, SHAPES)
    before = random_layouts(rng, SHAPES)
    suffix = rng.choice([".safetensors", ".npz", ".ckpt", ".pt"])
    write_ranks(tmp_path / "a", before, weights, slots, suffix)
    memory = rng.choice([1 << 28, 300])
    new_weights, new_slots = by_numpy(weights, ""), by_numpy(slots, ".exp_avg")
    after = random_layouts(rng, {n: v.shape for n, v in new_weights.items()})
    moved(tmp_path / "a", before, tmp_path / "b", after, rules=rules_of(tmp_path, THERE), memory=memory, format="npz")
    check_ranks(tmp_path / "b", after, new_weights, new_slots)
    moved(tmp_path / "b", after, tmp_path / "c", before, rules=rules_of(tmp_path, BACK), memory=memory, format="npz")
    check_ranks(tmp_path / "c", before, weights, slots)


def test_a_count_of_steps_goes_with_what_is_stacked(tmp_path: Path) -> None:
    w = {f"h.{i}.w": np.full((2, 3), i, np.float32) for i in range(3)}
    steps = {f"{n}.step": np.array(7, np.float32) for n in w}
    write_file(tmp_path / "a.npz", w | steps)
    moved(tmp_path / "a.npz", None, tmp_path / "b.npz", None, rules=rules_of(tmp_path, {"d": {"stacked": "h.#.w"}}))
    found = arrays_of(tmp_path / "b.npz")
    assert set(found) == {"d", "d.step"}
    assert found["d.step"] == 7
    moved(tmp_path / "b.npz", None, tmp_path / "c.npz", None, rules=rules_of(tmp_path, {"d": {"unstacked": "h.#.w"}}))
    again = arrays_of(tmp_path / "c.npz")
    assert all((again[n] == v).all() for n, v in (w | steps).items())
    assert set(again) == set(w | steps)
    write_file(tmp_path / "d.npz", w | steps | {"h.1.w.step": np.array(8, np.float32)})
    with pytest.raises(InputError, match="one count of steps"):
        moved(tmp_path / "d.npz", None, tmp_path / "e.npz", None, rules=rules_of(tmp_path, {"d": {"stacked": "h.#.w"}}))


def test_what_is_cut_off_is_said(tmp_path: Path) -> None:
    from planner.checkpoint.source import open_checkpoint
    from planner.checkpoint.transforming import Options, planned

    write_file(tmp_path / "a.npz", {"emb": np.ones((16, 2), np.float32)})
    rules = rules_of(tmp_path, {"emb": {"name": "wte", "cut": 11}})
    plan = planned(open_checkpoint(tmp_path / "a.npz", None), tmp_path / "b.npz", None, Options(rules=rules))
    assert plan.done().skipped == ("emb (11:16 of dimension 0)",)


@pytest.mark.parametrize("seed", range(6))
def test_a_turned_stack_of_any_layout(seed: int, tmp_path: Path) -> None:
    """Turned on the way into the stack, and on the way out of it."""
    rng = random.Random(seed)
    shapes = {f"h.{i}": (4, 6) for i in range(3)}
    weights, _ = random_tensors(rng, shapes)
    before = random_layouts(rng, shapes)
    write_ranks(tmp_path / "a", before, weights, {})
    rules = rules_of(tmp_path, {"d": {"stacked": {"name": "h.#", "transposed": True}}})
    mesh = random_mesh(rng)
    from planner.checkpoint.layouts import Layouts, Spread

    after = Layouts("b", mesh.devices, {"d": Spread(random_layout(rng, 3, mesh, (3, 6, 4)), mesh, (0,), (3, 6, 4))})
    moved(tmp_path / "a", before, tmp_path / "b", after, rules=rules)
    check_ranks(tmp_path / "b", after, {"d": np.stack([weights[f"h.{i}"].T for i in range(3)])}, {})


@pytest.mark.parametrize(("document", "message"), [
    ({"d": {"stacked": "h.#.norm"}, "x": {"unstacked": 3}}, "expected a name or an object"),
    ({"d": {"stacked": "h.*.norm"}}, "as many # in each of its names"),
    ({"d": {"stacked": {"joined": ["h.#.a", "h.b"]}}}, "as many # in each of its names"),
    ({"d#": {"stacked": "h.#.a"}}, "none in the key"),
    ({"d": "h.#.a"}, "# in names of stacked or unstacked alone"),
    ({"d": {"stacked": "h.#.a", "dim": 1}}, "found the key 'dim'"),
    ({"d": {"stacked": {"parts": {"h.#": 1}}}}, 'expected "name", "joined" or "parts"'),
    ({"w": {"name": "q", "padded": 0}}, "padded: expected a number from 1 on"),
    ({"w": {"name": "q", "padded": 8, "cut": 2}}, "found both"),
    ({"w": {"name": "q", "grouped": {"sizes": [4]}}}, "grouped: expected"),
    ({"w": {"name": "q", "groups": 2}}, "beside joined or parts"),
    ({"w": {"name": "q", "padded": 3}}, "to be at most the 3"),
    ({"w": {"name": "q", "cut": 9}}, "to have at least 9"),
    ({"w": {"name": "q", "dim": 3, "cut": 1}}, "to have at least 1"),
    ({"w": {"parts": {"a": 3, "b": 5}, "groups": 2}}, "divide into 2 groups, found one of 3"),
    ({"x": {"joined": ["w", "u"], "groups": 3}}, "divides into 3 groups"),
    ({"w": {"name": "q", "ungrouped": {"sizes": [4, 5], "groups": 1}}}, "expected parts that make 8, found"),
    ({"d": {"stacked": "gap.#"}}, "needs 'gap.1'"),
    ({"d": {"stacked": "odd.#"}}, "of one shape and type to stack"),
    ({"d": {"stacked": "none.#"}}, "'none.#' is no tensor of"),
    ({"d": {"stacked": {"joined": ["gap.#", "odd.#"]}}}, "needs"),
    ({"scalar": {"unstacked": "h.#"}}, "at least 1 dimensions"),
])  # fmt: skip
def test_what_a_map_cannot_mean_is_said(document: Any, message: str, tmp_path: Path) -> None:
    write_file(tmp_path / "a.npz", {
        "w": np.ones((8, 2)), "u": np.ones((4, 2)), "gap.0": np.ones(3), "gap.2": np.ones(3), "odd.0": np.ones(3),
        "odd.1": np.ones(4), "scalar": np.ones(()),
    })  # fmt: skip
    with pytest.raises(InputError, match=message):
        moved(tmp_path / "a.npz", None, tmp_path / "b.npz", None, rules=rules_of(tmp_path, document))


WORDS = st.sampled_from(["name", "joined", "parts", "stacked", "unstacked", "dim", "groups", "padded", "cut", "grouped",
                         "ungrouped", "transposed", "sizes", "w", "u", "h.#", "h.*", "x"])  # fmt: skip
LEAVES = st.one_of(WORDS, st.integers(-2, 9), st.booleans(), st.none(), st.floats(allow_nan=True))
ANYTHING = st.recursive(LEAVES, lambda x: st.one_of(st.lists(x, max_size=3), st.dictionaries(WORDS, x, max_size=4)))


@settings(max_examples=300, deadline=None)
@given(st.dictionaries(WORDS, ANYTHING, max_size=3))
def test_any_map_is_taken_or_refused_in_words(document: Any) -> None:
    from planner.checkpoint.naming import Tensor
    from planner.checkpoint.renaming import renamed, rules_of
    from planner.stored.moves import Held
    from planner.transfer.pieces import whole

    shapes: dict[str, tuple[int, ...]] = {"w": (8, 2), "u": (4, 2), "h.0": (3,), "h.1": (3,), "s": ()}
    tensors = {n: Held(whole(s), (stored(n, s),), np.dtype(np.float32)) for n, s in shapes.items()}
    said = {n: Tensor(n, n) for n in tensors}
    try:
        made = renamed(tensors, said, rules_of(document, "map"), Path("a"))
    except InputError:
        return
    assert set(made.tensors) == set(made.said)


def stored(name: str, shape: tuple[int, ...]) -> StoredArray:
    return StoredArray(Path(name), 0, np.dtype(np.float32), shape)


def test_layers_of_an_array_in_slices_are_read_from_theirs(tmp_path: Path) -> None:
    """As large tensors of MindSpore lie in their files."""
    from planner.stored.arrays import Files
    from planner.stored.moves import Held
    from planner.stored.shaping import unstacked
    from planner.transfer.pieces import whole

    values = np.arange(4 * 3 * 5, dtype=np.float32).reshape(4, 3, 5)
    data, extents, at = b"", [], 0
    for size in (52, 100, 88):  # not where layers end
        data += b"gap!"
        extents.append((at, len(data)))
        data += values.tobytes()[at : at + size]
        at += size
    (tmp_path / "x").write_bytes(data)
    array = StoredArray(tmp_path / "x", extents[0][1], values.dtype, values.shape, None, tuple(extents))
    with Files() as files:
        for i, h in enumerate(unstacked(Held(whole(values.shape), (array,), values.dtype), 1)):
            np.testing.assert_array_equal(files.read(h.arrays[0], [(0, 3), (0, 5)]), values[i])
            np.testing.assert_array_equal(files.read(h.arrays[0], [(1, 3), (2, 4)]), values[i, 1:3, 2:4])
