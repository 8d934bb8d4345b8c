"""What a rank holds while it runs a step, in tensors that live."""

from __future__ import annotations

import gc
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.peer

from torch import nn  # noqa: E402

import planner.torch  # noqa: E402
from planner.runtime import buckets  # noqa: E402
from planner.runtime.live import LiveBytes  # noqa: E402
from planner.runtime.placements import local_tensor  # noqa: E402
from planner.runtime.workers import Context, Workers  # noqa: E402
from tests.torch.training import whole  # noqa: E402

LAYERS, WIDTH = 6, 256
MODES = ("eager", "traced")


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = x + self.down(nn.functional.gelu(self.up(self.norm(x))))
        return found


class Layers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks, self.head = nn.ModuleList(Layer() for _ in range(LAYERS)), nn.Linear(WIDTH, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        found: torch.Tensor = self.head(x)
        return found


def _peak(context: Context, strategy: str, mode: str, batch: int) -> tuple[int, int]:
    """Bytes beyond parameters that live at the fullest moment of the second step, and of all weights."""
    torch.set_num_threads(1)
    buckets.BUCKET_BYTES = 1 << 18  # far below the weights, as it is of large models
    torch.manual_seed(0)
    module = Layers()
    weights = sum(p.nbytes for p in module.parameters())
    x, y = torch.randn(batch, WIDTH), torch.randint(0, 8, (batch,))
    plan: Any = planner.torch.plan(
        module, x, targets=y, loss=nn.functional.cross_entropy, strategy=strategy, hardware="a100-80", cache=False
    )
    module = planner.torch.parallelize(module, plan, mode=mode)

    def step() -> None:
        module(x, y).backward()

    step()
    module.zero_grad()
    gc.collect()
    held = [local_tensor(p.detach()) for p in module.parameters()]
    with LiveBytes(held) as live:
        step()
    live.close()
    return live.peak - sum(p.nbytes for p in held), weights


def peak(strategy: str, mode: str, batch: int = 8) -> float:
    """In multiples of the weights."""
    with Workers(2) as workers:
        found = workers.call(_peak, strategy, mode, batch)
    return max(size / weights for size, weights in found)


@pytest.mark.parametrize("mode", MODES)
def test_gathered_weights_are_let_go_and_gathered_again(mode: str) -> None:
    """ZeRO 3 on two ranks: half the gradients, and two of six layers; not the weights of all."""
    assert peak("fsdp:micro_batch=4", mode) < 0.5 + 2.5 / LAYERS


@pytest.mark.parametrize("mode", MODES)
def test_micro_batches_add_to_one_set_of_gradients(mode: str) -> None:
    assert 1.0 <= peak("megatron:dp=2,zero=0,micro_batch=2", mode) < 1.5


@pytest.mark.parametrize("mode", MODES)
def test_gradients_are_handed_over_where_they_lie(mode: str) -> None:
    assert 1.0 <= peak("megatron:dp=2,zero=0,micro_batch=4", mode) < 1.5


@pytest.mark.parametrize("mode", MODES)
def test_recomputation_lowers_the_peak(mode: str) -> None:
    whole, again = (peak(f"megatron:dp=2,zero=0,micro_batch=1024{r}", mode, 2048) for r in ("", ",recompute=full"))
    assert again < 0.6 * whole


def test_live_bytes_are_those_of_storages_that_are_there() -> None:
    there = torch.zeros(4)
    with LiveBytes([there]) as live:
        a = torch.ones(256)
        b = a[:16]
        del a
        assert live.now == 16 + 1024
        del b
        gc.collect()
        assert live.now == 16
    assert live.peak == 16 + 1024


class Uneven(nn.Module):
    """A head with a row for each of two ranks, which lies in other buckets forward than backward."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.head = nn.Linear(12, 20), nn.Linear(20, 12), nn.Linear(12, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.head(self.second(self.first(x).tanh()).tanh())
        return found


def _gradients(context: Context, size: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """Of a step under ZeRO 3 with buckets of this size, and of the module alone."""
    torch.set_num_threads(1)
    buckets.BUCKET_BYTES = size
    torch.manual_seed(0)
    module = Uneven()
    x, y = torch.randn(8, 12), torch.randint(0, 2, (8,))
    nn.functional.cross_entropy(module(x), y).backward()
    alone = {n: p.grad.clone() for n, p in module.named_parameters() if p.grad is not None}
    module.zero_grad()
    plan: Any = planner.torch.plan(
        module, x, targets=y, loss=nn.functional.cross_entropy, strategy="fsdp", hardware="a100-80", cache=False
    )
    module = planner.torch.parallelize(module, plan)
    module(x, y).backward()
    return {n: whole(p.grad).numpy() for n, p in module.named_parameters() if p.grad is not None}, {
        n: g.numpy() for n, g in alone.items()
    }


@pytest.mark.parametrize("size", [1, 100, 900, 1000, 1200, 2000, 1 << 20])
def test_weights_gathered_again_may_lie_in_other_buckets(size: int) -> None:
    with Workers(2) as workers:
        found, truth = workers.call(_gradients, size)[0]
    assert found.keys() == truth.keys()
    for name, g in truth.items():
        assert found[name] == pytest.approx(g, abs=1e-6), name
