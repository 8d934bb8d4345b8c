"""`planner export`: files without weights that compute what the modules compute, by ONNX Runtime."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import onnx.reference
import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.peer

from onnx import numpy_helper  # noqa: E402
from torch import Tensor, nn  # noqa: E402

import planner  # noqa: E402
import planner.torch  # noqa: E402
from planner.cli.main import main  # noqa: E402
from planner.errors import InputError  # noqa: E402
from planner.frontends import import_bytes  # noqa: E402
from planner.torch.capture import capture  # noqa: E402
from planner.torch.capture.unallocated import without_weights  # noqa: E402
from tests.torch import exported_source  # noqa: E402
from tests.torch.models import CASES, next_word  # noqa: E402
from tests.torch.training import made  # noqa: E402

SOURCE = Path(exported_source.__file__)
needs_onnxscript = pytest.mark.skipif(find_spec("onnxscript") is None, reason="torch.onnx.export needs onnxscript")


def export(out: Path, *arguments: Any) -> onnx.ModelProto:
    """The file that the command writes."""
    assert main(["export", *map(str, arguments), "--out", str(out)]) == 0
    return onnx.load(out, load_external_data=False)


def refused(capsys: pytest.CaptureFixture[str], status: int, *arguments: Any) -> str:
    assert main(["export", *map(str, arguments)]) == status
    return capsys.readouterr().err


def filled(model: onnx.ModelProto, module: nn.Module) -> onnx.ModelProto:
    """The same graph with the module's weights."""
    held = module.state_dict()
    for t in model.graph.initializer:
        if t.data_location == onnx.TensorProto.EXTERNAL:
            t.CopyFrom(numpy_helper.from_array(held[t.name].numpy(), t.name))
    return model


def results(model: onnx.ModelProto, fed: dict[str, Tensor]) -> list[np.ndarray[Any, Any]]:
    from onnxruntime import InferenceSession

    session = InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return list(session.run(None, {n: v.numpy() for n, v in fed.items()}))


def weights(model: onnx.ModelProto) -> set[str]:
    return {t.name for t in model.graph.initializer if t.data_location == onnx.TensorProto.EXTERNAL}


EXPORTERS = ["planner", pytest.param("onnx", marks=needs_onnxscript)]


@pytest.mark.parametrize("exporter", EXPORTERS)
def test_a_file_computes_what_the_module_computes(exporter: str, tmp_path: Path) -> None:
    model = export(
        tmp_path / "gpt.onnx", f"{SOURCE}:gpt", "--inputs", "idx:int64[8,16]", "--loss", "cross_entropy",
        "--targets", "int64[8,16]", "--exporter", exporter,
    )  # fmt: skip
    case = made("gpt")
    module = case.module
    names = weights(model)
    assert names == {n for n, _ in module.named_parameters()}
    assert (tmp_path / "gpt.onnx").stat().st_size < 200_000
    (idx,), (target,) = case.inputs, case.targets
    (loss,) = results(filled(model, module), {"idx": idx, "target": target})
    assert float(loss) == pytest.approx(next_word(module(idx), target).item(), rel=1e-6)
    graph = planner.load(str(tmp_path / "gpt.onnx")).graph
    assert graph.loss == graph.outputs[0]
    assert {t.name for t in graph.parameters} == names
    assert any(op.module == "h.1.attn" for op in graph.ops)


