"""Operators of ATen are written as graphs that compute what they compute, and gradients alike."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.peer

from torch import Tensor, nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

from planner.errors import InputError  # noqa: E402
from planner.frontends import import_bytes  # noqa: E402
from planner.pricing.operators import bind_rules  # noqa: E402
from planner.torch.capture import capture  # noqa: E402
from planner.torch.capture.writer import as_array  # noqa: E402
from planner.verify.reference import gradients, run_ops  # noqa: E402
from planner.work.activity import active_tensors  # noqa: E402


def _numbers(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


ROWS = torch.tensor([3, 0, 1, 3, 2, 0, 3, 1])  # which some rows are named twice by, and some in order
CLASSES = torch.tensor([3, 15, -100, 0, 7, -100, 3, 9])
SHARES = _numbers(3, 8, 16).softmax(-1)
WEIGHS = torch.arange(1.0, 17.0)
OTHER, FOUR, PUT = _numbers(1, 8, 16), _numbers(1, 4, 16), _numbers(2, 2, 2, 16)
PLACES, FORMS, SEEN = _numbers(4, 8, 3, 3, 2) * 0.4, _numbers(5, 3, 16, 16), _numbers(6, 2, 1, 2, 4, 4)


def _image(x: Tensor) -> Tensor:
    return x.view(8, 1, 4, 4)


def _spread(i: Tensor) -> Tensor:
    return i[:, None].expand(-1, 16)


def _some_columns(x: Tensor) -> Tensor:
    y = torch.zeros_like(x)
    y[:, 0::2], y[:, 1::2] = torch.sin(x[:, :8]), torch.cos(x[:, :8])
    return y


def _none_above(x: Tensor) -> Tensor:
    y = x.clone()
    y[x > 0] = 0.25
    return y


def _without_gradient(x: Tensor) -> Tensor:
    with torch.no_grad():
        gate = F.normalize(x.exp(), dim=-1)
    return x * gate


def _followed_again(x: Tensor) -> Tensor:
    with torch.no_grad():
        a = x.exp().clamp(max=2)
        with torch.enable_grad():
            b = x * a
        c = b * x
    return b + c


def _detached_in_place(x: Tensor) -> Tensor:
    gate = x.sigmoid()
    before = gate * 2
    gate.detach_()
    return x * gate + before


class _Capped(torch.autograd.Function):
    """A gradient by what was computed already, as kernels have it that save memory."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, cap: float) -> Tensor:
        y = torch.tanh(x / cap)
        ctx.save_for_backward(y)
        return y * cap

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        (y,) = ctx.saved_tensors
        return gradient * (1 - y * y), None


class _Squared(torch.autograd.Function):
    """In the newer form."""

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x * x

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return 2 * gradient * ctx.saved_tensors[0]


class _Reversed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return -gradient


