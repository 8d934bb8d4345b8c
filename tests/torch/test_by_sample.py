"""What is made of one sample alone is told from where samples meet, for steps that are run both ways."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.peer

from torch import Tensor, nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

from planner.errors import InputError  # noqa: E402
from planner.frontends import import_bytes  # noqa: E402
from planner.ir import Graph, Role  # noqa: E402
from planner.torch.agreement import check_micro_batches, known_constants  # noqa: E402
from planner.torch.capture import Capture, capture  # noqa: E402
from planner.verify.reference import run_ops  # noqa: E402
from planner.work.by_sample import meetings  # noqa: E402
from planner.work.constants import counted_on  # noqa: E402

B, S = 4, 5
DICE = torch.Generator().manual_seed(0)
X, LABELS = torch.randn(B, S, generator=DICE), torch.tensor([1, 2, 0, 3])
ROWS, SIDES = torch.rand(16, S, generator=DICE), torch.rand(S, 3, generator=DICE)

Scores = Callable[["Step", Tensor], Tensor]

# Scores of classes, one row for each sample or two.
BY_ITSELF: dict[str, Scores] = {
    "as it is": lambda m, y: y,
    "product": lambda m, y: y @ m.rows[:S],
    "softmax": lambda m, y: y.softmax(1) - y.mean(1, keepdim=True),
    "norm of its own": lambda m, y: F.layer_norm(y, (S,)) / y.norm(dim=1, keepdim=True),
    "sorted": lambda m, y: y.sort(1)[0].cumsum(1).flip(1),
    "samples last": lambda m, y: (m.rows[:S] @ y.T).T,
    "samples in the middle": lambda m, y: F.linear(y[None].expand(3, B, S).transpose(0, 1).reshape(B * 3, S), m.sides.T)
    .view(B, 9).sum(1, keepdim=True) * y,
    "behind each other": lambda m, y: torch.cat((y, 2 * y)).relu(),
    "beside each other": lambda m, y: torch.stack((y, 2 * y), 1).reshape(2 * B, S).relu().view(B, 2, S).sum(1),
    "rows of the batch": lambda m, y: y[torch.arange(B)] * m.rows[0],
    "a place in each": lambda m, y: y[torch.arange(B), y.argmax(1)][:, None] * y,
    "heads": lambda m, y: F.scaled_dot_product_attention(*[y.view(B, 1, S, 1)] * 3, is_causal=True).view(B, S),
    "a weight repeated": lambda m, y: y + m.rows[:1].expand(B, S),
    "the same for all": lambda m, y: y * torch.ones(B, 1).mean(0),
    "looked up": lambda m, y: F.embedding(y.argmax(1), m.rows),
    "convolved": lambda m, y: F.conv1d(y[:, None], m.rows[:1, None, :3], padding=1)[:, 0],
    "a margin": lambda m, y: y.index_put((torch.arange(B), y.argmax(1)), y.amax(1) - 0.3),
    "copies taken apart": lambda m, y: sum((F.softmax(z, 1) for z in (torch.cat((y, 2 * y)) @ m.rows[:S]).chunk(2)), y),
    "an expert's": lambda m, y: y * (y.argmax(1, keepdim=True) == torch.arange(S)) @ m.rows[:S],
}  # fmt: skip
MEETING: dict[str, Scores] = {
    "mean": lambda m, y: y - y.mean(0),
    "largest": lambda m, y: y / y.max(0)[0],
    "first": lambda m, y: y * y[0],
    "first, kept": lambda m, y: y * y[:1],
    "norm": lambda m, y: y / y.norm(),
    "softmax": lambda m, y: y.softmax(0),
    "sum so far": lambda m, y: y.cumsum(0),
    "other order": lambda m, y: y * y.flip(0),
    "neighbours": lambda m, y: y * F.pad(y[1:], (0, 0, 0, 1)),
    "halves": lambda m, y: y.view(2, B // 2, S).sum(0).repeat(2, 1),
    "batch norm": lambda m, y: F.batch_norm(y, None, None, training=True),
    "group norm": lambda m, y: F.group_norm(y.T[None], 1)[0].T,
    "attention": lambda m, y: F.scaled_dot_product_attention(y[None], y[None], y[None])[0],
    "attention, as written": lambda m, y: (y @ y.T).softmax(1) @ y,
    "correlations": lambda m, y: y @ (y.T @ y),
    "convolved": lambda m, y: F.conv1d(y.T[None], m.rows[:S, :, None].expand(S, S, 3), padding=1)[0].T,
    "copies in two orders": lambda m, y: torch.cat((y, 2 * y)) + y.repeat_interleave(2, 0),
    "triangle": lambda m, y: y.tril(),
    "shifted": lambda m, y: F.pad(y, (0, 0, 1, 0))[:-1],
    "pairs of sums": lambda m, y: torch.einsum("bi,cj->ij", y, y)[0] + y,
    "other rows at times": lambda m, y: y[torch.where(y.argmax(1) < 0, torch.arange(B), 0)],
    "so many of what is alike": lambda m, y: y + (torch.ones(B, 1) * m.rows[0]).cumsum(0),
    "most": lambda m, y: torch.where(y > y.mean(), y, -y),
    "distances": lambda m, y: y * (y[:, None] - y).abs().sum((1, 2))[:, None],
}
ROWS_TAKEN: dict[str, Scores] = {
    "first": lambda m, y: y + m.rows[:B],
    "last": lambda m, y: y + m.rows[-B:],
    "of a product": lambda m, y: y + (m.rows @ m.rows[:S])[2 : 2 + B],
    "all": lambda m, y: y + m.four,
    "of all numbers": lambda m, y: y + m.rows.reshape(-1)[: B * S].view(B, S),
}


class Step(nn.Module):
    def __init__(self, scores: Scores) -> None:
        super().__init__()
        self.scores, self.rows, self.sides = scores, nn.Parameter(ROWS.clone()), nn.Parameter(SIDES.clone())
        self.four = nn.Parameter(ROWS[:B].clone())

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        scores = self.scores(self, x * self.rows[0])
        return F.cross_entropy(scores, labels.repeat(len(scores) // B))


def _captured(scores: Scores) -> tuple[Capture, Graph, Graph]:
    found = capture(Step(scores), (X, LABELS))
    return found, import_bytes(found.model, batch=2), import_bytes(found.model)


def _losses(part: Graph, whole: Graph) -> tuple[float, float]:
    """That of the whole batch, and the mean of its parts'."""
    data = dict(zip((n for n in whole.inputs if whole.tensors[n].role is Role.INPUT), (X, LABELS), strict=True))

    def loss(graph: Graph, rows: slice) -> float:
        given = {n: v.numpy()[rows] for n, v in data.items()}
        for t in graph.parameters:
            given[t.name] = (SIDES if t.shape == (S, 3) else ROWS[: (t.shape or (16,))[0]]).numpy()
        known = {t.name: np.asarray(t.value) for t in graph.tensors.values() if t.value is not None}
        return float(run_ops(graph, known | given)[graph.loss or ""])

    return loss(whole, slice(B)), (loss(part, slice(2)) + loss(part, slice(2, B))) / 2


