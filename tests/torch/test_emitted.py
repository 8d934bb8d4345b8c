"""`emit --target torch`: plans for ONNX exports, attached to the modules that were exported, on four gloo processes."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.peer

from torch import nn  # noqa: E402

import planner  # noqa: E402
import planner.torch  # noqa: E402
from planner.cli.main import main  # noqa: E402
from planner.errors import InputError  # noqa: E402
from planner.runtime.planned import planned_traffic  # noqa: E402
from planner.runtime.workers import Context, Workers  # noqa: E402
from planner.torch.capture.returned import loss_of  # noqa: E402
from tests.torch.exports import KEPT, WithLoss, exported, kept  # noqa: E402
from tests.torch.models import Case  # noqa: E402
from tests.torch.training import Trained, alone, made, optimizer_of, whole, worst  # noqa: E402

ROOT = Path(__file__).parents[2]
STEPS = 3
PLANS: dict[str, tuple[str, tuple[str, ...]]] = {
    "mlp, ZeRO 3": ("mlp", ("--strategy", "fsdp")),
    "mlp, searched operators": ("mlp", ("--pin", "mesh=2x2", "--space", "operators", "--pin", "rest=zero")),
    "scaled, a buffer and frozen weights": ("scaled", ("--strategy", "fsdp")),
    "normed, DP 4 with norms that were stored once": ("normed", ("--strategy", "ddp")),
    "mlp, two stages": ("mlp", ("--stages", "2", "--micro-batches", "2")),
    "gpt, TP 4 with sequence parallelism": ("gpt", ("--strategy", "megatron:tp=4,micro_batch=8")),
    "gpt, DP 2 x TP 2": ("gpt", ("--strategy", "megatron:tp=2,micro_batch=4")),
    "gpt, two stages of TP 2, recomputed": ("gpt", ("--strategy", "megatron:tp=2,pp=2,micro_batch=2,recompute=full")),
    "gpt, two stages by a zero-bubble schedule": ("gpt", ("--strategy", "megatron:pp=2,micro_batch=1,schedule=zb-h1")),
}
SEARCH = ("--hardware", "a100-80", "--precision", "fp32", "--no-cache", "--target", "torch")


@pytest.fixture(scope="module")
def workers() -> Iterator[Workers]:
    with Workers(4) as found:
        yield found


def emitted(path: Path) -> Any:
    """The module `parallel.py` of a folder."""
    spec = importlib.util.spec_from_file_location("emitted_parallel", path / "parallel.py")
    assert spec is not None
    assert spec.loader is not None
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


def train(context: Context, name: str, folder: str, mode: str, wrapped: bool) -> Trained:
    """On every rank: the user's own loop over the emitted module."""
    torch.set_num_threads(1)
    case = made(name)
    module = emitted(Path(folder)).parallelize(WithLoss(case) if wrapped else case.module, mode=mode)
    runner, trained, stepping, prefix = module._planner, Trained(), optimizer_of(module), "model." * wrapped
    for step in range(STEPS):
        runner.context.ledger.clear()
        if wrapped:  # by the names of the graph's inputs, in whatever order
            loss = module(y=case.targets[0], x=case.inputs[0])
        else:
            loss = loss_of(module(*case.inputs, *case.targets, **case.kwargs))
        stepping.zero_grad()
        loss.backward()
        trained.losses.append(loss.item())
        if not step:
            trained.executed, trained.planned = dict(runner.context.ledger.steps), planned_traffic(runner.stage)
            of_model = {n.removeprefix(prefix): p.grad for n, p in module.named_parameters() if p.grad is not None}
            trained.gradients = {n: whole(g).numpy() for n, g in of_model.items()}
        stepping.step()
    state = planner.torch.whole_state_dict(module)
    trained.state = {n.removeprefix(prefix): v.numpy() for n, v in state.items()}
    trained.fallbacks = frozenset(runner.stage.fallbacks)
    return trained


def compare(found: list[Trained], name: str) -> None:
    truth = alone(name, STEPS)
    for n in truth.state.keys() - truth.gradients.keys():  # buffers, frozen weights, second names of tied ones
        for rank in found:
            np.testing.assert_allclose(rank.state[n], truth.state[n], rtol=1e-4, atol=1e-5)
    gradients = {n: g for rank in found for n, g in rank.gradients.items()}
    for rank in found:
        assert rank.losses == pytest.approx(truth.losses, rel=1e-6)
        assert rank.executed == rank.planned
        assert not rank.fallbacks
    assert gradients.keys() == truth.gradients.keys()
    assert gradients
    assert worst(gradients, truth.gradients) < 1e-5


@pytest.mark.parametrize("kind", PLANS)
def test_an_emitted_module_trains_as_the_plain_one(workers: Workers, kind: str, tmp_path: Path) -> None:
    name, options = PLANS[kind]
    arguments = ["search", str(kept(name)), "--devices", "4", *SEARCH, *options, "--out", str(tmp_path)]
    assert main([*arguments, "--emit", "torch"]) == 0
    compare(workers.call(train, name, str(tmp_path / "torch"), "eager", False), name)


