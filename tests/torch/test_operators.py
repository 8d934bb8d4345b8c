"""Operators of ATen are written as graphs that compute what they compute, and gradients alike."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.peer

from torch import Tensor, nn  # noqa: E402
from torch.autograd.function import once_differentiable  # noqa: E402
from torch.distributions import Categorical, Independent, Normal, kl_divergence  # noqa: E402
from torch.nn import functional as F  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

from planner.errors import InputError  # noqa: E402
from planner.frontends import import_bytes  # noqa: E402
from planner.rules.bound import bind_rules  # noqa: E402
from planner.torch.capture import capture  # noqa: E402
from planner.torch.capture.exported import exported_step  # noqa: E402
from planner.work.activity import active_tensors  # noqa: E402
from tests.torch.kernels import by_kernels  # noqa: E402


def _numbers(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


ROWS = torch.tensor([3, 0, 1, 3, 2, 0, 3, 1])  # which some rows are named twice by, and some in order
CLASSES = torch.tensor([3, 15, -100, 0, 7, -100, 3, 9])
SHARES = _numbers(3, 8, 16).softmax(-1)
WEIGHS = torch.arange(1.0, 17.0)
OTHER, FOUR, PUT = _numbers(1, 8, 16), _numbers(1, 4, 16), _numbers(2, 2, 2, 16)
FILTERS = _numbers(7, 8, 8, 3) * 0.1
PLACES, FORMS, SEEN = _numbers(4, 8, 3, 3, 2) * 0.4, _numbers(5, 3, 16, 16), _numbers(6, 2, 1, 2, 4, 4)


def _image(x: Tensor) -> Tensor:
    return x.view(8, 1, 4, 4)


def _spread(i: Tensor) -> Tensor:
    return i[:, None].expand(-1, 16)


def _some_columns(x: Tensor) -> Tensor:
    y = torch.zeros_like(x)
    y[:, 0::2], y[:, 1::2] = torch.sin(x[:, :8]), torch.cos(x[:, :8])
    return y


def _diagonals_written(x: Tensor) -> Tensor:
    y = x.clone()
    y.diagonal(2).mul_(3)
    y.view(8, 4, 4).diagonal(-1, 2, 1)[:, 1:] = x[:, :2] * 2
    y[:, :8].diagonal().fill_(0.5)
    return y


def _of_no_dimensions(x: Tensor) -> Tensor:
    a, first = x[0, 0], torch.tensor(0)
    counted = a.cumsum(0) + a.max(0).values + a.topk(1).values + a.kthvalue(1).values + a.median(-1).values
    put = torch.zeros(()).scatter_add(0, first, a) + a.index_fill(0, first, 2.0) + x[1, 1].index_select(0, first)
    return x * (a.gather(0, first) + x[1].gather(0, first) + counted + put + a.argmax(0) + x.argmax(keepdim=True))


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


def _averaged(x: Tensor) -> Tensor:
    with torch.inference_mode():
        seen = torch.ones(8, 8).tril()
        seen /= seen.sum(1, keepdim=True)
    return (seen * 1) @ x


def _without_gradient_in_autocast(x: Tensor) -> Tensor:
    with torch.autocast("cpu", torch.bfloat16):
        y = x.view(8, 4, 4) * 2
        with torch.no_grad():
            gate = torch.sigmoid(y)
        return (y * gate).float()


def _gone_on_with(x: Tensor) -> Tensor:
    """What was computed without gradients gets one by what is added to it."""
    with torch.no_grad():
        s = x * 2
    s += x
    s[0] = x[0] * 3
    return s * s


def _written_by_views(x: Tensor) -> Tensor:
    z = torch.zeros(8, 16)
    z.view(-1).add_(x.view(-1))
    b = torch.zeros(2, 16)
    with torch.no_grad():
        s = z * 2
        b[0].copy_(x[0])
        b[1] = x[1]
        turned = x.mT
    return z * s + (x[:2] * b).sum() + (x @ turned).sum()


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


def _row_unseen(x: Tensor) -> Tensor:
    with torch.no_grad():
        x[0] = 0.0
    return x * 2


def _view_unseen(x: Tensor) -> Tensor:
    with torch.no_grad():
        x[0].zero_()
    return x * 2


def _added_behind_detach(x: Tensor) -> Tensor:
    s = (x * 2).detach()
    s += x
    return s


def _scaled_together(x: Tensor) -> Tensor:
    with torch.no_grad():
        torch._foreach_mul_([x], 2.0)
    return x * 2


class _Normed(torch.autograd.Function):
    """Part of it without gradients, which its own are right for."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        with torch.no_grad():
            scale = 2.0
        ctx.scale = scale
        return x / scale

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient / ctx.scale