@pytest.mark.parametrize("name", BY_ITSELF)
def test_a_sample_by_itself_meets_none(name: str) -> None:
    found, part, whole = _captured(BY_ITSELF[name])
    together, apart = _losses(part, whole)
    assert together == pytest.approx(apart, rel=1e-5)
    assert not list(meetings(part, whole, counted_on(part, whole, known_constants(found, whole))))


@pytest.mark.parametrize("name", MEETING)
def test_where_samples_meet_is_said(name: str) -> None:
    found, part, whole = _captured(MEETING[name])
    together, apart = _losses(part, whole)
    assert together != pytest.approx(apart, rel=1e-4)
    assert {m.kind for m in meetings(part, whole, counted_on(part, whole, known_constants(found, whole)))} == {
        "samples"
    }
    with pytest.warns(UserWarning, match="samples of a micro-batch meet each other, or are chosen by their places"):
        check_micro_batches(found, part, whole, 2)


@pytest.mark.parametrize("name", ROWS_TAKEN)
def test_rows_of_a_weight_that_are_taken_for_the_batch_are_refused(name: str) -> None:
    found, part, whole = _captured(ROWS_TAKEN[name])
    together, apart = _losses(part, whole)
    assert together != pytest.approx(apart, rel=1e-4)
    with pytest.raises(InputError, match=r" takes as many rows of a weight as the batch has samples"):
        check_micro_batches(found, part, whole, 2)