def test_a_wrapper_is_called_by_names_and_a_step_is_traced(workers: Workers, tmp_path: Path) -> None:
    plan = searched(kept("gpt"), devices=4, strategy="fsdp")
    plan.emit("torch", tmp_path)
    compare(workers.call(train, "gpt", str(tmp_path), "traced", True), "gpt")


@pytest.mark.parametrize("name", ["hf_gpt2", "hf_llama"])
def test_a_model_that_returns_its_loss_among_others_keeps_doing_so(workers: Workers, name: str, tmp_path: Path) -> None:
    pytest.importorskip("onnxscript")
    pytest.importorskip("transformers")
    plan = searched(exported(made(name), tmp_path / f"{name}.onnx"), devices=4, strategy="megatron:tp=2,micro_batch=4")
    plan.emit("torch", tmp_path)
    assert "loss = module(input_ids, labels).loss" in (tmp_path / "parallel.py").read_text(encoding="utf-8")
    compare(workers.call(train, name, str(tmp_path), "eager", False), name)


def test_a_plan_of_a_captured_module_is_emitted_as_well(workers: Workers, tmp_path: Path) -> None:
    case = made("nanogpt")
    plan = planner.torch.plan(
        case.module, case.inputs, targets=case.targets, loss=case.loss, devices=4, cache=False, strategy="fsdp"
    )
    plan.plan.emit("torch", tmp_path)
    compare(workers.call(train, "nanogpt", str(tmp_path), "eager", False), "nanogpt")


def test_the_emitted_module_tries_itself(tmp_path: Path) -> None:
    searched(kept("mlp")).emit("torch", tmp_path)
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", str(tmp_path / "parallel.py")]
    command.append("tests.torch.exports:perceptron")
    path = {**os.environ, "PYTHONPATH": str(ROOT)}
    found = subprocess.run(command, env=path, capture_output=True, text=True, timeout=300, check=False)
    assert found.returncode == 0, found.stderr[-2000:]
    losses = [float(line.split()[-1]) for line in found.stdout.splitlines() if line.startswith("step ")]
    assert len(losses) == STEPS
    assert losses[-1] < losses[0]


@pytest.mark.parametrize("name", KEPT)
def test_an_export_is_planned_as_the_kept_one(name: str, tmp_path: Path) -> None:
    pytest.importorskip("onnxscript")
    fresh = planner.load(exported(made(name), tmp_path / f"{name}.onnx", optimize=KEPT[name]))
    assert fresh.digest == planner.load(kept(name)).digest


def test_an_export_that_folds_weights_is_refused_by_name(tmp_path: Path) -> None:
    pytest.importorskip("onnxscript")
    plan = searched(exported(made("gpt"), tmp_path / "gpt.onnx", optimize=True))
    with pytest.raises(InputError, match=r"trains 'embedding_1' of shape \[16, 32\].*optimize=False"):
        planner.torch.load_exported(plan.save(tmp_path / "plan"), made("gpt").module)


# What does not fit


def searched(model: Path | onnx.ModelProto, devices: int = 2, **options: Any) -> planner.Plan:
    given: dict[str, Any] = {"hardware": "cpu", "precision": "fp32", "cache": False, "target": "torch", **options}
    return planner.search(planner.load(model), devices=devices, **given)


def edited(change: Callable[[onnx.ModelProto], None]) -> onnx.ModelProto:
    model = onnx.load(kept("mlp"), load_external_data=False)
    change(model)
    return model


def renamed(model: onnx.ModelProto, old: str, new: str) -> None:
    for t in model.graph.initializer:
        t.name = new if t.name == old else t.name
    for node in model.graph.node:
        node.input[:] = [new if i == old else i for i in node.input]


