"""Rows that a mask chooses: a step that adds them up is the module's step, and nothing sees those that do not count."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.peer

from torch import Tensor, nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

from planner.errors import InputError  # noqa: E402
from planner.torch.capture import capture  # noqa: E402
from tests.torch.kernels import by_kernels  # noqa: E402

_GENERATOR = torch.Generator().manual_seed(0)
X = torch.randn(8, 6, 4, generator=_GENERATOR)
LABELS = torch.randint(0, 4, (8, 6), generator=_GENERATOR)
MASK = torch.rand(8, 6, generator=_GENERATOR) > 0.5
SOME = torch.randn(int(MASK.sum()), 4, generator=_GENERATOR)

Function = Callable[[nn.Module, Tensor, Tensor, Tensor, Tensor], Tensor]


def _added_to(layer: nn.Module, x: Tensor, labels: Tensor, mask: Tensor, some: Tensor) -> Tensor:
    """As Qwen3-VL adds features of images to those of their tokens."""
    h = layer(x).clone()
    h[mask, :] = h[mask, :].clone() + some
    return (h * h).sum()


def _written_in_between(layer: nn.Module, x: Tensor, labels: Tensor, mask: Tensor, some: Tensor) -> Tensor:
    h = layer(x) * 1
    before = h[mask]
    h[mask] = before * 2
    return (before * h[mask]).sum()


def _chances(layer: nn.Module, x: Tensor, labels: Tensor, mask: Tensor, some: Tensor) -> Tensor:
    log = F.log_softmax(layer(x)[mask], dim=-1)
    return -log.gather(1, labels[mask][:, None]).squeeze(1).mean()


def _where_positive(layer: nn.Module, x: Tensor, labels: Tensor, mask: Tensor, some: Tensor) -> Tensor:
    y = layer(x)
    return y[y > 0.1].log().sum() + (1 / y[y < -0.1]).mean() + y[y > 0.1].sqrt().sum()


def _by_places(layer: nn.Module, x: Tensor, labels: Tensor, mask: Tensor, some: Tensor) -> Tensor:
    at = torch.nonzero(mask.view(-1)).squeeze(-1)
    return F.cross_entropy(layer(x).view(-1, 4)[at], labels.view(-1).index_select(0, at))


def _last_of_each_sample(layer: nn.Module, x: Tensor, labels: Tensor, mask: Tensor, some: Tensor) -> Tensor:
    """As Hugging Face's classifiers read what stands at the end of a sequence; two places count of each."""
    place = torch.arange(6)
    ends = (place == labels[:, :1]) | (place == 5)
    chosen = layer(x)[ends, :]
    rows = chosen.view(x.size(0), -1, x.size(-1))
    return F.cross_entropy(rows[:, -1, :], labels[:, 0]) + (chosen.reshape(8, -1, 4)[:, 0] ** 2).sum()


def _row_written(h: Tensor, mask: Tensor) -> Tensor:
    h = h * 1
    h[mask] = h[mask].sum(-1, keepdim=True)
    return h.square().sum()