class _Ordered(torch.autograd.Function):
    """Rows in another order, as of tokens by their experts; also a result without gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, order: Tensor) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(order)
        unused = x.sum(0)
        ctx.mark_non_differentiable(unused)
        return x[order], unused

    @staticmethod
    def backward(ctx: Any, gradient: Tensor, _: Tensor) -> tuple[Tensor, None]:
        (order,) = ctx.saved_tensors
        back = torch.empty_like(gradient)
        back[order] = gradient
        return back, None


class _Rooted(torch.autograd.Function):
    """Of what is positive."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        y = torch.sqrt(x)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient / (2 * ctx.saved_tensors[0])


class _Clipped(torch.autograd.Function):
    """Of the gradient, what is not large."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient.clamp(-10, 10)


class _Masked(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, mask: Tensor) -> Tensor:
        ctx.save_for_backward(mask)
        return torch.where(mask, x, 0.0)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return torch.where(ctx.saved_tensors[0], -3 * gradient, 0.0), None


class _Spiked(torch.autograd.Function):
    """A step, whose slope is that of a steep sigmoid."""

    @staticmethod
    def forward(x: Tensor, steep: float) -> Tensor:
        return (x > 0).to(x.dtype)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(inputs[0])
        ctx.steep = inputs[1]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        (x,) = ctx.saved_tensors
        s = torch.sigmoid(ctx.steep * x)
        return gradient * ctx.steep * s * (1 - s), None


class _Joined(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor) -> Tensor:
        ctx.save_for_backward(x, y)
        return x * y

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        x, y = ctx.saved_tensors
        return gradient * y.clamp(-0.5, 0.5), -gradient * x


class _Scaled(torch.autograd.Function):
    """A step size that is learned: its gradient is a sum."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, size: Tensor) -> Tensor:
        ctx.save_for_backward(x, size)
        return (x / size).round() * size

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        x, size = ctx.saved_tensors
        return gradient, (gradient * ((x / size).round() - x / size)).sum(0)