def test_norms_and_dropout_follow_the_mode(tmp_path: Path) -> None:
    arguments = (f"{SOURCE}:resnet", "--inputs", "x:float32[8,3,32,32]")
    serving = export(tmp_path / "serving.onnx", *arguments)
    trained = export(tmp_path / "trained.onnx", *arguments, "--loss", "sum")
    modes = [
        {
            a.i
            for n in m.graph.node
            if n.op_type == "BatchNormalization"
            for a in n.attribute
            if a.name == "training_mode"
        }
        for m in (serving, trained)
    ]
    assert modes[0] <= {0}
    assert modes[1] == {1}
    case = made("resnet")
    case.module.eval()
    (x,) = case.inputs
    (found,) = results(filled(serving, case.module), {"x": x})
    np.testing.assert_allclose(found, case.module(x).detach().numpy(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("scores", [False, True])
def test_a_module_that_returns_its_loss_is_in_training_mode(scores: bool, tmp_path: Path) -> None:
    arguments = (f"{SOURCE}:OwnLoss", "--inputs", "float32[4,8] int64[4]", "--arg", f"scores={scores}")
    model = export(tmp_path / "m.onnx", *arguments)
    assert any(p.key == "planner.loss" for p in model.metadata_props)
    assert "Dropout" in {n.op_type for n in model.graph.node}
    served = export(tmp_path / "m.onnx", *arguments, "--mode", "inference")
    assert "Dropout" not in {n.op_type for n in served.graph.node}


def test_weights_take_no_memory(tmp_path: Path) -> None:
    model = export(tmp_path / "huge.onnx", f"{SOURCE}:huge", "--arg", "width=1000000", "--inputs", "float32[8,1000000]")
    assert weights(model) == {"0.weight", "0.bias", "1.weight", "1.bias"}
    assert (tmp_path / "huge.onnx").stat().st_size < 10_000


def test_code_that_reads_a_weight_has_one(tmp_path: Path) -> None:
    assert weights(export(tmp_path / "m.onnx", f"{SOURCE}:Reading", "--inputs", "x:float32[8,4]")) == {
        "inner.weight", "inner.bias"
    }  # fmt: skip


def test_a_module_of_the_current_folder_and_a_loss_of_ones_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_model_of_test.py").write_text(
        "from torch import nn\n\n\n"
        "def build(layers=1):\n    return nn.Sequential(*(nn.Linear(4, 4) for _ in range(layers)))\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    given = ("my_model_of_test:build", "--arg", "layers=3", "--inputs", "float32[8,4]", "--loss", f"{SOURCE}:Loss")
    model = export(tmp_path / "m.onnx", *given, "--targets", "float32[8,4]")
    assert len(weights(model)) == 6
    assert [i.name for i in model.graph.input] == ["input", "target"]


def test_code_that_changes_the_folder_and_the_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "inner").mkdir()
    given = (f"{SOURCE}:elsewhere", "--arg", "folder=inner", "--inputs", "float32[8,4]", "--loss", "mean")
    try:
        assert main(["export", *given, "--out", "m.onnx"]) == 0
    finally:
        torch.set_default_device(None)
    assert (tmp_path / "m.onnx").is_file()


@needs_onnxscript
@pytest.mark.parametrize(
    ("asked", "inputs", "found"),
    [(17, ["input"], "--opset 17: torch.onnx.export cannot write Linear in it"), (18, ["input", "weight"], "2 inputs")],
)
def test_what_torchs_exporter_gave_up_is_refused(
    asked: int, inputs: list[str], found: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from planner.torch.export import onnx_exporter

    fed = [onnx.helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, [8, 4]) for n in inputs]
    graph = onnx.helper.make_graph([], "g", fed, fed[:1])
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 18)])
    monkeypatch.setattr(torch.onnx, "export", lambda *_, **__: SimpleNamespace(model=None))
    monkeypatch.setattr(onnx_exporter, "_without_data", lambda _: model)
    with pytest.raises(InputError, match=found):
        onnx_exporter.exported_by_torch(nn.Linear(4, 4), [torch.empty(8, 4)], {}, (), None, opset=asked)


