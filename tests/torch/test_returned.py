"""A parallel module returns its own loss in the way in which the module returns it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytestmark = [pytest.mark.peer, pytest.mark.usefixtures("process_alone")]

from torch import Tensor, nn  # noqa: E402
from torch.nn.functional import cross_entropy  # noqa: E402

import planner.torch  # noqa: E402
from planner.torch.capture.returned import NotReturned, Returned, loss_of  # noqa: E402

X = torch.randn(8, 16, generator=torch.Generator().manual_seed(0))
Y = torch.arange(8)


class _Named(dict[str, Any]):
    """As Hugging Face's outputs."""

    def __getattr__(self, name: str) -> Any:
        return self[name]


class Classifier(nn.Module):
    def __init__(self, returns: Callable[[Tensor, Tensor], Any]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers, self.returns = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 8)), returns

    def forward(self, x: Tensor, y: Tensor) -> Any:
        scores = self.layers(x)
        return self.returns(scores, cross_entropy(scores, y))


def _both(returns: Callable[[Tensor, Tensor], Any]) -> tuple[Any, Any]:
    """What the module returns, and what it returns when it is parallel."""
    module = Classifier(returns)
    alone = module(X, Y)
    plan = planner.torch.plan(module, (X, Y), hardware="a100-80", cache=False, pin=["rest=data_parallel"])
    return alone, planner.torch.parallelize(module, plan)(X, Y)


def test_a_loss_alone_is_a_tensor() -> None:
    alone, found = _both(lambda scores, loss: loss)
    assert isinstance(found, Tensor)
    assert torch.allclose(found, alone)
    found.backward()


def test_scores_and_loss_are_unpacked() -> None:
    (_, alone), found = _both(lambda scores, loss: (scores, loss))
    scores, loss = found
    assert torch.allclose(loss, alone)
    loss.backward()
    with pytest.raises(AttributeError, match=r"result 1 of 2: a parallel step returns its loss alone.*'argmax'"):
        scores.argmax(-1)


def test_a_loss_in_front_is_in_front() -> None:
    alone, found = _both(lambda scores, loss: (loss, scores, scores))
    assert len(found) == 3
    assert torch.allclose(found[0], alone[0])
    assert isinstance(found[2], NotReturned)


@pytest.mark.parametrize("kind", [dict, _Named])
def test_a_named_loss_has_its_name(kind: Callable[..., Any]) -> None:
    alone, found = _both(lambda scores, loss: kind(loss=loss, scores=scores))
    for loss in (found["loss"], found.loss, found[0]):
        assert torch.allclose(loss, alone["loss"])
    with pytest.raises(KeyError, match="scores"):
        found["scores"]


def test_what_has_no_loss_is_taken_whole() -> None:
    scores = torch.ones(4, 4)
    for found in (scores, (scores, scores), (scores, torch.ones(()), torch.ones(())), [scores], None):
        assert Returned.of(found) == Returned()
        assert loss_of(found) is found