def _reversed_unseen(x: Tensor) -> Tensor:
    with torch.no_grad():
        return _Reversed.apply(x)


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
    "variance and mean": lambda x: torch.var_mean(x, -1, keepdim=True)[0] * x + torch.std_mean(x, 0)[1]
    + torch.var_mean(x, 1, correction=0)[1][:, None] * torch.std_mean(x)[0],
    "prod": lambda x: x.prod(-1) + x[:2, :2].prod(),
    "cumulated products": lambda x: torch.cumprod(x, -1) + torch.cumprod(x[:5].relu(), 0)[-1],
    "more ones than are computed": lambda x: x + torch.ones(1 << 12, 1 << 17)[:8, :16] * x,
    "without gradient": _without_gradient,
    "followed again without gradient": _followed_again,
    "inference mode": _averaged,
    "without gradient in autocast": _without_gradient_in_autocast,
    "without gradient, and gone on with": _gone_on_with,
    "written by views": _written_by_views,
    "a gradient that is that of its operators": lambda x: _Capped.apply(_Squared.apply(x), 2.0),
    "a function that leaves gradients out": lambda x: _Normed.apply(x) * x,
    "a function of an order": lambda x: _Ordered.apply(x, torch.tensor([3, 1, 0, 2, 7, 6, 5, 4]))[0] * x,
    "a function of what is positive": lambda x: _Rooted.apply(x * x + 0.1),
    "a function without gradients": lambda x: x * _reversed_unseen(x),
    "a reversed gradient": lambda x: x * _Reversed.apply(x),
    "a gradient by a mask": lambda x: _Masked.apply(x, x > 0) + x,
    "a straight-through estimator": lambda x: _Rounded.apply(x * 3) * x,
    "a spike with a slope": lambda x: _Spiked.apply(x, 4.0) * x,
    "two gradients of their own": lambda x: _Joined.apply(x, x.sin()),
    "checkpoints": lambda x: checkpoint(torch.sin, checkpoint(torch.exp, x, use_reentrant=True), use_reentrant=False),
    "diagonal": lambda x: torch.diagonal(x.view(8, 4, 4), 1, -1, 1) * 2,
    "windows": lambda x: x.unfold(1, 4, 2),
    "patches and back": lambda x: F.fold(F.unfold(_image(x), 2, stride=2), (4, 4), 2, stride=2) * _image(x),
    "indices behind": lambda x: x.view(8, 4, 4)[:, torch.arange(4), torch.tensor([3, 1, 1, 0])],
    "indices apart": lambda x: x.view(2, 4, 16)[torch.arange(2), :, torch.arange(2)],
    "columns at steps": _some_columns,
    "a mask is filled": _none_above,
    "diagonals are written": _diagonals_written,
    "tensors without dimensions": _of_no_dimensions,
    "index_fill, rows twice": lambda x: x.index_fill(0, ROWS[:5], x[5, 0]) + x.index_fill(1, torch.tensor([3, 3]), 0.5),
    "more is put where a mask holds": lambda x: x[0].masked_scatter(x > 0.2, OTHER + x.sum()),
    "index_put": lambda x: x.index_put((torch.arange(8), ROWS), torch.tensor(3.0)),
    "index_put behind": lambda x: x.view(2, 4, 16).index_put(
        (torch.tensor([[0], [1]]), torch.tensor([[1, 3]])), PUT, accumulate=True
    ),
    "index_add": lambda x: torch.zeros(4, 16).index_add(0, ROWS, x),
    "index_add, columns": lambda x: torch.zeros(8, 4).index_add(1, ROWS, x[:, :8]),
    "put where a mask holds": lambda x: x.masked_scatter(x > 0.2, OTHER + x.sum()),
    "rows put where a mask holds": lambda x: (x * 2).masked_scatter(
        (ROWS == 3)[:, None].expand(8, 16), torch.tanh(x[:4])
    ) + x.masked_scatter((ROWS == 0)[:, None], x[:2] * 3),
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
    "padded, and cut": lambda x: F.pad(_image(x), (-1, 2, 1, -2)) + F.pad(_image(x), (-1, 2, 1, -2), "reflect")
    + F.pad(_image(x), (-1, 2, 1, -2), "replicate") + F.pad(_image(x), (-1, 2, 1, -2), "circular"),
    "of one sample": lambda x: F.conv1d(x, FILTERS, padding=1) + F.max_pool1d(F.conv_transpose1d(x, FILTERS), 3, 1)
    + F.adaptive_avg_pool1d(x, 5).sum() + F.avg_pool1d(x, 2).sum() + F.adaptive_max_pool2d(x.view(2, 4, 16), 2).sum(),
    "attention of more keys": lambda x: F.scaled_dot_product_attention(
        x.view(2, 4, 16), x.view(2, 1, 4, 16), OTHER.view(2, 1, 4, 16)
    ),
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
    "whether any, whether all": lambda x: x * (x > 0.5).any(-1, keepdim=True) + x * (x > -1).all(0) + (x > 0).any(),
    "cumulated sums of exponentials": lambda x: torch.logcumsumexp(x * 30, -1) + torch.logcumsumexp(x, 0),
    "a density that torch checks": lambda x: F.gaussian_nll_loss(x, OTHER, x.exp(), full=True, eps=0.5),
    "a density with one variance a row": lambda x: F.gaussian_nll_loss(x, OTHER, SHARES[:, 0], reduction="sum"),
    "distributions": lambda x: Normal(x, F.softplus(x)).log_prob(OTHER) + kl_divergence(
        Independent(Normal(x, F.softplus(x)), 1), Independent(Normal(OTHER, torch.ones(16)), 1)
    )[:, None] - Categorical(logits=x).log_prob(CLASSES.clamp(min=0))[:, None],
    "cross-entropy, smoothed": lambda x: F.cross_entropy(x, CLASSES, label_smoothing=0.1),
    "cross-entropy, smoothed, sum": lambda x: F.cross_entropy(x, CLASSES, label_smoothing=0.1, reduction="sum"),
    "cross-entropy, smoothed, weighed": lambda x: F.cross_entropy(x, CLASSES, WEIGHS, label_smoothing=0.1),
    "cross-entropy of pixels, smoothed": lambda x: F.cross_entropy(
        x.view(2, 16, 4), CLASSES.view(2, 4), WEIGHS, label_smoothing=0.1, reduction="none"
    ),
    "cross-entropy of shares": lambda x: F.cross_entropy(x, SHARES, WEIGHS, label_smoothing=0.1),
    "cross-entropy of no label": lambda x: F.cross_entropy(x, torch.full_like(CLASSES, -100)) + x.sum(),
}  # fmt: skip


