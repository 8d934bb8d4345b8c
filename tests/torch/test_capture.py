"""The captured graph computes what the module computes, by kernels that are not torch's."""

from __future__ import annotations

from importlib.util import find_spec

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.peer

from torch import nn  # noqa: E402

from planner.errors import InputError, OptionError  # noqa: E402
from planner.frontends import import_bytes  # noqa: E402
from planner.torch.capture import Capture, capture  # noqa: E402
from planner.torch.capture.writer import as_array  # noqa: E402
from planner.torch.planning import plan  # noqa: E402
from planner.verify.reference import gradients, run_ops  # noqa: E402
from planner.work.activity import trained_parameters  # noqa: E402
from tests.torch.kernels import by_kernels  # noqa: E402
from tests.torch.models import CASES, HUGGING_FACE, OWN, Adapter, Case  # noqa: E402
from tests.torch.training import made, step_loss, worst  # noqa: E402

MODELS = [*OWN, *(HUGGING_FACE if find_spec("transformers") else ())]


def captured(case: Case) -> Capture:
    return capture(case.module, case.inputs, case.kwargs, case.targets, case.loss)


@pytest.mark.parametrize("name", MODELS)
def test_a_captured_step_is_the_modules_step(name: str) -> None:
    case = made(name)
    found = captured(case)
    graph = import_bytes(found.model, name=name)
    values = {n: as_array(t) for n, t in found.constants.items()}
    named = (*case.module.named_parameters(), *case.module.named_buffers())
    values |= {n: as_array(t).copy() for n, t in named}
    fed = found.flattened(case.inputs, case.kwargs, case.targets)
    values |= {n: as_array(t) for n, t in zip(found.inputs, fed, strict=True)}
    values |= {t.name: t.value for t in graph.tensors.values() if t.value is not None}
    values = {n: v for n, v in values.items() if n in graph.tensors}
    assert {t.name for t in graph.parameters} == set(found.parameters)
    assert graph.loss == found.loss
    whole = run_ops(graph, values)
    loss = step_loss(case, case.module, parallel=False)
    loss.backward()
    assert float(whole[graph.loss]) == pytest.approx(loss.item(), rel=1e-5)
    truth = {n: p.grad.numpy() for n, p in case.module.named_parameters() if p.grad is not None}
    assert worst(gradients(graph, values, whole, list(found.parameters)), truth) < 1e-4


@pytest.mark.parametrize("name", MODELS)
def test_a_module_without_weights_is_captured_alike(name: str) -> None:
    with torch.device("meta"):
        empty = CASES[name]()
    if any(t.is_meta for t in (*empty.inputs, *empty.kwargs.values(), *empty.targets)):
        empty = Case(empty.module, *_inputs(name), empty.loss)
    if any(b.is_meta and b.dtype == torch.bool for b in empty.module.buffers()) or _tables(empty.module):
        pytest.skip("its buffers hold values that its step needs")
    assert import_bytes(captured(empty).model).digest == import_bytes(captured(made(name)).model).digest


def _inputs(name: str) -> tuple:
    case = CASES[name]()
    return case.inputs, case.kwargs, case.targets


def _tables(module: nn.Module) -> bool:
    """Whether it has rotary tables, which are computed when it is made."""
    return any(b.is_meta and n.rpartition(".")[2] == "inv_freq" for n, b in module.named_buffers())


def test_tied_weights_are_one_parameter_with_two_names() -> None:
    found = captured(made("nanogpt"))
    assert found.aliases == {"lm_head.weight": "wte.weight"}
    assert "lm_head.weight" not in found.parameters