STEPS: dict[str, Function] = {
    "cross-entropy": lambda f, x, y, m, s: F.cross_entropy(f(x)[m], y[m]),
    "cross-entropy of labels that count": lambda f, x, y, m, s: F.cross_entropy(f(x)[y != 2], y[y != 2]),
    "cross-entropy of lines": lambda f, x, y, m, s: F.cross_entropy(
        f(x)[m].view(-1, 4), y[m].view(-1), label_smoothing=0.1
    ),
    "cross-entropy, summed by itself": lambda f, x, y, m, s: (
        F.cross_entropy(f(x)[m], y[m], reduction="none").sum() / m.sum()
    ),
    "cross-entropy of shares": lambda f, x, y, m, s: F.cross_entropy(f(x)[m], x[m].softmax(-1)),
    "nll": lambda f, x, y, m, s: F.nll_loss(f(x)[m].log_softmax(-1), y[m], reduction="sum"),
    "a layer of chosen rows": lambda f, x, y, m, s: F.cross_entropy(f(x[m]), y[m]),
    "norms of chosen rows": lambda f, x, y, m, s: (F.layer_norm(f(x[m]), (4,)) * s).sum(-1).mean(),
    "squares": lambda f, x, y, m, s: F.mse_loss(f(x)[m], x[m]),
    "squares, a slice": lambda f, x, y, m, s: ((f(x)[m, 1:3] - x[m][:, 1:3]) ** 2).mean(),
    "binary": lambda f, x, y, m, s: F.binary_cross_entropy_with_logits(f(x)[m], (x > 0).float()[m], reduction="sum"),
    "masked_select": lambda f, x, y, m, s: f(x).sum(-1).masked_select(m).mean(),
    "a sum": lambda f, x, y, m, s: f(x)[m].sum() / m.sum(),
    "means of columns": lambda f, x, y, m, s: (f(x)[m].mean(0) * f(x)[m].sum(dim=0)).sum(),
    "beside as many rows as count": lambda f, x, y, m, s: ((f(x)[m] - s) * torch.linspace(0, 1, 4)).abs().sum(),
    "places": _by_places,
    "the last of each sample": _last_of_each_sample,
    "their number": lambda f, x, y, m, s: (f(x)[m] ** 2).sum() / f(x)[m].shape[0] + f(x)[m].sum() / x[m].numel(),
    "views of as many": lambda f, x, y, m, s: (f(x)[m].view(x[m].size(0), 2, -1).sum(1) * s[:, 2:]).sum(),
    "places of two dimensions": lambda f, x, y, m, s: (f(x)[torch.where(m)] ** 2).sum(),
    "added to": _added_to,
    "written in between": _written_in_between,
    "chances": _chances,
    "where positive": _where_positive,
    "truths": lambda f, x, y, m, s: f(x).sum() * ((~(y > 1)[m]).float().sum() + ((x > 0)[m] + (x < 0.5)[m]).sum()),
    "a truth that decides": lambda f, x, y, m, s: torch.where((x > 0)[m], f(x)[m], -x[m]).sum(),
    "divided by labels that count": lambda f, x, y, m, s: (f(x)[y > 0] / y[y > 0][:, None]).sum(),
    "rows without numbers": lambda f, x, y, m, s: f(x.masked_fill(~m[..., None], float("nan"))[m]).square().mean(),
    "scores without numbers": lambda f, x, y, m, s: F.cross_entropy(
        (x * f(x[:1])).masked_fill(~m[..., None], float("-inf"))[m], y[m]
    ),
    "chances of labels that count": lambda f, x, y, m, s: (
        F.log_softmax(f(x)[y != 2], -1).gather(1, torch.where(y == 2, -100, y)[y != 2][:, None]).sum()
    ),
    "flattened behind": lambda f, x, y, m, s: f(x)[m].view(-1, 2, 1, 2).flatten(1, 2).logsumexp(-1).mean(),
    "of the type of rows": lambda f, x, y, m, s: (f.weight.type_as(f(x)[m]) ** 2).sum() + f.bias.to(x[m]).sum(),
    "shares of the classes of columns": lambda f, x, y, m, s: (
        F.cross_entropy(f(x)[m], x[m].softmax(1), reduction="sum") + F.smooth_l1_loss(f(x)[m], s, beta=0.5)
    ),
    "a row is written": lambda f, x, y, m, s: _row_written(f(x), m),
    "none at all": lambda f, x, y, m, s: f(x)[m & ~m].sum() + f(x).sum(),
}


class Step(nn.Module):
    def __init__(self, of: Function) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.of, self.layer = of, nn.Linear(4, 4)

    def forward(self, x: Tensor, labels: Tensor, mask: Tensor, some: Tensor) -> Tensor:
        return self.of(self.layer, x, labels, mask, some)


