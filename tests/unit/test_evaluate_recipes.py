"""What frameworks do beside the layout: narrow products, casts, offloading, and how cross-entropy is computed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from planner.clock.configuration import LOSSES
from planner.clock.links import Links
from planner.clock.passes import LOSS_BYTES, Passes
from planner.clock.stages import chunks
from planner.cost_models import HardwareProfile, load_profile
from planner.cost_models.kernels import CAST_BYTES, NARROW_BYTES
from planner.errors import UsageError
from planner.evaluate import Configuration, Prediction, predict
from tests.unit.evaluate_graphs import gpt, small, traced

H100 = load_profile("h100")


def predicted(profile: HardwareProfile = H100, layers: int = 4, **c: Any) -> Prediction:
    return predict(traced(gpt(layers), **c), Configuration(**c), profile)


def memory_rate(profile: HardwareProfile) -> float:
    assert profile.device is not None
    return profile.device.memory_bandwidth_bytes_per_s * profile.device.memory_efficiency


def test_a_loss_in_more_kernels_takes_the_traffic_it_adds() -> None:
    w = traced(gpt(4))
    scores = sum(u.score_bytes for u in w.units) / 2
    assert scores > 0
    least = predicted().step_time_s
    assert set(LOSS_BYTES) == set(LOSSES)
    for loss, extra in LOSS_BYTES.items():
        added = predicted(loss=loss).step_time_s - least
        assert added == pytest.approx(extra * scores / memory_rate(H100), abs=1e-12)


def test_narrow_types_are_for_the_products_of_blocks_alone() -> None:
    w = traced(gpt(4))
    wide, narrow = (
        Passes(w, c, H100, Links(w.mesh, c.pp, H100)).units for c in (Configuration(), Configuration(matrix_type="fp8"))
    )
    for repeated, a, b in zip(w.repeated, wide, narrow, strict=True):
        assert (a.forward == b.forward) is not repeated


def test_ranks_that_cast_first_gather_less_and_cast_less() -> None:
    for matrix, width in NARROW_BYTES.items():
        if matrix in ("mxfp8", "fp4"):
            continue
        c: dict[str, Any] = {"tp": 4, "sequence_parallel": True, "matrix_type": matrix}
        after, before = predicted(**c), predicted(**c, cast_gathers=True)
        assert before.breakdown["tensor_collectives"] < after.breakdown["tensor_collectives"]
        assert before.breakdown["compute"] < after.breakdown["compute"]
        assert CAST_BYTES[matrix] > 2 * width


def test_casting_first_changes_nothing_where_nothing_is_cast() -> None:
    c: dict[str, Any] = {"tp": 4, "sequence_parallel": True}
    assert predicted(**c, cast_gathers=True) == predicted(**c)


def test_weights_in_single_precision_are_cast_in_both_passes() -> None:
    w = traced(small())
    half, single = (predict(w, Configuration(parameter_bytes=b), H100) for b in (2, 4))
    cast = 2 * 6 * w.parameters / memory_rate(H100)
    found = single.breakdown["compute"] - half.breakdown["compute"]
    assert found == pytest.approx(cast)


def test_ranks_gather_what_weights_are_held_in() -> None:
    w = traced(gpt(4), dp=8, zero=1)
    half, single = (predicted(dp=8, zero=1, parameter_bytes=b).breakdown["exchange"] for b in (2, 4))
    ranks = Links(w.mesh, 1, H100)
    gathered = (sum(ranks.seconds("all_gather", ("x",), b * u.weights) for u in w.units) for b in (2, 4))
    assert single - half == pytest.approx(-np.subtract(*gathered))


@pytest.mark.parametrize("pp", [1, 2])
def test_offloading_trades_memory_for_time_on_a_slow_link_alone(pp: int) -> None:
    assert H100.device is not None
    c: dict[str, Any] = {"pp": pp, "micro_batches": 4}
    kept = predicted(**c)
    for rate, slower in ((1e15, False), (1e8, True)):
        machine = replace(H100, host=replace(H100.host, link_bytes_per_s=rate))
        away = predicted(machine, offload=1.0, **c)
        assert away.memory["activations"] < kept.memory["activations"]
        assert (away.step_time_s > 1.5 * kept.step_time_s) is slower
        if not slower:
            assert away.step_time_s == pytest.approx(kept.step_time_s)
        assert ("offload" in away.breakdown) is slower
        if slower:  # which is a cause of its own, and neither the bubble nor anything that is computed
            assert away.breakdown["compute"] == kept.breakdown["compute"]
            assert away.breakdown["offload"] > 0.9 * (away.step_time_s - away.breakdown["bubble"] - kept.step_time_s)
            assert sum(away.breakdown.values()) == pytest.approx(away.step_time_s)
            if pp == 1:
                assert away.breakdown["bubble"] == pytest.approx(0, abs=1e-12)
                assert away.breakdown["offload"] == pytest.approx(away.step_time_s - kept.step_time_s)


def test_offloading_needs_to_know_the_way_to_the_host() -> None:
    with pytest.raises(UsageError, match=r"offload=0.5: ascend-910b does not say .*host.link_bytes_per_s"):
        predicted(load_profile("ascend-910b"), offload=0.5)


def test_stages_hold_the_layers_they_are_given() -> None:
    w = traced(gpt(8))
    found = chunks(w, 4, (1, 3, 3, 1))
    assert [sum(w.repeated[i] for i in part) for part in found] == [1, 3, 3, 1]
    assert [i for part in found for i in part] == list(range(len(w.units)))
    even, uneven = (predicted(layers=8, pp=4, micro_batches=16, stage_layers=s) for s in (None, (1, 5, 1, 1)))
    assert uneven.step_time_s > 1.3 * even.step_time_s
    assert predicted(layers=8, pp=4, micro_batches=16, stage_layers=(2, 2, 2, 2)) == even


@pytest.mark.parametrize(
    ("c", "message"),
    [
        ({"stage_layers": (4, 4)}, "stage_layers=4-4: expected 4 counts"),
        ({"stage_layers": (8, 0, 0, 0)}, "expected 4 counts of at least 1"),
        ({"stage_layers": (2, 2, 2, 3)}, "expected 8 layers in all, the model's, found 9"),
    ],
)
def test_stages_must_hold_all_layers(c: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        predicted(layers=8, pp=4, micro_batches=4, **c)


@pytest.mark.parametrize("name", ["offload", "recompute_blocks"])
@pytest.mark.parametrize("value", [-0.1, 1.1, float("nan")])
def test_fractions_are_fractions(name: str, value: float) -> None:
    with pytest.raises(UsageError, match=f"{name}: expected a fraction"):
        Configuration(**{name: value})  # type: ignore[arg-type]  # the point
