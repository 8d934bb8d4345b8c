"""Programs on gloo processes compute what the whole model computes, forward and backward."""

from __future__ import annotations

from collections.abc import Iterator
from functools import reduce
from operator import add
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from planner.cost_models import load_profile
from planner.errors import PlannerError, UsageError
from planner.frontends import load_model
from planner.ir import Graph
from planner.planning import PlanDocument, Request, describe, make_plan
from planner.planning.constraints import parse_pin
from planner.pricing import Settings
from planner.verify.check import FORWARD_TOLERANCE, GRADIENT_TOLERANCE, relative_error
from planner.verify.data import random_tensors
from planner.verify.reference import gradients, run_ops

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.peer

from planner.runtime.session import Session  # noqa: E402  they import torch
from planner.runtime.workers import Context, WorkerError, Workers  # noqa: E402

SAMPLES = Path(__file__).parents[2] / "sample_graphs"
CASES = [
    ("mlp", ()),
    ("mlp", ("rest=data_parallel",)),
    ("mlp", ("rest=zero",)),
    ("mlp", ("type=MatMul k=2",)),
    ("mlp", ("type=MatMul n=2",)),
    ("gpt_tiny", ()),
    ("gpt_tiny", ("rest=data_parallel",)),
    ("gpt_tiny", ("type=Softmax d3=2",)),
    ("gpt_tiny", ("type=LayerNormalization d2=2",)),
    ("gpt_tiny", ("type=Gather v=2", "type=SoftmaxCrossEntropyLoss c=2")),
    ("gpt_tiny", ("*.c_attn.matmul n=2", "*.attn.c_proj.matmul k=2", "transformer.h.?.add* layout=[_,x,_]")),
    ("vit_tiny", ("rest=data_parallel",)),
    ("resnet18_tiny", ("rest=data_parallel",)),
    ("resnet18_tiny", ("layer*.conv1.conv o=2", "layer*.conv2.conv i=2")),
    ("resnet18_tiny", ("conv1.conv y0=2", "layer1.*.conv y0=2", "type=MaxPool y0=2")),
    ("llama_tiny", ()),
]


def plan(graph: Graph, pins: tuple[str, ...], devices: int, *, training: bool = True) -> PlanDocument:
    constraints = reduce(add, map(parse_pin, pins)) if pins else None
    settings = Settings(training=training, precision="fp32")
    request = Request(devices, load_profile("cpu"), settings, constraints=constraints, time_limit=30)
    return describe(make_plan(graph, request), bind={}, batch=None)


@pytest.fixture(scope="module")
def workers() -> Iterator[Workers]:
    with Workers(2) as started:
        yield started


@pytest.mark.parametrize(("model", "pins"), CASES, ids=lambda v: v if isinstance(v, str) else " ".join(v) or "searched")
def test_two_processes_compute_what_the_whole_model_computes(
    workers: Workers, model: str, pins: tuple[str, ...]
) -> None:
    path = SAMPLES / f"{model}.onnx"
    graph = load_model(path)
    values = random_tensors(graph, 0)
    whole = run_ops(graph, values)
    parameters = [p.name for p in graph.parameters]
    truth = gradients(graph, values, whole, parameters)
    session = Session(workers, path, plan(graph, pins, 2))
    found = session.results()
    assert not found.fallbacks
    for name in graph.outputs:
        assert relative_error(found.outputs[name], whole[name]) < FORWARD_TOLERANCE, name
    floor = 1e-3 * float(np.median([np.abs(g).max() for g in truth.values()]))
    assert set(found.gradients) == set(parameters)
    for name, gradient in truth.items():
        assert relative_error(found.gradients[name], gradient, floor) < GRADIENT_TOLERANCE, name
    session.close()


def test_operators_without_a_torch_function_run_with_numpy(workers: Workers, tmp_path: Path) -> None:
    """A running product: its kernel yields collectives, which the processes carry out."""
    from tests.runtime.test_shared_kernels import model

    path = tmp_path / "multiplied.onnx"
    onnx.save(model("CumProd", ((2,),), {}), path)
    graph = load_model(path)
    values = random_tensors(graph, 0)
    whole = run_ops(graph, values)
    session = Session(workers, path, plan(graph, ("type=CumProd d2=2",), 2))
    found = session.results()
    assert found.fallbacks == {"CumProd"}
    (loss,) = graph.outputs
    assert relative_error(found.outputs[loss], whole[loss]) < FORWARD_TOLERANCE
    truth = gradients(graph, values, whole, ["w"])["w"]
    assert relative_error(found.gradients["w"], truth) < GRADIENT_TOLERANCE
    session.close()


def test_every_instruction_and_every_step_is_timed(workers: Workers) -> None:
    path = SAMPLES / "mlp.onnx"
    graph = load_model(path)
    session = Session(workers, path, plan(graph, ("rest=data_parallel",), 2))
    assert all(t > 0 for t in session.step(3))
    assert len(session.instruction_seconds()) > len(graph.ops)


def test_a_plan_for_more_devices_is_refused(workers: Workers) -> None:
    path = SAMPLES / "mlp.onnx"
    with pytest.raises(UsageError, match="4 devices, and 2 processes"):
        Session(workers, path, plan(load_model(path), (), 4))


def _fail(context: Context) -> Any:
    if context.rank == 1:
        raise ValueError("on purpose")
    torch.distributed.barrier()  # would wait for ever


def test_a_rank_that_fails_ends_them_all() -> None:
    with Workers(2) as started, pytest.raises(WorkerError, match="rank 1 of 2 failed in _fail") as raised:
        started.call(_fail)
    assert "on purpose" in str(raised.value)
    assert isinstance(raised.value, PlannerError)
