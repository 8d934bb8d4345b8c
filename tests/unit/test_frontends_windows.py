"""`--batch` on exports of shifted-window attention, where windows and batch are one dimension."""

from __future__ import annotations

import numpy as np
import pytest

from planner.errors import InputError
from planner.frontends import import_bytes
from planner.frontends.resized.resize import repeat_blocks
from planner.verify.imported import check_import

from .frontends_models import constant, external, imported, node, serialised, value

SIDE, WINDOW, HIDDEN, HEADS = 4, 2, 8, 2
INSIDE = WINDOW * WINDOW  # positions of a window, and windows of an image


def mask() -> np.ndarray:
    """[windows, positions, positions]: -100 between positions that were apart before the image was rolled."""
    shifted = np.zeros((SIDE, SIDE))
    for k, rows in enumerate((slice(0, -2), slice(-2, -1), slice(-1, None))):
        for j, columns in enumerate((slice(0, -2), slice(-2, -1), slice(-1, None))):
            shifted[rows, columns] = 3 * k + j
    parts = shifted.reshape(2, WINDOW, 2, WINDOW).transpose(0, 2, 1, 3).reshape(-1, INSIDE)
    return np.where(parts[:, None] != parts[:, :, None], -100.0, 0.0)


def shifted_windows(batch: int, form: str) -> bytes:
    """Roll, cut into windows, attention with a mask, join, roll back, as torch exports it with a static batch.

    `form`: how the mask of every window meets the scores of [batch · windows, heads, …].
    """
    windows, each = batch * INSIDE, HIDDEN // HEADS
    stored = [
        external("qkv", [HIDDEN, 3 * HIDDEN]),
        external("out", [HIDDEN, HIDDEN]),
        *(constant(f"c{k}", [k]) for k in range(5)),
        constant("far", [2**63 - 1]),
        constant("cut", [batch, 2, WINDOW, 2, WINDOW, HIDDEN]),
        constant("rows", [windows, INSIDE, HIDDEN]),
        constant("parts", [windows, INSIDE, 3, HEADS, each]),
        constant("split", [batch, INSIDE, HEADS, INSIDE, INSIDE]),
        constant("unsplit", [-1, HEADS, INSIDE, INSIDE]),
        constant("joined", [batch, 2, 2, WINDOW, WINDOW, -1]),
        constant("image", [batch, SIDE, SIDE, HIDDEN]),
        constant("first", 0),
        constant("second", 1),
        constant("third", 2),
        constant("single", mask().reshape(1, INSIDE, 1, INSIDE, INSIDE), "float32"),
        constant("merged", np.tile(mask()[:, None], (batch, 1, 1, 1)), "float32"),
        constant("plain", mask(), "float32"),
        constant("copies", [batch, 1, 1]),
    ]
    nodes = [
        *(
            made
            for axis, (before, after) in enumerate((("x", "r1"), ("r1", "r2")), start=1)
            for made in (
                node("Slice", f"{before} c1 far c{axis} c1", f"{after}_late"),
                node("Slice", f"{before} c0 c1 c{axis} c1", f"{after}_early"),
                node("Concat", f"{after}_late {after}_early", after, axis=axis),
            )
        ),
        node("Reshape", "r2 cut", "w0"),
        node("Transpose", "w0", "w1", perm=[0, 1, 3, 2, 4, 5]),
        node("Reshape", "w1 rows", "w"),
        node("MatMul", "w qkv", "p0"),
        node("Reshape", "p0 parts", "p1"),
        node("Transpose", "p1", "p", perm=[2, 0, 3, 1, 4]),
        *(node("Gather", f"p {i}", n, axis=0) for n, i in (("q", "first"), ("k", "second"), ("v", "third"))),
        node("Transpose", "k", "kt", perm=[0, 1, 3, 2]),
        node("MatMul", "q kt", "scores"),
    ]
    if form == "split":
        nodes += [
            node("Reshape", "scores split", "s0"),
            node("Add", "s0 single", "s1"),
            node("Reshape", "s1 unsplit", "masked"),
        ]
    elif form == "merged":
        nodes.append(node("Add", "scores merged", "masked"))
    else:
        nodes += [
            node("Tile", "plain copies", "tiled"),
            node("Unsqueeze", "tiled c1", "over_heads"),
            node("Add", "scores over_heads", "masked"),
        ]
    nodes += [
        node("Softmax", "masked", "a", axis=-1),
        node("MatMul", "a v", "o0"),
        node("Transpose", "o0", "o1", perm=[0, 2, 1, 3]),
        node("Reshape", "o1 rows", "o2"),
        node("MatMul", "o2 out", "o3"),
        node("Reshape", "o3 joined", "o4"),
        node("Transpose", "o4", "o5", perm=[0, 1, 3, 2, 4, 5]),
        node("Reshape", "o5 image", "o6"),
        node("Add", "x o6", "y"),
    ]
    return serialised(
        nodes, [value("x", [batch, SIDE, SIDE, HIDDEN])], [value("y", [batch, SIDE, SIDE, HIDDEN])], stored
    )


@pytest.mark.parametrize("form", ["split", "merged", "tiled"])
@pytest.mark.parametrize(("old", "new"), [(1, 4), (2, 1), (2, 6), (3, 2)])
def test_a_batch_in_front_of_windows(form, old, new):
    data = shifted_windows(old, form)
    g = import_bytes(data, batch=new)
    assert g.tensors["y"].shape == (new, SIDE, SIDE, HIDDEN)
    found = check_import(data, g, batch=new)
    assert found.ok is True, found.reason
    again = import_bytes(shifted_windows(new, form))
    assert {t.name: t.shape for t in g.tensors.values() if t.name in g.producers} == {
        t.name: t.shape for t in again.tensors.values() if t.name in again.producers
    }


def test_masks_that_differ_between_samples_stop_the_batch():
    nodes = [
        node("Reshape", "x merged", "a"),
        node("Add", "a masks", "b"),
        node("Reshape", "b apart", "y"),
    ]
    masks = np.random.default_rng(0).integers(0, 9, (4, 3)).astype(np.float32)
    stored = [constant("merged", [4, 3]), constant("apart", [2, 2, 3]), constant("masks", masks, "float32")]
    with pytest.raises(InputError, match=r"'masks' of shape \[4, 3\] stops the new size"):
        imported(nodes, [value("x", [2, 2, 3])], ["y"], stored, batch=4)


def test_blocks_are_repeated():
    block = np.arange(6).reshape(3, 2)
    two = np.concatenate([block, block])
    assert (repeat_blocks(two, 0, ((2, 3), (3, 3))) == np.tile(block, (3, 1))).all()
    assert (repeat_blocks(two, 0, ((2, 1), (3, 3))) == block).all()
    assert repeat_blocks(two, 0, ((6, 9),)) is None
    assert repeat_blocks(two, 0, ((3, 3), (2, 4))) is None
    assert repeat_blocks(np.arange(6), 0, ((2, 3), (3, 3))) is None
