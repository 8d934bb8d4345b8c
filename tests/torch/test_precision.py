"""Gradients of steps that are computed in bfloat16, beside those in single precision."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.peer

from torch import Tensor  # noqa: E402
from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402
from torch.nn import functional  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

import planner.torch  # noqa: E402
from planner.operators.loss.torch import RowLosses  # noqa: E402
from planner.runtime.planned import planned_traffic  # noqa: E402
from planner.runtime.workers import Context, Workers  # noqa: E402
from planner.torch.delivery import multiply  # noqa: E402
from tests.torch.training import whole  # noqa: E402

SAMPLES, WIDTH, CLASSES = 64, 32, 8


@pytest.fixture(scope="module")
def workers() -> Iterator[Workers]:
    with Workers(2) as found:
        yield found


class Layers(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = torch.nn.Linear(WIDTH, 64), torch.nn.Linear(64, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.down(functional.gelu(self.up(x)))
        return found


def _apart(found: dict[str, Tensor], truth: dict[str, Tensor]) -> float:
    squares = [(float((found[n].float() - g).square().sum()), float(g.square().sum())) for n, g in truth.items()]
    return math.sqrt(sum(a for a, _ in squares) / sum(b for _, b in squares))


def _error(context: Context, strategy: str, mode: str) -> tuple[float, Any, Any]:
    """Of all gradients beside those in single precision; what was sent, and what is planned."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    module = Layers()
    x, y = torch.randn(SAMPLES, WIDTH), torch.randint(0, CLASSES, (SAMPLES,))
    alone = copy.deepcopy(module)
    functional.cross_entropy(alone(x), y).backward()
    truth = {n: p.grad.clone() for n, p in alone.named_parameters() if p.grad is not None}
    plan = planner.torch.plan(module, x, targets=y, loss=functional.cross_entropy, precision="bf16", cache=False,
                              hardware="a100-80", strategy=strategy)  # fmt: skip
    module = planner.torch.parallelize(module, plan, mode=mode)
    runner: Any = module._planner
    runner.context.ledger.clear()
    module(x, y).backward()
    found = {n: whole(p.grad) for n, p in module.named_parameters()}
    assert all(p.grad.dtype == torch.float32 for p in module.parameters())
    return _apart(found, truth), dict(runner.context.ledger.steps), planned_traffic(runner.stage)


@pytest.mark.parametrize(
    ("kind", "mode"), [("ddp", "eager"), ("ddp", "traced"), ("zero2", "eager"), ("fsdp", "eager"), ("fsdp", "traced")]
)
def test_gradients_of_many_micro_batches_are_as_exact_as_those_of_few(workers: Workers, kind: str, mode: str) -> None:
    """They are added up in single precision, and sent in the plan's."""
    few, many = (workers.call(_error, f"{kind}:micro_batch={n}", mode)[0] for n in (16, 1))
    assert many[0] < 1.1 * few[0] < 0.01
    if mode == "eager":
        assert many[1] == many[2]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("weighted", [False, True])
def test_the_gradient_of_cross_entropy_is_pytorchs(dtype: torch.dtype, weighted: bool) -> None:
    """Also of rows that are nearly certain, where p and 1 are the same number in bfloat16."""
    torch.manual_seed(0)
    scores = (torch.randn(40, 7, 3) * 4).to(dtype)
    labels, weights = torch.randint(0, 7, (40, 3)), torch.rand(7).to(dtype) if weighted else None
    scores[0, :, 0], scores[0, 2, 0], labels[0, 0] = 0, 9, 2
    given = torch.randn(40, 3).to(dtype)

    def gradient(function: Any) -> Tensor:
        x = scores.clone().requires_grad_()
        function(x).backward(given)
        assert x.grad is not None
        return x.grad

    found = gradient(lambda x: RowLosses.apply(x, labels, weights))
    wanted = gradient(lambda x: functional.cross_entropy(x, labels, weights, reduction="none"))
    rtol, atol = {torch.float64: (1e-12, 1e-14), torch.float32: (1e-6, 1e-7)}.get(dtype, (2**-7, 1e-7))
    torch.testing.assert_close(found, wanted, rtol=rtol, atol=atol)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("factor", [65536.0, 1 / 3])
def test_gradients_are_multiplied_in_single_precision_at_least(dtype: torch.dtype, factor: float) -> None:
    """Also by what the type cannot hold: a gradient scaler's factor in half precision."""
    given = [torch.tensor([1e-4, 3e-5, 0.0], dtype=dtype), torch.full((2, 2), 1e-3, dtype=dtype)]
    by = torch.tensor(factor)
    wanted = [(g.to(torch.promote_types(dtype, torch.float32)) * by).to(dtype) for g in given]
    multiply(given, by)
    torch.testing.assert_close(given, wanted, rtol=0, atol=0)


class _Called(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(func.overloadpacket.__name__)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_gradients_on_gpus_are_multiplied_by_kernels_that_pytorch_has_there(dtype: torch.dtype) -> None:
    """Of gradient scalers' kernel there is none for bf16, which tensors without contents do not show."""
    with FakeTensorMode(), _Called() as called:
        given = [torch.empty(3, dtype=dtype, device="cuda"), torch.empty(2, 2, dtype=dtype, device="cuda")]
        multiply(given, torch.empty((), device="cuda"))
    scaled = "_amp_foreach_non_finite_check_and_unscale_" in called.names
    assert scaled == (dtype is torch.float16)
    assert ("_foreach_mul_" in called.names) != scaled
