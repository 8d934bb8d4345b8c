"""The longest path through a pipeline: compiled and in Python to the last bit, and what the path takes is the step."""

from __future__ import annotations

import numpy as np
import pytest

import planner.clock  # puts the compiled kernels in use
from planner.cost_models.pipeline import ChunkTimes, longest, longest_path, pipeline_seconds, simulate
from planner.native import pipeline
from planner.native.library import library


def chunks(rng: np.random.Generator, devices: int, virtual: int) -> list[list[ChunkTimes]]:
    def one() -> ChunkTimes:
        forward, values, weights = rng.random(3).tolist()
        return ChunkTimes(forward, values + weights, values, weights)

    return [[one() for _ in range(virtual)] for _ in range(devices)]


CASES = [("1f1b", 1), ("gpipe", 1), ("interleaved", 2), ("zb-h1", 1), ("zb-v", 2)]


@pytest.mark.parametrize(("schedule", "virtual"), CASES)
@pytest.mark.parametrize("seed", range(5))
def test_the_library_and_python_agree(schedule: str, virtual: int, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    assert library() is not None, "the kernels are compiled where tests run"
    assert longest.KERNELS.ends_of is pipeline.ends_of, f"{planner.clock.__name__} uses them"
    rng = np.random.default_rng(seed)
    devices, micro_batches = int(rng.integers(2, 6)), 2 * int(rng.integers(3, 8))
    times = chunks(rng, devices, virtual)
    transfers = rng.random(devices * virtual - 1).tolist()
    compiled = longest_path(schedule, times, micro_batches, transfers)
    run = simulate(schedule, times, micro_batches, transfers)
    assert run.total_s == compiled[0] == pipeline_seconds(schedule, times, micro_batches, transfers).total_s
    monkeypatch.setattr(pipeline, "library", lambda: None)
    plain = longest_path(schedule, times, micro_batches, transfers)
    assert plain[0] == compiled[0]
    assert (plain[1] == compiled[1]).all()
    assert (plain[2] == compiled[2]).all()
    again = simulate(schedule, times, micro_batches, transfers)
    assert (again.timeline.end_s == run.timeline.end_s).all()


@pytest.mark.parametrize(("schedule", "virtual"), CASES)
def test_the_passes_of_the_path_take_as_long_as_the_step(schedule: str, virtual: int) -> None:
    rng = np.random.default_rng(7)
    times = chunks(rng, 4, virtual)
    transfers = rng.random(4 * virtual - 1)
    seconds, passes, crossed = longest_path(schedule, times, 8, transfers.tolist())
    split = passes.shape[1] == 3
    each = [
        [(c.forward_s, *((c.backward_input_s, c.backward_weight_s) if split else (c.backward_s,))) for c in row]
        for row in times
    ]
    taken = float((passes.transpose(0, 2, 1) * np.array(each)).sum() + crossed @ transfers)
    assert taken == pytest.approx(seconds)