@pytest.mark.parametrize("name", STEPS)
def test_a_step_of_chosen_rows_is_the_modules_step(name: str) -> None:
    module, given = Step(STEPS[name]), (X, LABELS, MASK, SOME)
    truth = module(*given)
    truth.backward()
    loss, found = by_kernels(module, *given)
    np.testing.assert_allclose(loss, truth.detach().numpy(), rtol=1e-5)
    for n, p in module.named_parameters():
        assert p.grad is not None
        np.testing.assert_allclose(found[n], p.grad.numpy(), rtol=1e-4, atol=1e-5 * float(p.grad.abs().max()))


def _of_a_mask_that_is_written(layer: nn.Module, x: Tensor, labels: Tensor, mask: Tensor, some: Tensor) -> Tensor:
    counts = labels != 2
    first = layer(x)[counts]
    counts[0] = False
    return (first * x[counts]).sum()


_NOT_BY_ROW = "none that computes each row by itself"
REFUSED: dict[str, tuple[Function, str]] = {
    "the middle of each sample": (
        lambda f, x, y, m, s: f(x)[m].view(8, -1, 4)[:, 1].sum(),
        r"__getitem__ of rows.*: sorted by samples, the last or the first may be taken",
    ),
    "the sum of each sample": (
        lambda f, x, y, m, s: f(x)[m].view(8, -1, 4).sum(1).sum(),
        r"sum of rows.*: sorted by samples, the last or the first may be taken",
    ),
    "all by sample": (lambda f, x, y, m, s: f(x)[m].view(8, -1, 4), "the result"),
    "two masks": (
        lambda f, x, y, m, s: (f(x)[m] * x[y != 2]).sum(),
        r"\(.*test_masked_rows.py:\d+\): they are chosen by two masks; compute the mask once",
    ),
    "a mask that is written": (_of_a_mask_that_is_written, "they are chosen by two masks"),
    "as many ones": (lambda f, x, y, m, s: f(x).sum() * torch.ones(x[m].shape[0]).sum(), "a number read from a tensor"),
    "their length": (lambda f, x, y, m, s: f(x)[m].sum() / len(f(x)[m]), "__len__ of rows that a mask chooses"),
    "what mixes rows": (lambda f, x, y, m, s: (f(x)[m].T @ x[m]).sum(), "T of rows that a mask chooses"),
    "a cumulated sum": (lambda f, x, y, m, s: f(x)[m].cumsum(0).sum(), _NOT_BY_ROW),
    "a softmax of rows": (lambda f, x, y, m, s: f(x)[m].softmax(0).square().sum(), _NOT_BY_ROW),
    "put together": (lambda f, x, y, m, s: torch.cat([f(x)[m], s]).sum(), "cat of rows that a mask chooses"),
    "beside another dimension": (lambda f, x, y, m, s: (f(x).sum(-1)[m] * x[:, 0]).sum(), "another number of dim"),
    "a flat line": (lambda f, x, y, m, s: (f(x)[m].reshape(-1) ** 2).sum(), "reshape of rows that a mask chooses"),
    "lines of several rows": (lambda f, x, y, m, s: f(x)[m].view(m.sum() * 2, -1).amax(-1).sum(), "view of rows"),
    "written into": (lambda f, x, y, m, s: F.relu(f(x)[m], inplace=True).sum(), "use its result instead"),
    "rows by rows": (lambda f, x, y, m, s: f(x)[m][..., 0, :].sum(), _NOT_BY_ROW),
    "weights of squares": (lambda f, x, y, m, s: F.huber_loss(f(x)[m], x[m], weight=x[m].abs()), "are known here"),
    "shares of columns": (
        lambda f, x, y, m, s: F.cross_entropy(f(x)[m[:, 0]], x[m[:, 0]].softmax(1)), "expected rows of scores"
    ),
    "truths that look up": (lambda f, x, y, m, s: (s * f(x).sum())[(y > 1)[m]].sum(), _NOT_BY_ROW),
    "the result": (lambda f, x, y, m, s: f(x)[m], "the result of rows that a mask chooses"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_would_see_rows_that_do_not_count_is_refused(name: str) -> None:
    function, said = REFUSED[name]
    with pytest.raises(InputError, match=said):
        capture(Step(function), (X, LABELS, MASK, SOME))