class _Rounded(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.round()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient


def _hooked(x: Tensor) -> Tensor:
    if x.requires_grad:
        x.register_hook(lambda g: g * 0.1)
    return x * 2


def _clamped_unseen(x: Tensor) -> Tensor:
    with torch.no_grad():
        x.clamp_(-0.5, 0.5)
    return x * 2


# A function of 8 x 16 numbers.
FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "clamp_max": lambda x: torch.clamp_max(x, 0.3),
    "clamp by tensors": lambda x: torch.clamp(x, torch.zeros(16), torch.full((16,), 0.3)),
    "celu": lambda x: F.celu(x, 2.0),
    "elu of a scaled operand": lambda x: torch.ops.aten.elu(x, 1.5, 2.0, 0.5),
    "softplus, steep": lambda x: F.softplus(x, beta=2.0, threshold=1.0),
    "logsigmoid": F.logsigmoid,
    "expm1, log1p": lambda x: torch.expm1(x) + torch.log1p(x.abs()) + torch.log2(x.abs() + 1),
    "log1p of little": lambda x: torch.log1p(x * 1e-5) * 1e5 + torch.expm1(x * 1e-5) * 1e5,
    "atan2": lambda x: torch.atan2(x, x.flip(1) + 0.5),
    "hyperbolic": lambda x: torch.sinh(x) + torch.cosh(x) + torch.tan(x / 4) + torch.atan(x),
    "remainders": lambda x: torch.fmod(x, 0.5) + torch.remainder(x, -0.3) * 2,
    "whole quotients": lambda x: x * torch.div(x, 0.3, rounding_mode="floor"),
    "cut quotients": lambda x: x * torch.div(x, 0.3, rounding_mode="trunc"),
    "trunc, round": lambda x: x * x.trunc() + x * (x * 3).round(),
    "of numbers alone": lambda x: torch.nan_to_num(x) + torch.isnan(x) * x,
    "bits": lambda x: x * ((x * 8).to(torch.int32) & 5) + x * (~(x * 8).to(torch.int64) ^ 3) + x * ((x > 0) | (x < -1)),
    "truth of numbers": lambda x: x * torch.logical_and(x.round(), x > 0) + x * torch.logical_xor(x.round(), x > 1),
    "max of rows": lambda x: x.max(-1).values + x.min(dim=-1)[0],
    "max of equals": lambda x: F.relu(x).max(0).values,
    "max of all": lambda x: x.max() * x.min(),
    "median": lambda x: x.median(-1).values + x.median(),
    "kthvalue": lambda x: x.kthvalue(3, -1).values,
    "norms": lambda x: x.norm(p=1, dim=-1) + x.norm(p=float("inf"), dim=-1) + torch.linalg.vector_norm(x, 3, dim=-1),
    "cosine": lambda x: F.cosine_similarity(x, OTHER, dim=-1),
    "distances": lambda x: torch.cdist(x, FOUR),
    "prod": lambda x: x.prod(-1) + x[:2, :2].prod(),
    "cumulated products": lambda x: torch.cumprod(x, -1) + torch.cumprod(x[:5].relu(), 0)[-1],
    "more ones than are computed": lambda x: x + torch.ones(1 << 12, 1 << 17)[:8, :16] * x,
    "without gradient": _without_gradient,
    "followed again without gradient": _followed_again,
    "detached in place": _detached_in_place,
    "a gradient that is that of its operators": lambda x: _Capped.apply(_Squared.apply(x), 2.0),
    "checkpoints": lambda x: checkpoint(torch.sin, checkpoint(torch.exp, x, use_reentrant=True), use_reentrant=False),
    "diagonal": lambda x: torch.diagonal(x.view(8, 4, 4), 1, -1, 1) * 2,
    "windows": lambda x: x.unfold(1, 4, 2),
    "patches and back": lambda x: F.fold(F.unfold(_image(x), 2, stride=2), (4, 4), 2, stride=2) * _image(x),
    "indices behind": lambda x: x.view(8, 4, 4)[:, torch.arange(4), torch.tensor([3, 1, 1, 0])],
    "indices apart": lambda x: x.view(2, 4, 16)[torch.arange(2), :, torch.arange(2)],
    "columns at steps": _some_columns,
    "a mask is filled": _none_above,
    "index_put": lambda x: x.index_put((torch.arange(8), ROWS), torch.tensor(3.0)),
    "index_put behind": lambda x: x.view(2, 4, 16).index_put(
        (torch.tensor([[0], [1]]), torch.tensor([[1, 3]])), PUT, accumulate=True
    ),
    "index_add": lambda x: torch.zeros(4, 16).index_add(0, ROWS, x),
    "index_add, columns": lambda x: torch.zeros(8, 4).index_add(1, ROWS, x[:, :8]),
    "scatter of more": lambda x: torch.zeros(4, 16).scatter(0, _spread(torch.tensor([2, 0])), x[:2]) * x[4:],
    "scatter, mean": lambda x: torch.ones(5, 16).scatter_reduce(0, _spread(ROWS), x, "mean", include_self=False),
    "scatter, mean with its own": lambda x: x.scatter_reduce(0, _spread(ROWS), x * 2, "mean"),
    "scatter, greatest": lambda x: torch.zeros(4, 16).scatter_reduce(0, _spread(ROWS), x, "amax"),
    "bucketize": lambda x: x * torch.bucketize(x, torch.linspace(-1, 1, 5)),
    "bucketize, right": lambda x: x * torch.bucketize(x.round(), torch.linspace(-1, 1, 3), right=True),
    "instance norm": lambda x: F.instance_norm(x.view(8, 4, 2, 2), weight=torch.arange(4.0), bias=torch.ones(4)),
    "batch norm that keeps nothing": lambda x: F.batch_norm(x * x, None, None, WEIGHS, training=True),
    "a pool with a divisor": lambda x: F.avg_pool2d(_image(x), 2, padding=1, divisor_override=3),
    "greatest of windows": lambda x: F.adaptive_max_pool2d(_image(x), 2),
    "uneven windows": lambda x: F.adaptive_avg_pool2d(_image(x), (3, None)),
    "resized, nearest": lambda x: F.interpolate(_image(x), scale_factor=2) + F.interpolate(_image(x), size=8),
    "resized, exact": lambda x: F.interpolate(_image(x), size=(6, 7), mode="nearest-exact"),
    "resized, bilinear": lambda x: F.interpolate(_image(x), scale_factor=1.6, mode="bilinear"),
    "resized by corners": lambda x: F.interpolate(_image(x), size=(6, 7), mode="bilinear", align_corners=True),
    "resized, bicubic": lambda x: F.interpolate(_image(x), size=(6, 7), mode="bicubic"),
    "resized, area": lambda x: F.interpolate(_image(x), size=(3, 2), mode="area"),
    "resized, smooth": lambda x: F.interpolate(_image(x), size=(2, 3), mode="bilinear", antialias=True),
    "sampled": lambda x: F.grid_sample(_image(x), PLACES, align_corners=False),
    "bilinear": lambda x: F.bilinear(x, x, FORMS, torch.ones(3)),
    "bags": lambda x: F.embedding_bag(ROWS.view(4, 2), x, mode="mean"),
    "sums of bags": lambda x: F.embedding_bag(ROWS.view(4, 2), x, mode="sum"),
    "attention of five dimensions": lambda x: F.scaled_dot_product_attention(
        *[x.view(2, 2, 2, 4, 4)] * 3, attn_mask=SEEN
    ),
    "attention of a matrix": lambda x: F.scaled_dot_product_attention(x, x, x, is_causal=True),
    "cross-entropy, smoothed": lambda x: F.cross_entropy(x, CLASSES, label_smoothing=0.1),
    "cross-entropy, smoothed, sum": lambda x: F.cross_entropy(x, CLASSES, label_smoothing=0.1, reduction="sum"),
    "cross-entropy, smoothed, weighed": lambda x: F.cross_entropy(x, CLASSES, WEIGHS, label_smoothing=0.1),
    "cross-entropy of pixels, smoothed": lambda x: F.cross_entropy(
        x.view(2, 16, 4), CLASSES.view(2, 4), WEIGHS, label_smoothing=0.1, reduction="none"
    ),
    "cross-entropy of shares": lambda x: F.cross_entropy(x, SHARES, WEIGHS, label_smoothing=0.1),
}  # fmt: skip


