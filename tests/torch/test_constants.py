"""Known numbers of a step that is made of micro-batches: those of one sample are not taken for another's."""

from __future__ import annotations

from collections.abc import Callable

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.peer

from torch import Tensor, nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

from planner.frontends import import_bytes  # noqa: E402
from planner.torch.agreement import known_constants  # noqa: E402
from planner.torch.capture import capture  # noqa: E402
from planner.work.constants import constants_of_samples, part_of  # noqa: E402

B, S = 4, 5
X = torch.randn(B, S, generator=torch.Generator().manual_seed(0))

ALIKE: dict[str, Callable[[Tensor], Tensor]] = {
    "repeated": lambda y: y * torch.arange(5.0).repeat(B, 1),
    "repeated behind each other": lambda y: y.reshape(-1) * torch.arange(5.0).repeat(B),
    "places within each": lambda y: y.gather(1, torch.tensor([[1, 0]]).repeat(B, 1)),
    "places of all elements": lambda y: y.reshape(-1)[torch.arange(B * S)],
    "rows, as computed": lambda y: y.reshape(-1)[(torch.arange(B) * S)[:, None] + y.argmax(1)[:, None]],
    "rows": lambda y: y[torch.arange(B)] + y,
    "pairs of samples": lambda y: F.cross_entropy(y @ y.mT, torch.arange(B)),
    "many": lambda y: y.repeat(1, 4000).gather(1, torch.arange(S * 4000).flip(0).repeat(B, 1)),
}
UNLIKE: dict[str, Callable[[Tensor], Tensor]] = {
    "weights of samples": lambda y: y * torch.arange(1.0, B + 1)[:, None],
    "weights of elements": lambda y: y.reshape(-1) * torch.linspace(0, 1, B * S),
    "places in each": lambda y: y.gather(1, torch.arange(B)[:, None]),
    "a place of each": lambda y: y[torch.arange(B), torch.arange(B)],
    "a place of each, as computed": lambda y: y[torch.arange(B), (torch.arange(B) + y.argmax(1)) % S],
    "labels": lambda y: F.cross_entropy(y, torch.arange(B)),
    "limits": lambda y: torch.where(y.argmax(1, keepdim=True) < torch.arange(B)[:, None], y, -y),
    "many": lambda y: y.repeat(1, 4000) * torch.linspace(0, 1, B * S * 4000).view(B, -1),
}


class Step(nn.Module):
    def __init__(self, of: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.of, self.weight = of, nn.Parameter(torch.ones(S))

    def forward(self, x: Tensor) -> Tensor:
        return self.of(x * self.weight).mean()


def _found(step: Callable[[Tensor], Tensor], batch: int) -> list[str]:
    found = capture(Step(step), (X,))
    part, whole = import_bytes(found.model, batch=batch), import_bytes(found.model)
    return list(constants_of_samples(part, whole, known_constants(found, whole)))


@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("name", ALIKE)
def test_numbers_that_every_sample_has_are_no_samples(name: str, batch: int) -> None:
    assert _found(ALIKE[name], batch) == []


@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("name", UNLIKE)
def test_numbers_of_samples_are_found(name: str, batch: int) -> None:
    assert _found(UNLIKE[name], batch)


def test_a_part_is_what_all_parts_have_whether_behind_or_beside_each_other() -> None:
    side_by_side = torch.tensor([[7, 7, 7, 8, 8, 8]]).numpy()
    behind = torch.tensor([[7, 8, 7, 8, 7, 8]]).numpy()
    for whole in (side_by_side, behind):
        found, steps = part_of(whole, (1, 2))
        assert found is not None
        assert (found.tolist(), steps) == ([[7, 8]], ())
    counted, steps = part_of(torch.arange(6)[None].numpy(), (1, 2))
    assert counted is not None
    assert (counted.tolist(), steps) == ([[0, 1]], (2,))
    assert part_of(torch.tensor([[7, 8, 9, 7, 8, 8]]).numpy(), (1, 2)) == (None, ())
