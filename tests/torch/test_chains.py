"""Operators that autograd follows in chains: gradients are those of operators by themselves, in fewer calls."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.peer

from torch import Tensor, nn  # noqa: E402

import planner.torch  # noqa: E402
from planner.ir import Layout, Reduction  # noqa: E402
from planner.lowering import Free  # noqa: E402
from planner.runtime.chain import Chain  # noqa: E402
from planner.runtime.workers import Context, Workers  # noqa: E402
from tests.torch.training import KINDS, STAGES, made, planned, worst  # noqa: E402

KEYS = {n: (n, Layout.replicated(1)) for n in ("x", "y", "z", "w")}


@pytest.fixture(scope="module")
def workers() -> Iterator[Workers]:
    with Workers(4) as found:
        yield found


def _both(context: Context, name: str, options: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any], int, int]:
    """Gradients of a step in chains and with every instruction watched, and how often autograd was called for each."""
    torch.set_num_threads(1)
    case = made(name)
    runner: Any = planner.torch.parallelize(case.module, planned(case, options))._planner
    calls: list[int] = [0]
    plain = torch.autograd.grad

    def counted(*arguments: Any, **keywords: Any) -> Any:
        calls[0] += 1
        return plain(*arguments, **keywords)

    torch.autograd.grad = counted
    try:
        found = []
        for watch in (None, lambda _: None):
            calls[0] = 0
            given = case.inputs + case.targets if case.targets else case.inputs
            taken = runner.stage.step(runner.feed(given, case.kwargs), watch)
            found.append(({n: g.float().numpy().copy() for n, g in taken.gradients.items()}, calls[0]))
    finally:
        torch.autograd.grad = plain
    (chained, few), (single, many) = found
    return chained, single, few, many


@pytest.mark.parametrize("name", ["gpt", "resnet", "einsum_moe"])
@pytest.mark.parametrize("kind", ["ddp", "zero3", "tp", "2-d"])
def test_chains_find_the_gradients_of_operators_by_themselves(workers: Workers, name: str, kind: str) -> None:
    for chained, single, few, many in workers.call(_both, name, KINDS[kind]):
        assert chained.keys() == single.keys()
        assert chained
        assert worst(chained, single) < 1e-5
        assert few < many


@pytest.mark.parametrize("schedule", STAGES)
def test_stages_do_too(workers: Workers, schedule: str) -> None:
    for chained, single, few, many in workers.call(_both, "gpt", STAGES[schedule]):
        assert chained.keys() == single.keys()
        assert worst(chained, single) < 1e-5
        assert few <= many


def test_data_parallelism_calls_autograd_a_fifteenth_as_often(workers: Workers) -> None:
    *_, few, many = workers.call(_both, "gpt", KINDS["ddp"])[0]
    assert few * 15 <= many


def _doubled(chain: Chain, key: str, value: Tensor, result: str) -> Tensor:
    with torch.enable_grad():
        y = 2.0 * chain.operand(KEYS[key], KEYS[key], value)
    chain.made(KEYS[result], KEYS[result], y)
    return y.detach()


def test_a_chain_holds_neither_operands_nor_results() -> None:
    chain = Chain()
    x = torch.ones(4)
    y = _doubled(chain, "x", x, "y")
    chain.joined("double")
    held = [weakref.ref(t) for t in (x, y)]
    chain.forget(KEYS["y"])
    chain.close()
    del x, y
    gc.collect()
    assert all(r() is None for r in held)
    ((key, gradient),) = chain.differentiated({KEYS["y"]: torch.full((4,), 3.0)}.get)
    assert key == KEYS["x"]
    assert gradient.tolist() == [6.0] * 4
    assert not chain.pending
    assert chain.differentiated({}.get) == []


def test_a_parameter_may_be_handed_on_as_it_is() -> None:
    """By a Cast to its own type, or a Clip without bounds."""
    chain = Chain(frozenset([KEYS["w"]]))
    with torch.enable_grad():
        w = chain.operand(KEYS["w"], KEYS["w"], torch.ones(2))
    chain.made(KEYS["x"], KEYS["x"], w)
    _doubled(chain, "x", torch.ones(2), "y")
    given = {KEYS["y"]: torch.tensor([1.0, 2.0])}
    assert [(k, g.tolist()) for k, g in chain.differentiated(given.get)] == [(KEYS["w"], [2.0, 4.0])]


def _held_behind_frees(context: Context) -> tuple[int, list[str]]:
    """How often a value was let go in a step, and what an open chain held then, all the same."""
    torch.set_num_threads(1)
    case = made("gpt")
    options = {"strategy": "fsdp:micro_batch=2,recompute=full"}
    runner: Any = planner.torch.parallelize(case.module, planned(case, options))._planner
    stage = runner.stage
    freed: list[Any] = []
    held: list[str] = []
    plain = stage._instruction

    def followed(i: Any, cells: Any, shared: Any, *, record: bool) -> None:
        stores = [shared.values, *(c.values for c in cells)]
        gone = [k for k in freed if not any(k in store for store in stores)]
        chains = [c.chain for c in cells if c.chain is not None]
        held.extend(k[0] for c in chains for k in gone if k in c._linked or any(e[0] == k for e in c._entered))
        plain(i, cells, shared, record=record)
        if isinstance(i, Free):
            freed.append((i.tensor, i.layout))

    stage._instruction = followed
    with torch.no_grad():
        stage.step(runner.feed((*case.inputs, *case.targets), case.kwargs))
    return len(freed), held


def test_what_is_let_go_is_held_by_no_chain(workers: Workers) -> None:
    for freed, held in workers.call(_held_behind_frees):
        assert freed
        assert not held


def test_gradients_from_inside_and_outside_add_up() -> None:
    chain = Chain()
    y = _doubled(chain, "x", torch.ones(1), "y")
    _doubled(chain, "y", y, "z")
    given = {KEYS["y"]: torch.tensor([10.0]), KEYS["z"]: torch.tensor([1.0])}
    assert [(k, g.item()) for k, g in chain.differentiated(given.get)] == [(KEYS["x"], 24.0)]


def test_what_takes_a_result_in_another_form_does_not_join() -> None:
    """Its gradient is one that the chain would have to be given."""
    chain = Chain()
    _doubled(chain, "x", torch.ones(1), "y")
    summed = ("y", Layout(((),), (("d", Reduction.SUM),)))
    assert chain.takes([(KEYS["y"], KEYS["y"])])
    assert not chain.takes([(summed, KEYS["y"])])
    assert not chain.takes([(KEYS["y"], summed)])
    chain.forget(KEYS["y"])
    assert not chain.takes([(KEYS["y"], KEYS["y"])])
    chain.close()
    assert not chain.takes([])


def test_a_module_trains_where_one_value_is_read_twice(workers: Workers) -> None:
    for found, truth in workers.call(_squared):
        assert found == pytest.approx(truth, rel=1e-6)


class Squared(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor([[2.0, 3.0]]))

    def forward(self, x: Tensor) -> Tensor:
        y = x * self.weight
        return (y * y + y).mean()


def _squared(context: Context) -> tuple[list[float], list[float]]:
    torch.manual_seed(0)
    x = torch.randn(8, 2)
    plain, parallel = Squared(), Squared()
    plain(x).backward()
    plan: Any = planner.torch.plan(parallel, x, pin=["rest=data_parallel"], hardware="cpu", cache=False)
    parallel = planner.torch.parallelize(parallel, plan)
    parallel(x).loss.backward()
    assert plain.weight.grad is not None
    return next(p.grad.flatten().tolist() for p in parallel.parameters()), plain.weight.grad.flatten().tolist()
