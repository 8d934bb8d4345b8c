"""The order in which a traced step begins its collectives and waits for them."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.peer

pytest.importorskip("torch.distributed._functional_collectives")
from torch.fx import Graph, GraphModule, Node  # noqa: E402

import planner.torch  # noqa: E402
from planner.runtime import buckets  # noqa: E402
from planner.runtime.overlap import overlap  # noqa: E402
from planner.runtime.workers import Context, Workers  # noqa: E402
from tests.torch.training import made, planned, step_loss  # noqa: E402

aten, c10d = torch.ops.aten, torch.ops._c10d_functional


class Writing:
    """A graph that is written by hand: `order` names its collectives, waits and operators as they run."""

    def __init__(self) -> None:
        self.graph = Graph()
        self.given: list[Node] = []

    def input(self) -> Node:
        node = self.graph.placeholder(f"x{len(self.given)}")
        self.given.append(node)
        return node

    def compute(self, *operands: Node, name: str) -> Node:
        found = self.graph.create_node("call_function", aten.addmm.default, (operands[0], *operands[:1] * 2), name=name)
        for more in operands[1:]:
            found = self.graph.create_node("call_function", aten.mm.default, (found, more), name=f"{name}_")
        return found

    def summed(self, value: Node, name: str) -> Node:
        flat = self.graph.call_function(aten.view.default, (value, [4]))
        begun = self.graph.create_node("call_function", c10d.all_reduce.default, (flat, "sum", "0"), name=name)
        waited = self.graph.create_node("call_function", c10d.wait_tensor.default, (begun,), name=f"{name}_waited")
        return self.graph.call_function(aten.view.default, (waited, [2, 2]))

    def result(self, *nodes: Node, agreed: bool = True) -> list[str]:
        self.graph.output(list(nodes))
        overlap(self.graph, lambda order: agreed)
        self.graph.lint()
        return [n.name for n in self.graph.nodes if n.op == "call_function" and n.target is not aten.view.default]


def backward(w: Writing) -> tuple[list[Node], list[Node]]:
    """Three gradients, one after the other, and their sums behind all of them."""
    x = w.input()
    made = [x]
    for name in ("a", "b", "c"):
        made.append(w.compute(made[-1], name=name))
    return made[1:], [w.summed(g, f"sum_{name}") for g, name in zip(made[1:], "abc", strict=True)]


def test_a_sum_begins_when_its_gradient_is_there_and_two_are_under_way_at_most() -> None:
    w = Writing()
    _, sums = backward(w)
    order = w.result(*sums)
    assert order[:5] == ["a", "sum_a", "b", "sum_b", "c"]
    assert order.index("sum_a_waited") < order.index("sum_c") < order.index("sum_b_waited")


def test_ranks_that_disagree_keep_the_order_of_the_program() -> None:
    w = Writing()
    _, sums = backward(w)
    order = w.result(*sums, agreed=False)
    assert order == ["a", "b", "c", *(n for k in "abc" for n in (f"sum_{k}", f"sum_{k}_waited"))]


def test_parameters_are_gathered_one_collective_ahead() -> None:
    w = Writing()
    x, weights = w.input(), [w.input() for _ in range(3)]
    for name, weight in zip("abc", weights, strict=True):
        x = w.compute(x, w.summed(weight, f"gather_{name}"), name=name)
    order = w.result(x)
    begun = {k: order.index(f"gather_{k}") for k in "abc"}
    assert begun["a"] < order.index("a")
    # The next one begins when the one before is read, and not earlier.
    assert order.index("gather_a_waited") < begun["b"] < order.index("gather_b_waited")
    assert order.index("gather_b_waited") < begun["c"]
    assert begun["c"] < order.index("c_") - 1


def test_a_result_is_waited_for_where_it_is_read() -> None:
    w = Writing()
    x, y = w.input(), w.input()
    total = w.summed(w.compute(x, name="a"), "total")
    other = w.compute(y, name="b")
    last = w.compute(total, name="c")
    order = w.result(other, last)
    assert order == ["a", "total", "b", "total_waited", "c"]


def test_what_adds_to_a_sum_is_no_reason_to_wait() -> None:
    """Two ranks on CPUs exchange their parts, and each adds the other's to its own."""
    w = Writing()
    x, y = w.input(), w.input()
    part = w.compute(x, name="a")
    both = w.graph.create_node("call_function", aten.add.Tensor, (part, w.summed(part, "total")), name="both")
    order = w.result(w.compute(y, name="b"), both)
    assert order == ["a", "total", "b", "total_waited", "both"]


def _orders(context: Context, strategy: str) -> tuple[list[str], list[float]]:
    """The names of collectives and waits of the traced step, and the losses of eager and traced."""
    torch.set_num_threads(1)
    buckets.BUCKET_BYTES = 1 << 14  # far below the weights, as it is of large models
    losses = []
    for mode in ("eager", "traced"):
        case = made("gpt")
        module = planner.torch.parallelize(case.module, planned(case, {"strategy": strategy}), mode=mode)
        losses.append(step_loss(case, module, parallel=True).item())
    listed: list[str] = []
    graphs: list[GraphModule] = module._planner.stepper.graphs
    for node in (n for g in graphs for n in g.graph.nodes if n.op == "call_function"):
        target: Any = node.target
        if getattr(target, "namespace", "") == "_c10d_functional":
            listed.append("wait" if target is c10d.wait_tensor.default else "begin")
        elif target in (aten.native_layer_norm.default, aten.mm.default, aten.addmm.default, aten.bmm.default):
            listed.append("compute")
    return listed, losses


@pytest.mark.parametrize("strategy", ["fsdp:micro_batch=2", "fsdp:micro_batch=1", "zero1:micro_batch=1", "ddp"])
def test_traced_steps_compute_between_beginning_and_waiting(strategy: str) -> None:
    """Of several micro-batches those of the last one, too, beside which gradients are summed."""
    with Workers(4) as workers:
        found = workers.call(_orders, strategy)
    for listed, losses in found:
        assert losses[0] == losses[1]
        text = "".join({"begin": "b", "wait": "w", "compute": "."}[x] for x in listed)
        assert text.count("b") == text.count("w") > 3
        assert text.count("b.") > 3