def test_a_known_causal_mask_becomes_the_word() -> None:
    class Masked(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            mask = torch.full((8, 8), float("-inf")).triu(1)
            return nn.functional.scaled_dot_product_attention(x, x, x, attn_mask=mask).mean()

    graph = import_bytes(capture(Masked(), (torch.randn(2, 2, 8, 4),)).model)
    attention = next(op for op in graph.ops if op.type == "Attention")
    assert attention.attributes["is_causal"] == 1
    assert len(attention.inputs) == 3


def test_a_table_whose_rows_repeat_is_computed_whatever_its_strides() -> None:
    class Rotary(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            angles = torch.arange(8.0)[None, :, None].repeat(4, 1, 1) * torch.tensor([1.0, 0.1])[None, None, :]
            return (x * torch.repeat_interleave(angles, 2, dim=-1).cos()).sum()

    x = torch.randn(4, 8, 4)
    found = capture(Rotary(), (x,))
    values = {n: as_array(t) for n, t in found.constants.items()} | {found.inputs[0]: as_array(x)}
    graph = import_bytes(found.model)
    assert float(run_ops(graph, values)[graph.outputs[0]]) == pytest.approx(Rotary()(x).item(), rel=1e-5)


class ComplexRotary(nn.Module):
    """As the code of Llama's authors turns queries: by complex numbers of modulus one."""

    def __init__(self, written: str) -> None:
        super().__init__()
        self.written = written
        self.to_q = nn.Linear(8, 8, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        angles = torch.outer(torch.arange(x.shape[1]).float(), torch.tensor([1.0, 0.1]))
        turn = torch.polar(torch.ones_like(angles), angles)
        q = torch.view_as_complex(self.to_q(x).view(*x.shape[:2], 2, 2, 2))
        match self.written:
            case "turned":
                q = q * turn[:, None, :]
            case "transposed":
                q = (q.transpose(1, 2) * turn).transpose(1, 2)[:, 1:]
            case "conjugate":
                q = torch.conj(q) * 2.0 * turn.unsqueeze(1) + q
            case "absolute":
                return (q * (1 + 2j)).abs().sum()
            case "parts":
                q = torch.complex(q.real, q.imag.tanh()) - turn[:, None, :]
        return (torch.view_as_real(q).flatten(3) * torch.arange(4.0)).sum()


@pytest.mark.parametrize("written", ["turned", "transposed", "conjugate", "absolute", "parts"])
def test_complex_numbers_are_two_tensors(written: str) -> None:
    module, x = ComplexRotary(written), torch.randn(2, 6, 8)
    found = capture(module, (x,))
    graph = import_bytes(found.model)
    values = {n: as_array(t) for n, t in found.constants.items()} | {found.inputs[0]: as_array(x)}
    values |= {n: as_array(p) for n, p in module.named_parameters()}
    whole = run_ops(graph, values)
    assert float(whole[graph.outputs[0]]) == pytest.approx(module(x).item(), rel=1e-4, abs=1e-4)
    module(x).backward()
    truth = {n: p.grad.numpy() for n, p in module.named_parameters() if p.grad is not None}
    assert graph.loss is not None
    assert worst(gradients(graph, values, whole, list(found.parameters)), truth) < 1e-4


def test_complex_operators_without_translation_are_named() -> None:
    class Spectrum(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.fft.fft(x).angle().sum()

    with pytest.raises(InputError, match="angle"):
        capture(Spectrum(), (torch.randn(4, 8),))


def test_frozen_parameters_are_weights_that_are_not_trained() -> None:
    module = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 1))
    module[0].requires_grad_(False)
    found = capture(module, (torch.randn(4, 8),), targets=(torch.randn(4, 1),), loss=nn.functional.mse_loss)
    assert found.parameters == ("1.weight", "1.bias")
    assert found.frozen == ("0.weight", "0.bias")
    graph = import_bytes(found.model)
    assert {t.name: t.frozen for t in graph.parameters} == {
        "0.weight": True, "0.bias": True, "1.weight": False, "1.bias": False
    }  # fmt: skip
    assert trained_parameters(graph) == {"1.weight", "1.bias"}
    module.requires_grad_(True)
    whole = capture(module, (torch.randn(4, 8),), targets=(torch.randn(4, 1),), loss=nn.functional.mse_loss)
    assert import_bytes(whole.model).digest != graph.digest


def test_a_model_whose_frozen_weights_fit_on_no_device_is_divided() -> None:
    """24 layers of 2 GiB beside adapters: 48 GiB on devices of 40."""
    with torch.device("meta"):
        layers = [Adapter(nn.Linear(32768, 32768, bias=False, dtype=torch.bfloat16)) for _ in range(24)]
        module = nn.Sequential(*layers, nn.Linear(32768, 8)).to(torch.bfloat16)
    for layer in layers:
        layer.frozen.requires_grad_(False)
    found = plan(
        module, torch.empty(64, 32768, device="meta", dtype=torch.bfloat16),
        targets=torch.empty(64, dtype=torch.int64, device="meta"),
        loss=nn.functional.cross_entropy, devices=4, hardware="a100-40", cache=False,
    )  # fmt: skip
    frozen = [p for p in found.plan.document.parameters.values() if p.gradient is None]
    assert len(frozen) == 24
    assert all(p.optimizer is None for p in frozen)
    assert found.plan.document.cost.peak_memory_bytes < 40 << 30


class Cast(nn.Module):
    def __init__(self, element: torch.dtype) -> None:
        super().__init__()
        self.element = element

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.to(self.element)


class Tied(nn.Module):
    """A table that the head reads as well, or two of its size, which are frozen, around layers that are trained."""

    def __init__(self, *, tied: bool) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(4096, 64), nn.Linear(64, 4096, bias=False)
        self.blocks = nn.ModuleList(nn.Sequential(nn.LayerNorm(64), nn.Linear(64, 64), nn.GELU()) for _ in range(4))
        if tied:
            self.head.weight = self.table.weight
        self.table.requires_grad_(False)
        self.head.requires_grad_(False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.table(x)
        for block in self.blocks:
            x = x + block(x)
        return self.head(x).transpose(1, 2)


def test_a_frozen_weight_that_two_stages_read_is_held_by_both() -> None:
    words = torch.zeros(8, 16, dtype=torch.int64)
    peaks = [
        plan(
            Tied(tied=tied), words, targets=words, loss=nn.functional.cross_entropy, devices=2,
            hardware="a100-80", cache=False, strategy="megatron:pp=2,micro_batch=4",
        ).plan.document.cost.peak_memory_bytes
        for tied in (True, False)
    ]  # fmt: skip
    assert peaks[0] == peaks[1]


@pytest.mark.parametrize("target", ["hyper-parallel", "dtensor", "megatron", "deepspeed"])
def test_frozen_weights_that_zero_1_leaves_whole_are_no_hindrance(target: str) -> None:
    module = nn.Sequential(nn.Linear(64, 64, bias=False), nn.LayerNorm(64), nn.Linear(64, 64, bias=False))
    module[0].requires_grad_(False)
    x = torch.randn(8, 64)
    found = plan(module, x, targets=x, loss=nn.functional.mse_loss, devices=2, hardware="a100-80", cache=False,
                 strategy="zero1")  # fmt: skip
    emission = found.plan.emit(target)
    if target == "dtensor":
        assert "fully_shard" in emission.files["parallel_plan.json"].decode()


def test_frozen_weights_in_single_precision_beside_narrow_copies_are_named() -> None:
    module = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 8))
    module[0].requires_grad_(False)
    x, options = torch.randn(8, 64), {"loss": nn.functional.cross_entropy, "devices": 1, "cache": False}
    with pytest.warns(UserWarning, match="frozen weights in single precision stay in memory beside the copies"):
        plan(module, x, targets=torch.arange(8), hardware="a100-80", precision="bf16", **options)


@pytest.mark.parametrize(
    ("rest", "few", "precision"),
    [
        (torch.bfloat16, torch.float32, "bf16"),
        (torch.float32, torch.bfloat16, "fp32"),
        (torch.float16,) * 2 + ("fp16",),
    ],
)
def test_the_precision_is_that_of_most_weights(rest: torch.dtype, few: torch.dtype, precision: str) -> None:
    module = nn.Sequential(nn.Linear(64, 64, dtype=rest), Cast(few), nn.Linear(64, 1, dtype=few))
    found = plan(module, torch.randn(8, 64, dtype=rest), targets=torch.randn(8, 1, dtype=few), devices=1,
                 loss=lambda y, t: (y - t).square().mean(), hardware="a100-80", cache=False)  # fmt: skip
    assert found.plan.document.schedule.precision == precision


def test_an_operator_without_translation_is_named_with_its_module() -> None:
    class Inner(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.linalg.svdvals(x).sum()

    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = Inner()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.inner(x)

    with pytest.raises(InputError, match=r"module inner: the operator aten\._linalg_svd.* has no translation"):
        capture(Outer(), (torch.randn(4, 4),))


def test_a_module_that_looks_at_values_is_refused_in_words() -> None:
    class Looking(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.sum() if x.sum() > 0 else x.mean()

    with pytest.raises(InputError, match=r"Looking: torch\.export cannot follow it"):
        capture(Looking(), (torch.randn(4),))


def test_integers_and_types_meet_as_torch_promotes_them() -> None:
    class Mixed(nn.Module):
        def forward(self, x: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
            return (x * n + n // 2 if False else x * n / 3).mean() + (n > 1).float().sum()

    x, n = torch.randn(4, generator=torch.Generator().manual_seed(0)), torch.arange(4)
    found = capture(Mixed(), (x, n))
    graph = import_bytes(found.model)
    values = dict(zip(found.inputs, (x.numpy(), n.numpy()), strict=True))
    values |= {k: v.numpy() for k, v in found.constants.items()}
    whole = run_ops(graph, {k: v for k, v in values.items() if k in graph.tensors})
    np.testing.assert_allclose(whole[graph.outputs[0]], Mixed()(x, n).numpy(), rtol=1e-6)


def test_what_is_written_in_place_is_read_and_what_is_converted_already_stays() -> None:
    class Shifted(nn.Module):
        """As decoders shift their labels, and routers compute in another type."""

        def __init__(self) -> None:
            super().__init__()
            self.embedding, self.router = nn.Embedding(8, 4), nn.Linear(4, 8)

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            shifted = ids.new_zeros(ids.shape)
            shifted[:, 1:] = ids[:, :-1].clone()
            shifted[:, 0] = 5
            shifted.masked_fill_(shifted == 3, 0)
            self.router = self.router.to(torch.float32)
            return nn.functional.cross_entropy(self.router(self.embedding(shifted)).flatten(0, 1), ids.flatten())

    module, ids = Shifted(), torch.randint(0, 8, (4, 6), generator=torch.Generator().manual_seed(0))
    weights = {name: p.detach().clone() for name, p in module.named_parameters()}
    truth = module(ids)
    truth.backward()
    loss, found = by_kernels(module, ids)
    np.testing.assert_allclose(loss, truth.detach().numpy(), rtol=1e-6)
    for name, p in module.named_parameters():
        assert torch.equal(p, weights[name])
        assert p.grad is not None
        np.testing.assert_allclose(found[name], p.grad.numpy(), rtol=1e-5, atol=1e-7)


def test_an_argument_of_the_module_that_is_given_as_an_option_is_said_to_be_one_before_capture() -> None:
    model = nn.Linear(4, 4)
    message = r"no option 'input', which is an argument of Linear; give .* example_inputs=\{'input': …\}"
    with pytest.raises(OptionError, match=message):
        plan(model, input=torch.zeros(8, 4), devices=2, loss=torch.mean)
    with pytest.raises(OptionError, match=r"no option 'hardwear'; did you mean hardware\?"):
        plan(model, torch.zeros(8, 4), devices=2, loss=torch.mean, hardwear="cpu")
