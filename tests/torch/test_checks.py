"""Modules that check values: what only raises, warns or prints is left out, and what computes is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.peer

from torch import Tensor, nn  # noqa: E402

from planner.errors import InputError  # noqa: E402
from planner.torch.capture import capture  # noqa: E402
from tests.torch.checked import CHECKS, FLOWS  # noqa: E402
from tests.torch.kernels import by_kernels  # noqa: E402

IDS = torch.randint(0, 32, (4, 8), generator=torch.Generator().manual_seed(0))


class Step(nn.Module):
    def __init__(self, of: Callable[[Tensor, Tensor], Any]) -> None:
        super().__init__()
        self.of, self.embedding = of, nn.Embedding(32, 4)
        nn.init.normal_(self.embedding.weight, generator=torch.Generator().manual_seed(1))

    def forward(self, ids: Tensor) -> Tensor:
        h = self.embedding(ids)
        found = self.of(ids, h)
        h = h if found is None else found
        return (h * h).mean()


@pytest.mark.parametrize("check", CHECKS, ids=lambda s: s.__name__.strip("_"))
def test_a_step_without_its_checks_is_the_modules_step(check: Any) -> None:
    module = Step(check)
    truth = module(IDS)
    truth.backward()
    with pytest.warns(UserWarning, match=r"leaves out checks of values.*checked\.py:\d+"):
        loss, found = by_kernels(module, IDS)
    np.testing.assert_allclose(loss, truth.detach().numpy(), rtol=1e-5)
    want = module.embedding.weight.grad
    assert want is not None
    np.testing.assert_allclose(found["embedding.weight"], want.numpy(), rtol=1e-5, atol=1e-9)


@pytest.mark.parametrize("flow", FLOWS, ids=lambda s: s.__name__.strip("_"))
def test_a_branch_that_computes_is_refused(flow: Any) -> None:
    with pytest.raises(InputError, match=r"cannot follow it.*data-dependent"):
        capture(Step(flow), (IDS,))


def test_a_check_in_the_loss_is_left_out() -> None:
    def loss(found: Tensor, target: Tensor) -> Tensor:
        if torch.isnan(found).any():
            raise ValueError("no number")
        return (found - target) ** 2

    with pytest.warns(UserWarning, match="leaves out checks of values"):
        capture(Step(_computes_nothing), (IDS,), {}, (torch.tensor(1.0),), loss=loss)


def _computes_nothing(ids: Tensor, h: Tensor) -> None:
    return None


def test_a_check_of_what_is_known_is_made() -> None:
    def known(ids: Tensor, h: Tensor) -> None:
        assert torch.tensor(3) > 4, "three is less"

    with pytest.raises(InputError, match="three is less"):
        capture(Step(known), (IDS,))


def test_a_check_of_what_is_fixed_is_made() -> None:
    class Fixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(3))

        def forward(self, x: Tensor, sizes: Tensor) -> Tensor:
            assert sizes.sum() == x.shape[0], "the sizes do not add up"
            return (x * self.weight).sum()

    capture(Fixed(), (torch.ones(8, 3), torch.tensor([3, 5])), fixed=("sizes",))
    with pytest.raises(InputError, match="the sizes do not add up"):
        capture(Fixed(), (torch.ones(8, 3), torch.tensor([3, 4])), fixed=("sizes",))
