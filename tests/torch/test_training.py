"""Modules trained under plans on four gloo processes are the modules trained alone."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.peer

from planner.runtime.workers import Workers  # noqa: E402  they import torch
from tests.torch.models import HUGGING_FACE, MORE, OWN  # noqa: E402
from tests.torch.training import KINDS, STAGES, Trained, alone, made, train, worst  # noqa: E402

STEPS = 3
MODELS = [*OWN, *(HUGGING_FACE if find_spec("transformers") else ())]


@pytest.fixture(scope="module")
def workers() -> Iterator[Workers]:
    with Workers(4) as found:
        yield found


@cache
def _alone(name: str, steps: int, optimizer: str) -> Trained:
    return alone(name, steps, optimizer)


def _compare(workers: Workers, name: str, options: dict[str, Any], **more: Any) -> Trained:
    found = workers.call(train, name, options, STEPS, *more.values())[0]
    truth = _alone(name, STEPS, more.get("optimizer", "adamw"))
    assert found.losses == pytest.approx(truth.losses, rel=1e-6)
    assert worst(found.gradients, {n: truth.gradients[n] for n in found.gradients}) < 1e-5
    assert list(found.state) == list(truth.state)
    buffers = [n for n in found.state if n not in found.gradients and "running" in n]
    for n in buffers:
        np.testing.assert_allclose(found.state[n], truth.state[n], rtol=1e-5, atol=1e-6)
    assert not found.fallbacks
    assert found.executed == found.planned
    return found


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", MODELS)
def test_a_plan_trains_as_one_process_does(workers: Workers, name: str, kind: str) -> None:
    found = _compare(workers, name, KINDS[kind])
    assert kind == "searched" or "4" in found.parallelism or "2" in found.parallelism


@pytest.mark.skipif(find_spec("transformers") is None, reason="models of Hugging Face")
@pytest.mark.parametrize("kind", ["zero3", "2-d"])
@pytest.mark.parametrize("name", MORE)
def test_models_with_tables_and_masks_of_their_own_train(workers: Workers, name: str, kind: str) -> None:
    _compare(workers, name, KINDS[kind])


@pytest.mark.parametrize("strategy", ["dp=2,cp=2", "dp=2,cp=2,context=all-to-all", "cp=2,tp=2,sp=0"])
@pytest.mark.parametrize("name", ["gpt", *(["hf_llama"] if find_spec("transformers") else ())])
def test_positions_divide_among_ranks(workers: Workers, name: str, strategy: str) -> None:
    found = _compare(workers, name, {"strategy": f"megatron:{strategy},micro_batch=4"})
    assert "CP" in found.parallelism


@pytest.mark.parametrize("kind", ["searched", "zero3", "tp+sp"])
def test_the_row_of_padding_gets_no_gradient(workers: Workers, kind: str) -> None:
    found = _compare(workers, "padded", KINDS[kind])
    assert not found.gradients["words.weight"][3].any()


@pytest.mark.parametrize(("kind", "part"), [("ddp", 1.0), ("zero1", 1.0), ("zero3", 0.25), ("tp", 0.35), ("2-d", 0.7)])
def test_frozen_weights_are_divided_as_trained_ones_are(workers: Workers, kind: str, part: float) -> None:
    found = _compare(workers, "adapted", KINDS[kind])
    whole = sum(p.numel() for p in made("adapted").module.parameters())
    assert (part - 0.1) * whole < found.held <= part * whole
    assert all(".a." in n or ".b." in n for n in found.gradients)


@pytest.mark.parametrize("schedule", STAGES)
def test_stages_hold_the_frozen_weights_of_their_own_layers(workers: Workers, schedule: str) -> None:
    found = workers.call(train, "adapted", STAGES[schedule], STEPS)
    truth = _alone("adapted", STEPS, "adamw")
    whole = sum(p.numel() for p in made("adapted").module.parameters())
    for rank in found:
        assert rank.losses == pytest.approx(truth.losses, rel=1e-6)
        assert rank.held < 0.4 * whole
    gradients = {n: g for rank in found for n, g in rank.gradients.items()}
    assert worst(gradients, truth.gradients) < 1e-5
    assert gradients.keys() == truth.gradients.keys()


@pytest.mark.parametrize("schedule", STAGES)
def test_stages_of_a_pipeline_train_as_one_process_does(workers: Workers, schedule: str) -> None:
    found = workers.call(train, "gpt", STAGES[schedule], STEPS)
    truth = _alone("gpt", STEPS, "adamw")
    for rank in found:
        assert rank.losses == pytest.approx(truth.losses, rel=1e-6)
        assert list(rank.state) == list(truth.state)
    gradients = {n: g for rank in found for n, g in rank.gradients.items()}
    assert worst(gradients, truth.gradients) < 1e-5
    assert gradients.keys() == truth.gradients.keys()


@pytest.mark.parametrize("kind", ["ddp", "zero3", "2-d"])
@pytest.mark.parametrize("name", ["gpt", "resnet", "adapted"])
def test_a_traced_step_gives_the_bits_of_an_interpreted_one(workers: Workers, name: str, kind: str) -> None:
    eager = workers.call(train, name, KINDS[kind], STEPS, "eager")[0]
    traced = workers.call(train, name, KINDS[kind], STEPS, "traced")[0]
    assert traced.losses == eager.losses
    for n, v in eager.state.items():
        np.testing.assert_array_equal(traced.state[n], v)
