"""Indices of several dimensions: those that count through one are none, so that each sample is read by itself."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.peer

from torch import Tensor, nn  # noqa: E402

from planner.frontends import import_bytes  # noqa: E402
from planner.torch.capture import capture  # noqa: E402
from tests.torch.kernels import by_kernels  # noqa: E402

B, S, C = 4, 6, 3
X = torch.randn(B, S, C, generator=torch.Generator().manual_seed(0))
LAST = torch.tensor([5, 2, 3, 4])
_b, _s, _c = torch.arange(B), torch.arange(S), torch.arange(C)

CASES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "the last of each": lambda x, last: x[_b, last],
    "a mask for attention": lambda x, last: x[_b[:, None, None, None], _s[None, None, None, :]],
    "turned": lambda x, last: x[_b[None, :], _s[:, None]],
    "two of each": lambda x, last: x[_b[:, None], last[:, None] + torch.arange(2) - 2],
    "the same of each": lambda x, last: x[_b[:, None], torch.tensor([1, 1, 0])],
    "counted behind": lambda x, last: x[last[:, None] % B, _s],
    "counted twice": lambda x, last: x[_b[:, None], _s, (last[:, None] + _s) % C],
    "apart": lambda x, last: x[_b[:, None], :, _c],
    "apart, the last of each": lambda x, last: x[_b, :, last % C],
    "a part of a dimension": lambda x, last: x[_c[:, None], _c[:, None], _c],
    "not the first": lambda x, last: x[:, _s[:, None], _c],
    "not the first, of known places": lambda x, last: x[:, _s, torch.tensor([0, 1, 2, 0, 1, 2])],
    "turned around": lambda x, last: x[torch.tensor([1, 0, 3, 2]), _s[:, None], _c[:, None, None]],
    "backwards": lambda x, last: x[_b.flip(0), last],
}
OF_EACH = ["the last of each", "a mask for attention", "two of each", "counted twice"]


class Step(nn.Module):
    def __init__(self, of: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.of, self.weight = of, nn.Parameter(torch.linspace(0.5, 1.5, C))

    def forward(self, x: Tensor, last: Tensor) -> Tensor:
        y = self.of(x * self.weight, last)
        return (y * y * torch.linspace(0.5, 1.5, y[0].numel()).view(y[0].shape)).sum()


@pytest.mark.parametrize("name", CASES)
def test_a_step_that_indexes_is_the_modules_step(name: str) -> None:
    module = Step(CASES[name])
    truth = module(X, LAST)
    truth.backward()
    loss, found = by_kernels(module, X, LAST)
    np.testing.assert_allclose(loss, truth.detach().numpy(), rtol=1e-5)
    assert module.weight.grad is not None
    np.testing.assert_allclose(found["weight"], module.weight.grad.numpy(), rtol=1e-5)


def test_one_sample_is_read_by_itself_as_well_as_several() -> None:
    class Last(nn.Module):
        def forward(self, x: Tensor, last: Tensor) -> Tensor:
            return x[torch.arange(len(x)), last].square().mean()

    graph = import_bytes(capture(Last(), (X[:1], LAST[:1])).model, batch=3)
    (found,) = (op for op in graph.ops if op.type == "GatherND")
    assert found.attributes["batch_dims"] == 1


@pytest.mark.parametrize("batch", [1, 2, 8])
@pytest.mark.parametrize("name", OF_EACH)
def test_samples_are_read_by_themselves_whatever_their_number(name: str, batch: int) -> None:
    model = capture(Step(CASES[name]), (X, LAST)).model
    graph = import_bytes(model, batch=batch)
    assert graph.tensors["x"].shape == (batch, S, C)
    kinds = {op.type: op.attributes for op in graph.ops}
    assert kinds["GatherND"]["batch_dims"] >= 1 if "GatherND" in kinds else "Gather" not in kinds