class _Of(nn.Module):
    """A function of what a layer makes of the input; as a loss the squares of its elements, each weighed otherwise."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function, self.layer = function, nn.Linear(16, 16)

    def forward(self, x: Tensor) -> Tensor:
        y = self.function(self.layer(x))
        return (y * y * torch.linspace(0.5, 1.5, y.numel()).view(y.shape)).sum()


@pytest.mark.parametrize("name", FUNCTIONS)
def test_an_operator_is_written_as_what_it_computes(name: str) -> None:
    torch.manual_seed(0)
    module, x = _Of(FUNCTIONS[name]), _numbers(0, 8, 16)
    loss, found = by_kernels(module, x)
    truth = module(x)
    truth.backward()
    np.testing.assert_allclose(loss, truth.detach().numpy(), rtol=1e-5)
    for n, p in module.named_parameters():
        assert p.grad is not None
        np.testing.assert_allclose(found[n], p.grad.numpy(), rtol=1e-3, atol=2e-5 * float(p.grad.abs().max()))


_WRITTEN = r"into the memory of a tensor that has a gradient.*\(.*test_operators.py:\d+\); write into a clone\(\)"
REFUSED: dict[str, tuple[Callable[[Tensor], Tensor], str]] = {
    "arguments that none takes": (lambda x: F.normalize(x.view(8, 4, 4), p=-1.0), "norm of order -1.0"),
    "a second result": (lambda x: F.max_pool2d(_image(x), 2, return_indices=True)[1] * 1.0, "no translation writes"),
    "corners of what is blurred": (
        lambda x: F.interpolate(_image(x), size=(2, 3), mode="bilinear", antialias=True, align_corners=True),
        "leave align_corners out",
    ),
    "bags of several sizes": (lambda x: F.embedding_bag(ROWS, x, torch.tensor([0, 3])), "bags of several sizes"),
    "windows of several sizes": (lambda x: F.adaptive_max_pool2d(_image(x), 3), "windows of one size"),
    "numbers that are drawn": (lambda x: x + torch.randn_like(x), "give it to the module as an input"),
    "a clipped gradient": (
        _Clipped.apply,
        r"_Clipped, .* \(.*test_operators.py:\d+\), gives a gradient of its own: it is not that of what its forward",
    ),
    "a gradient of another shape": (lambda x: _Scaled.apply(x, x.mean(0)), r"f\(x\)\.detach\(\) \+ \(x - x\.det"),
    "a hook on a gradient": (_hooked, r"a hook on the gradient of a tensor would not run \(.*test_operators.py:\d+\)"),
    "writing without gradient": (_clamped_unseen, _WRITTEN),
    "writing a row without gradient": (_row_unseen, _WRITTEN),
    "writing a view without gradient": (_view_unseen, _WRITTEN),
    "writing a list without gradient": (_scaled_together, _WRITTEN),
    "writing behind detach": (_added_behind_detach, _WRITTEN),
    "detached in place": (lambda x: x * x.sigmoid().detach_(), r"detach_\(\) is passed over .*; use detach\(\)"),
    "data of a tensor": (lambda x: x * x.data.abs(), r"\.data \(use \.detach\(\)\)"),
    "factors of a matrix": (lambda x: torch.linalg.cholesky(x.T @ x), "linalg_cholesky_ex.default has no translation"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_written_is_named(name: str) -> None:
    function, said = REFUSED[name]
    with pytest.raises(InputError, match=said):
        capture(_Of(function), (_numbers(0, 8, 16),))


class _With(nn.Module):
    """A function of a layer and the input."""

    def __init__(self, function: Callable[[nn.Module, Tensor], Tensor]) -> None:
        super().__init__()
        self.function, self.layer = function, nn.Linear(16, 16)

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self.layer, x)


def test_what_no_gradient_comes_through_is_not_detached() -> None:
    """As rotary tables, which are computed from positions under no_grad: their graphs are what they were."""

    def function(layer: nn.Module, x: Tensor) -> Tensor:
        with torch.no_grad():
            turned = torch.cos(x)
        return layer(turned).sum()

    types = [op.type for op in import_bytes(capture(_With(function), (_numbers(0, 8, 16),)).model).ops]
    assert "Cos" in types
    assert "planner::Detach" not in types


def test_a_step_is_captured_with_gradients_wherever_it_is_captured() -> None:
    with torch.no_grad():
        found = capture(_Of(torch.sin), (_numbers(0, 8, 16),))
    graph = import_bytes(found.model)
    assert active_tensors(graph, bind_rules(graph)[0]) >= set(found.parameters)


def test_autocast_inside_of_a_module_is_said_by_casts() -> None:
    def function(layer: nn.Module, x: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            y = layer(x).relu()
        return layer(y.float()).sum()

    graph = import_bytes(capture(_With(function), (_numbers(0, 8, 16),)).model)
    products = [op for op in graph.ops if op.type in ("MatMul", "Gemm")]
    assert [graph.tensors[op.outputs[0]].dtype for op in products] == ["bfloat16", "float32"]


def test_functions_are_torchs_own_again() -> None:
    before = torch.autograd.function._SingleLevelFunction.apply
    capture(_Of(torch.sin), (_numbers(0, 8, 16),))
    with pytest.raises(InputError):
        capture(_Of(_Clipped.apply), (_numbers(0, 8, 16),))
    assert torch.autograd.function._SingleLevelFunction.apply == before
    x = torch.ones(3, requires_grad=True)
    _Reversed.apply(x).sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [-1.0] * 3


class _Gelu(torch.autograd.Function):
    """As Bloom has it."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * 0.5 * (1.0 + torch.tanh(0.79788456 * x * (1 + 0.044715 * x * x)))

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        tanh = torch.tanh(0.79788456 * x * (1 + 0.044715 * x * x))
        slope = 0.5 * x * ((1 - tanh * tanh) * (0.79788456 + 0.1070322243 * x * x)) + 0.5 * (1 + tanh)
        return slope * gradient


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_functions_of_every_type_are_compared(dtype: torch.dtype) -> None:
    capture(_Of(_Gelu.apply).to(dtype), (_numbers(0, 8, 16).to(dtype),))
    with pytest.raises(InputError, match="_Clipped"):
        capture(_Of(_Clipped.apply).to(dtype), (_numbers(0, 8, 16).to(dtype),))


