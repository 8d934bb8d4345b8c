"""Random numbers are a function of the place in the whole tensor, and distributed as they should be."""

from __future__ import annotations

import dataclasses

import numpy as np

from planner.ir import Op
from planner.kernels import run_local
from planner.kernels.draws import dropout_mask, global_index, normal, uniform

OP = Op("y", "RandomUniform", (), ("y",), {"shape": (64, 96)}, 22)


def test_a_shard_draws_what_the_whole_has_at_its_place() -> None:
    whole = uniform(OP, global_index((64, 96), (0, 0), (64, 96)))
    part = uniform(OP, global_index((16, 24), (32, 48), (64, 96)))
    assert np.array_equal(part, whole[32:48, 48:72])


def test_operators_seeds_and_streams_are_independent() -> None:
    index = global_index((4096,), (0,), (4096,))
    draws = [
        uniform(OP, index),
        uniform(OP, index, 1),
        uniform(dataclasses.replace(OP, name="z"), index),
        uniform(dataclasses.replace(OP, attributes={"seed": 1.0}), index),
    ]
    correlations = np.corrcoef(np.stack(draws)) - np.eye(4)
    assert np.abs(correlations).max() < 0.06


def test_uniform_and_normal_have_their_moments() -> None:
    index = global_index((200, 500), (0, 0), (200, 500))
    u, z = uniform(OP, index), normal(OP, index)
    assert u.min() >= 0
    assert u.max() < 1
    assert abs(u.mean() - 0.5) < 0.005
    assert np.abs(np.histogram(u, 20, (0, 1))[0] / u.size - 0.05).max() < 0.003
    assert abs(z.mean()) < 0.01
    assert abs(z.std() - 1) < 0.01
    assert np.isfinite(z).all()
    lag = np.corrcoef(u.reshape(-1)[:-1], u.reshape(-1)[1:])[0, 1]
    assert abs(lag) < 0.01


def test_dropout_keeps_its_share_and_the_mean() -> None:
    index = global_index((400, 500), (0, 0), (400, 500))
    assert abs(dropout_mask(OP, 0.3, index).mean() - 0.7) < 0.005
    x = np.ones((400, 500), np.float32)
    op = Op("y", "Dropout", ("x", "r", "t"), ("y", "m"), {}, 22)
    y, mask = run_local(op, [x, np.float32(0.3), np.array(True)])
    assert y is not None
    assert mask is not None
    assert np.array_equal(y != 0, mask)
    assert abs(y.mean() - 1) < 0.01


def test_multinomial_follows_the_probabilities() -> None:
    p = np.array([0.1, 0.2, 0.3, 0.4])
    op = Op("y", "Multinomial", ("x",), ("y",), {"sample_size": 20000}, 22)
    (drawn,) = run_local(op, [np.log(p)[None].astype(np.float32) + 7])
    assert drawn is not None
    assert np.abs(np.bincount(drawn[0], minlength=4) / 20000 - p).max() < 0.015
