"""Published configurations are no faster than what the search finds for their jobs, by the clock that predicts them.

Rows are those of `test_accuracy_sample`; `python -m tests.bench.experts` does the same with all (docs/experts.md).
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from planner.accuracy.predictor import Predictor
from planner.clock import Configuration
from planner.cost_models import usable_memory_bytes
from tests.bench.experts_jobs import Job, jobs_of, limit_of, published_of, sample_of, searched, space_of
from tests.bench.experts_reasons import Kinds, reason_of

ROWS = Path(__file__).parents[1] / "golden" / "accuracy_rows.json"
DATASETS = ("vtrain_single", "megatron_2020", "mindformers", "torchtitan")


@cache
def jobs() -> dict[str, list[Job]]:
    found: dict[str, list[Job]] = {}
    for job in jobs_of(ROWS):
        found.setdefault(job.dataset, []).append(job)
    return found


@pytest.mark.parametrize("dataset", DATASETS)
def test_the_search_is_never_slower_than_what_was_published(dataset: str) -> None:
    job = jobs()[dataset][0]
    predictor = Predictor()
    (case,) = (o.case for o in predictor.completed(job.cases, lambda _: None)[0])
    profile = predictor.profile(case)
    sample = sample_of([case], profile)
    (published,) = published_of([case], sample)
    assert published.prediction == predictor.prediction(case)
    limit = limit_of(usable_memory_bytes(profile), [published])
    assert limit is not None
    space = space_of([case.configuration], sample, job.framework)
    ours, fastest, _ = searched(sample, space, limit)
    assert ours.prediction.step_time_s <= published.step_s
    assert ours.prediction.step_time_s <= fastest[0].prediction.step_time_s
    assert round(ours.prediction.allocated_bytes) <= limit
    c = ours.configuration
    assert (c.devices, c.global_batch) == (case.configuration.devices, case.configuration.global_batch)
    for name in ("precision", "matrix_type", "attention", "loss", "gradient_bytes", "overlap_gradients", "fuse"):
        assert getattr(c, name) == getattr(case.configuration, name)


def test_rows_that_did_the_same_work_are_one_job() -> None:
    every = [job for found in jobs().values() for job in found]
    assert len({job.name for job in every}) == len(every)
    assert all(len({case.comparable for case in job.cases}) == 1 for job in every)
    assert all(case.complete for job in every for case in job.cases)


def test_what_rows_use_is_told_from_what_they_do_not() -> None:
    plain = Configuration(dp=2, tp=2, micro_batch=1)
    kinds = Kinds.of([plain, Configuration(pp=2, recompute="full", micro_batches=4)])
    assert kinds.beyond(plain.with_(dp=4, recompute="full")) == []
    assert kinds.beyond(plain.with_(zero=1, pp=2, schedule="zb-h1", recompute="full", recompute_blocks=0.5)) == [
        "ZB-H1", "ZeRO 1", "recomputation of a part of the blocks",
    ]  # fmt: skip


def test_a_reason_says_what_is_saved_and_what_it_takes() -> None:
    row = {
        "distance": 0.25, "published": "DP 8", "ours": "DP 4 x PP 2", "published_s": 10.0, "ours_s": 8.0,
        "alike_s": 9.0, "alike": "DP 8, ZeRO 1", "beyond": ["ZB-V"],
        "published_breakdown": {"compute": 7.0, "recompute": 3.0}, "ours_breakdown": {"compute": 7.0, "bubble": 1.0},
        "changed": {"PP": [1, 2], "TP": [1, 1]}, "over": 0,
        "usable_bytes": 40 << 30, "ours_bytes": 30 << 30, "published_bytes": 20 << 30, "configurations": 1,
    }  # fmt: skip
    assert reason_of(row) == (
        "Saved of the published step: recomputation 30 %. Added: pipeline bubble 10 %. No row of the framework uses "
        "ZB-V; without, 11.1 % is gained (DP 8, ZeRO 1). Memory of 40.0 GiB: 30.0 GiB, published 20.0."
    )