class _Of(nn.Module):
    """A function of what a layer makes of the input; as a loss the squares of its elements, each weighed otherwise."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function, self.layer = function, nn.Linear(16, 16)

    def forward(self, x: Tensor) -> Tensor:
        y = self.function(self.layer(x))
        return (y * y * torch.linspace(0.5, 1.5, y.numel()).view(y.shape)).sum()


def _by_kernels(module: nn.Module, x: Tensor) -> tuple[Any, dict[str, Any]]:
    found = capture(module, (x,))
    graph = import_bytes(found.model)
    values: dict[str, Any] = {n: as_array(t) for n, t in (*found.constants.items(), *module.named_parameters())}
    values[found.inputs[0]] = x.numpy()
    values = {n: v for n, v in values.items() if n in graph.tensors}
    whole = run_ops(graph, values | {t.name: t.value for t in graph.tensors.values() if t.value is not None})
    active = active_tensors(graph, bind_rules(graph)[0])
    return whole[graph.loss], gradients(graph, values, whole, list(found.parameters), active=active)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_an_operator_is_written_as_what_it_computes(name: str) -> None:
    torch.manual_seed(0)
    module, x = _Of(FUNCTIONS[name]), _numbers(0, 8, 16)
    loss, found = _by_kernels(module, x)
    truth = module(x)
    truth.backward()
    np.testing.assert_allclose(loss, truth.detach().numpy(), rtol=1e-5)
    for n, p in module.named_parameters():
        assert p.grad is not None
        np.testing.assert_allclose(found[n], p.grad.numpy(), rtol=1e-3, atol=2e-5 * float(p.grad.abs().max()))


REFUSED: dict[str, tuple[Callable[[Tensor], Tensor], str]] = {
    "arguments that none takes": (lambda x: F.normalize(x.view(8, 4, 4), p=-1.0), "norm of order -1.0"),
    "a second result": (lambda x: F.max_pool2d(_image(x), 2, return_indices=True)[1] * 1.0, "no translation writes"),
    "values of a mask": (lambda x: x.masked_scatter(x > 0, x), "has no translation"),
    "bags of several sizes": (lambda x: F.embedding_bag(ROWS, x, torch.tensor([0, 3])), "bags of several sizes"),
    "windows of several sizes": (lambda x: F.adaptive_max_pool2d(_image(x), 3), "windows of one size"),
    "numbers that are drawn": (lambda x: x + torch.randn_like(x), "give it to the module as an input"),
    "a gradient of its own": (
        _Reversed.apply,
        r"_Reversed, .* \(.*test_operators.py:\d+\), gives a gradient of its own",
    ),
    "a straight-through estimator": (_Rounded.apply, r"x \+ \(f\(x\) - x\)\.detach\(\)"),
    "a hook on a gradient": (_hooked, r"a hook on the gradient of a tensor \(.*test_operators.py:\d+\)"),
    "writing without gradient": (
        _clamped_unseen,
        r"clamp_ under torch\.no_grad\(\) writes into a tensor .*test_operators.py:\d+",
    ),
    "data of a tensor": (lambda x: x * x.data.abs(), r"\.data \(use \.detach\(\)\)"),
    "factors of a matrix": (lambda x: torch.linalg.cholesky(x.T @ x), "linalg_cholesky_ex.default has no translation"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_written_is_named(name: str) -> None:
    function, said = REFUSED[name]
    with pytest.raises(InputError, match=said):
        capture(_Of(function), (_numbers(0, 8, 16),))


def test_what_no_gradient_comes_through_is_not_detached() -> None:
    """As rotary tables, which are computed from positions under no_grad: their graphs are what they were."""

    class Module(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(16, 16)

        def forward(self, x: Tensor) -> Tensor:
            with torch.no_grad():
                turned = torch.cos(x)
            return self.layer(turned).sum()

    types = [op.type for op in import_bytes(capture(Module(), (_numbers(0, 8, 16),)).model).ops]
    assert "Cos" in types
    assert "planner::Detach" not in types


def test_a_step_is_captured_with_gradients_wherever_it_is_captured() -> None:
    with torch.no_grad():
        found = capture(_Of(torch.sin), (_numbers(0, 8, 16),))
    graph = import_bytes(found.model)
    assert active_tensors(graph, bind_rules(graph)[0]) >= set(found.parameters)


def test_autocast_inside_of_a_module_is_said_by_casts() -> None:
    class Module(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.narrow, self.wide = nn.Linear(16, 16), nn.Linear(16, 16)

        def forward(self, x: Tensor) -> Tensor:
            with torch.autocast("cpu", torch.bfloat16):
                y = self.narrow(x).relu()
            return self.wide(y.float()).sum()

    graph = import_bytes(capture(Module(), (_numbers(0, 8, 16),)).model)
    products = [op for op in graph.ops if op.type in ("MatMul", "Gemm")]
    assert [graph.tensors[op.outputs[0]].dtype for op in products] == ["bfloat16", "float32"]


def test_functions_and_hooks_are_torchs_own_again() -> None:
    before = torch.autograd.function._SingleLevelFunction.apply, Tensor.register_hook
    capture(_Of(torch.sin), (_numbers(0, 8, 16),))
    with pytest.raises(InputError):
        capture(_Of(_Reversed.apply), (_numbers(0, 8, 16),))
    assert (torch.autograd.function._SingleLevelFunction.apply, Tensor.register_hook) == before
    x = torch.ones(3, requires_grad=True)
    _Reversed.apply(x).sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [-1.0] * 3