@needs_onnxscript
def test_torchs_exporter_takes_over_where_an_operator_has_no_translation(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = (f"{SOURCE}:strange", "--inputs", "x:int32[8,4]")
    assert refused(capsys, 3, *given, "--exporter", "planner", "--out", tmp_path / "m.onnx").count("bitwise_left_shift")
    model = export(tmp_path / "m.onnx", *given)
    assert "written by torch.onnx.export, as the planner's own has no translation of aten.bitwise_left_shift" in (
        capsys.readouterr().err
    )
    assert "BitShift" in {n.op_type for n in model.graph.node}


@needs_onnxscript
def test_dimensions_stay_symbolic_and_the_operator_set_is_chosen(tmp_path: Path) -> None:
    model = export(
        tmp_path / "m.onnx", f"{SOURCE}:gpt", "--inputs", "idx:int64[8,16]", "--dynamic", "idx.0=batch", "--opset", "18"
    )
    assert [d.dim_param or d.dim_value for d in model.graph.input[0].type.tensor_type.shape.dim] == ["batch", 16]
    assert [o.version for o in model.opset_import if not o.domain] == [18]
    graph = planner.load(str(tmp_path / "m.onnx"), bind={"batch": 4}).graph
    assert graph.tensors["idx"].shape == (4, 16)


REFUSED = {
    "no such function": ([f"{SOURCE}:gtp"], 3, "has no gtp; did you mean gpt?"),
    "no such file": (["nowhere.py:f"], 3, "nowhere.py: no such file"),
    "no such module": (["no_such_package.x:f"], 3, "there is no module no_such_package in"),
    "no function": ([str(SOURCE)], 2, "expected package.module:function or path/to/file.py:function"),
    "no module made": ([f"{SOURCE}:number"], 3, "expected the function to return a torch.nn.Module, found int"),
    "code that fails": ([f"{SOURCE}:failing"], 3, "its code failed with RuntimeError: no such table ("),
    "a missing argument": ([f"{SOURCE}:huge"], 2, "it needs the argument width; give it with --arg width=VALUE"),
    "another argument": ([f"{SOURCE}:gpt", "--arg", "width=1"], 2, "gpt has no such argument; it takes none"),
    "arguments of a module": ([f"{SOURCE}:ready", "--arg", "x=1"], 2, "is a module already, and takes no arguments"),
    "an input of another size": ([f"{SOURCE}:ready"], 3, "torch.export cannot follow it"),
    "values that decide": ([f"{SOURCE}:branching"], 3, "must be written so that its flow does not depend"),
    "an unknown loss": ([f"{SOURCE}:ready", "--loss", "crossentropy"], 2, "did you mean cross_entropy?"),
    "no targets": ([f"{SOURCE}:ready", "--loss", "mse"], 2, "expected 1 tensors of --targets, found 0"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_exported_is_named(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments, status, says = REFUSED[name]
    out = tmp_path / "m.onnx"
    assert says in refused(capsys, status, *arguments, "--inputs", "float32[8,5]", "--out", out)
    assert not out.exists()


def test_one_capture_serves_the_file_and_python(tmp_path: Path) -> None:
    """What `planner.torch.plan` plans is what the command writes, and what `planner.capture` returns."""
    loss = f"{SOURCE.with_name('models.py')}:next_word"
    given = (f"{SOURCE}:gpt", "--inputs", "idx:int64[8,16]", "--loss", loss, "--targets", "int64[8,16]")
    export(tmp_path / "gpt.onnx", *given)
    case = CASES["gpt"]()
    model = planner.capture(case.module, *case.inputs, targets=case.targets, loss=case.loss, name="gpt")
    assert model.digest == planner.load(str(tmp_path / "gpt.onnx")).digest
    plan = planner.search(model, devices=2, hardware="cpu", precision="fp32", target="torch")
    plan.save(tmp_path / "plan")
    loaded = planner.torch.load(tmp_path / "plan", case.module, *case.inputs, targets=case.targets, loss=case.loss)
    assert loaded.step_time == plan.step_time
    assert set(planner.torch.load_exported(tmp_path / "plan", case.module).capture.parameters) == {
        n for n, _ in case.module.named_parameters()
    }
    with pytest.raises(planner.OptionError, match=r"module: expected a torch\.nn\.Module, found int"):
        planner.capture(3)


def test_buffers_keep_their_numbers_and_weights_have_none() -> None:
    class Turned(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(4, 4)
            self.register_buffer("table", torch.arange(4.0), persistent=False)

        def forward(self, x: Tensor) -> Tensor:
            return self.inner(x) * self.table.cos()

    with without_weights():
        module = Turned()
    assert module.inner.weight.is_meta
    found = capture(module, (torch.ones(2, 4),))
    assert found.model == capture(Turned(), (torch.ones(2, 4),)).model
    assert module.inner.weight.is_meta
    graph = import_bytes(found.model)
    assert any(np.allclose(t.value, np.cos(np.arange(4.0))) for t in graph.tensors.values() if t.value is not None)


def test_constants_of_equal_numbers_are_stored_once() -> None:
    class Twice(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            table = torch.arange(8192.0, device=x.device)
            return (x * table.cos()) * (2 * table).div(2).cos()

    stored = onnx.load_from_string(capture(Twice(), (torch.ones(8192),)).model).graph.initializer
    assert sum(len(t.raw_data) for t in stored) < 2 * 8192 * 4


@pytest.mark.parametrize("how", ["bernoulli", "floor", "below", "above"])
def test_what_is_drawn_by_stochastic_depth_is_dropped(how: str) -> None:
    class Depth(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            shape = (x.shape[0], 1)
            if how == "bernoulli":
                return x * x.new_empty(shape).bernoulli_(0.75).div_(0.75)
            if how == "floor":  # as Hugging Face writes it
                return x.div(0.75) * (0.75 + torch.rand(shape, dtype=x.dtype, device=x.device)).floor_()
            drawn = torch.rand(shape)
            return x * (drawn < 0.75 if how == "below" else drawn >= 0.25) / 0.75

    model = onnx.load_from_string(capture(Depth(), (torch.ones(4096, 4),)).model)
    assert [n.op_type for n in model.graph.node].count("Dropout") == 1
    (found,) = onnx.reference.ReferenceEvaluator(model).run(None, {"x": np.ones((4096, 4), np.float32)})
    assert set(np.unique(found.round(3))) == {np.float32(0), np.float32(1.333)}
    assert 0.97 < found.mean() < 1.03


@pytest.mark.parametrize("how", ["scaled", "read twice", "multiplied"])
def test_other_uses_of_drawn_numbers_are_named(how: str) -> None:
    class Noisy(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            drawn = torch.rand(8, 1)
            if how == "read twice":
                return x * (drawn < 0.5) + (drawn < 0.7)
            return x * (torch.add(drawn, 0.25, alpha=2).floor() if how == "multiplied" else drawn + 1)

    with pytest.raises(InputError, match=r"aten.rand.default has no translation .*; draw what is random outside"):
        capture(Noisy(), (torch.ones(8, 4),))


def config(folder: Path, **entries: Any) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(entries))
    return folder


LLAMA = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 64, "hidden_size": 32,
    "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "max_position_embeddings": 32, "torch_dtype": "bfloat16", "auto_map": {"AutoModel": "code.Model"},
}  # fmt: skip


def test_a_configuration_of_hugging_face(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    transformers = pytest.importorskip("transformers")
    folder = config(tmp_path / "llama", **LLAMA)
    model = export(tmp_path / "m.onnx", "--hf", folder, "--batch", 4, "--sequence", 16, "--arg", "num_hidden_layers=1")
    kept = {k: v for k, v in LLAMA.items() if k not in ("model_type", "architectures", "torch_dtype", "auto_map")}
    of_config = transformers.LlamaConfig(**{**kept, "num_hidden_layers": 1}, use_cache=False)
    module = transformers.LlamaForCausalLM(of_config)
    assert weights(model) == {n for n, _ in module.named_parameters()}
    words = torch.randint(0, 64, (4, 16), generator=torch.Generator().manual_seed(1))
    (loss,) = results(filled(model, module), {"input_ids": words, "labels": words})
    assert float(loss) == pytest.approx(module(input_ids=words, labels=words).loss.item(), rel=1e-5)
    capsys.readouterr()
    out = ("--out", tmp_path / "n.onnx")
    assert "has max_position_embeddings 32" in refused(capsys, 2, "--hf", folder, "--sequence", 64, *out)
    assert "the configuration has no hiden_size; did you mean hidden_size?" in (
        refused(capsys, 2, "--hf", folder, "--arg", "hiden_size=8", *out)
    )
    assert "has no model LlamaForCausal; did you mean LlamaForCausalLM?" in (
        refused(capsys, 3, "--hf", folder, "--architecture", "LlamaForCausal", *out)
    )
    assert "nothing is downloaded here: fetch the configuration first" in refused(capsys, 3, "--hf", "org/name", *out)
    unknown = config(tmp_path / "unknown", model_type="no_such_type", architectures=["LlamaForCausalLM"])
    assert "does not understand this configuration" in refused(capsys, 3, "--hf", unknown, *out)
    for text in ("[1]", "{", '{"a": 1}'):
        (tmp_path / "broken.json").write_text(text)
        assert "give a config.json" in (said := refused(capsys, 3, "--hf", tmp_path / "broken.json", *out)) or (
            "give the config.json of a model" in said
        )


def test_the_help_loads_no_torch() -> None:
    code = "import sys; from planner.cli.main import main\ntry: main(['export', '--help'])\nexcept SystemExit: pass\n"
    code += "print('torch' in sys.modules, 'numpy' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "False False"