@pytest.fixture(scope="module")
def mlp(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A plan of the perceptron on two devices, with its model beside it."""
    return searched(kept("mlp")).save(tmp_path_factory.mktemp("mlp"))


def refused(plan: Path, module: nn.Module, words: str) -> None:
    with pytest.raises(InputError, match=words):
        planner.torch.load_exported(plan, module)


def changed(change: Callable[[Case], object]) -> nn.Module:
    case = made("mlp")
    change(case)
    return case.module


def test_a_renamed_weight_is_named_with_what_to_do(tmp_path: Path) -> None:
    model = edited(lambda m: renamed(m, "model.layers.2.weight", "val_7"))
    plan = searched(model).save(tmp_path)
    refused(
        plan, made("mlp").module, r"trains 'val_7' of shape \[64, 64\] \(read by .*optimize=False.*planner.torch.plan"
    )


def test_parameters_of_equal_shapes_are_not_taken_by_their_order(tmp_path: Path) -> None:
    def swap(model: onnx.ModelProto) -> None:
        stored = {t.name: t for t in model.graph.initializer}
        first, second = stored["model.layers.0.bias"], stored["model.layers.2.bias"]
        first.name, second.name = second.name, first.name

    plan = searched(edited(swap)).save(tmp_path)
    found = planner.torch.load_exported(plan, made("mlp").module).capture
    assert all(name == f"model.{path}" for name, path in found.paths(None).items())  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            lambda c: setattr(c.module.layers, "4", nn.Linear(64, 10)),
            r"parameter layers.4.weight has shape \[10, 64\], and 'model.layers.4.weight' of the model that was "
            r"planned \[8, 64\]; give the module",
        ),
        (
            lambda c: setattr(c.module, "extra", nn.Linear(2, 2)),
            r"trains extra.weight \[2, 2\], and the model that was planned has no parameter",
        ),
        (
            lambda c: setattr(c.module.layers[2], "bias", c.module.layers[0].bias),
            "'model.layers.0.bias' and 'model.layers.2.bias' are two parameters of the model that was planned and one",
        ),
        (lambda c: c.module.layers.insert(5, nn.Dropout(0.1)), "layers.5 drops out with p=0.1"),
        (lambda c: c.module.layers.insert(5, nn.BatchNorm1d(8, affine=False)), "layers.5 keeps running statistics"),
    ],
    ids=["another shape", "one more", "a tie", "dropout", "running statistics"],
)
def test_another_module_is_refused(change: Callable[[Case], object], words: str, mlp: Path) -> None:
    refused(mlp, changed(change), words)


def test_what_is_frozen_need_not_be_in_the_graph_and_is_not_updated(mlp: Path) -> None:
    def extend(case: Case) -> None:
        case.module.extra = nn.Linear(2, 2).requires_grad_(False)  # type: ignore[assignment]
        case.module.get_parameter("layers.0.bias").requires_grad_(False)

    found = planner.torch.load_exported(mlp, changed(extend)).capture
    assert "layers.0.bias" not in found.parameters
    assert "layers.0.bias" in found.paths(None).values()  # type: ignore[arg-type]


def test_ties_have_one_name_in_the_plan_and_all_in_the_module(tmp_path: Path) -> None:
    found = planner.torch.load_exported(searched(kept("gpt")).save(tmp_path), made("gpt").module).capture
    assert dict(found.aliases) == {"wte.weight": "lm_head.weight"}


def test_a_buffer_that_was_planned_with_other_values_is_refused(tmp_path: Path) -> None:
    module = made("gpt").module
    plan = searched(kept("gpt")).save(tmp_path)
    module.get_buffer("h.1.attn.mask").fill_(value=True)
    refused(plan, module, "h.1.attn.mask has other values than when it was exported")


def test_numbers_that_no_module_has_come_with_the_model_or_are_asked_for(tmp_path: Path) -> None:
    def replace_some(model: onnx.ModelProto) -> None:
        table = np.arange(8 * 64, dtype=np.float32).reshape(8, 64)
        model.graph.initializer.append(numpy_helper.from_array(table, "table"))
        model.graph.initializer.append(numpy_helper.from_array(table > 100, "where"))
        first = model.graph.node[0]
        node = helper.make_node("Where", ["where", first.output[0], "table"], ["chosen"], name="chosen")
        model.graph.node[1].input[0] = "chosen"
        model.graph.node.insert(1, node)

    plan, module = searched(edited(replace_some)), made("mlp").module
    refused(plan.save(tmp_path / "plan"), module, r"no buffer 'table' of shape \[8, 64\].*model=…")
    plan.emit("torch", tmp_path / "torch")
    found = planner.torch.load_exported(tmp_path / "torch", module).capture
    assert found.constants["table"][1, 2] == 66


def test_a_graph_without_a_loss_is_refused(tmp_path: Path) -> None:
    def no_loss(model: onnx.ModelProto) -> None:
        node = model.graph.node[-1]
        assert node.op_type == "SoftmaxCrossEntropyLoss"
        logits = node.input[0]
        del model.graph.node[-1]
        del model.graph.input[1]
        model.graph.output[0].name = logits
        model.graph.output[0].type.tensor_type.shape.CopyFrom(model.graph.input[0].type.tensor_type.shape)
        model.graph.output[0].type.tensor_type.shape.dim[1].dim_value = 8

    for mode in ("training", "inference"):
        plan = searched(edited(no_loss), mode=mode)
        refused(plan.save(tmp_path / mode), made("mlp").module, r"no loss.*planner.torch.plan\(…, loss=…\)")
        with pytest.raises(InputError, match="writes a training step" if mode == "inference" else "ends in no loss"):
            plan.emit("torch")


def test_a_plan_for_another_model_is_refused(mlp: Path) -> None:
    with pytest.raises(InputError, match="it is for another model than gpt"):
        planner.torch.load_exported(mlp, made("mlp").module, model=kept("gpt"))


def test_a_call_with_other_inputs_is_refused(mlp: Path) -> None:
    step = planner.torch.load_exported(mlp, made("mlp").module).capture
    x, y = torch.zeros(8, 16), torch.zeros(8, dtype=torch.int64)
    assert [t.dtype for t in step.fed((x,), {"y": y})] == [torch.float32, torch.int64]
    assert step.fed((y,), {"x": x})[0] is x
    with pytest.raises(InputError, match=r"reads 2 tensors \(x, y\), and is called with 1"):
        step.fed((x,), {})
    with pytest.raises(InputError, match="has no input 'labels'; it reads x, y"):
        step.fed((x,), {"labels": y})