def test_a_function_leaves_a_dimension_a_symbol() -> None:
    module = _With(lambda layer, x: _Gelu.apply(layer(x)).mean())
    shapes = (({0: torch.export.Dim("b")},), {}, ())
    program, _ = exported_step(module, (_numbers(0, 8, 16),), {}, (), None, dynamic_shapes=shapes, whole=True)
    given = next(n for n in program.graph.nodes if n.name.startswith("inputs"))
    assert not isinstance(given.meta["val"].shape[0], int)


def test_capturing_leaves_the_users_own_generator_and_other_threads_alone() -> None:
    torch.manual_seed(7)
    wanted = torch.rand(3)
    torch.manual_seed(7)
    found: list[Any] = []

    def function(x: Tensor) -> Tensor:
        def train() -> None:
            y = torch.ones(3, requires_grad=True)
            _Reversed.apply(y).sum().backward()
            found.append(y.grad)

        other = threading.Thread(target=train)
        other.start()
        other.join()
        return _Capped.apply(x, 2.0)

    module = _Of(function)
    torch.manual_seed(7)
    capture(module, (_numbers(0, 8, 16),))
    assert torch.equal(torch.rand(3), wanted)
    assert [g.tolist() for g in found] == [[-1.0] * 3] * len(found)
    assert found
