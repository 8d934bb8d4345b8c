"""What goes to the process group, counted there: the planned collectives, and nothing else."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.peer

from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

import planner.torch  # noqa: E402
from planner.runtime import collectives  # noqa: E402
from planner.runtime.planned import planned_traffic  # noqa: E402
from planner.runtime.workers import Context, Workers  # noqa: E402
from tests.torch.training import KINDS, STAGES, made, planned  # noqa: E402


class Calls(TorchDispatchMode):
    """Operators that hand something to the process group: how many, and bytes of what they are handed."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()
        self.bytes: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        if func.namespace == "_c10d_functional" and name != "wait_tensor":
            self.counts[name] += 1
            self.bytes[name] += args[0].nbytes
        elif func.namespace == "c10d" and name in ("send", "recv_", "recv_any_source_"):
            self.counts[name] += 1
            self.bytes[name] += sum(t.nbytes for t in args[0])
        return func(*args, **(kwargs or {}))


@pytest.fixture(scope="module")
def workers() -> Iterator[Workers]:
    with Workers(4) as found:
        yield found


def _step(context: Context, name: str, options: dict[str, Any], natively: bool) -> Any:
    torch.set_num_threads(1)
    case = made(name)
    runner: Any = planner.torch.parallelize(case.module, planned(case, options))._planner
    if natively:  # as on GPUs, where every collective is the backend's own
        collectives._AT_ONCE_BYTES = -1  # type: ignore[misc]
    runner.context.ledger.clear()
    with Calls() as calls, torch.no_grad():
        runner.stage.step(runner.feed((*case.inputs, *case.targets), case.kwargs))
    ledger = runner.context.ledger
    return dict(calls.counts), dict(calls.bytes), dict(ledger.steps), dict(ledger.inside), planned_traffic(runner.stage)


@pytest.mark.parametrize("name", ["gpt", "einsum_moe", "resnet"])
@pytest.mark.parametrize("kind", ["ddp", "zero1", "zero3", "tp", "tp+sp", "2-d"])
def test_every_planned_collective_is_one_call(workers: Workers, name: str, kind: str) -> None:
    for counts, _, steps, inside, plan in workers.call(_step, name, KINDS[kind], False):
        assert steps == plan
        assert sum(counts.values()) == sum(n for n, _ in (*plan.values(), *inside.values()))
        assert not counts.keys() & {"send", "recv_"}


@pytest.mark.parametrize("schedule", STAGES)
def test_stages_send_what_is_planned(workers: Workers, schedule: str) -> None:
    found = workers.call(_step, "gpt", STAGES[schedule], False)
    for counts, size, _, inside, plan in found:
        sent = plan.get("send", (0, 0))
        assert (counts.get("send", 0), size.get("send", 0)) == sent
        others = sum(n for kind, n in counts.items() if kind not in ("send", "recv_"))
        assert others == sum(n for kind, (n, _) in plan.items() if kind != "send") + sum(n for n, _ in inside.values())
    assert sum(s.get("send", 0) for _, s, *_ in found) == sum(s.get("recv_", 0) for _, s, *_ in found) > 0


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_bytes_are_the_planned_ones_where_the_backend_reduces(workers: Workers, precision: str) -> None:
    """All-reduces, which gloo is handed as they are: others it is handed as exchanges."""
    options = {**KINDS["ddp"], "precision": precision}
    for counts, size, steps, inside, plan in workers.call(_step, "gpt", options, True):
        assert steps == plan
        reduced = [plan["all_reduce"], *(v for k, v in inside.items() if k == "all_reduce")]
        both = {k: counts.get(k, 0) for k in ("all_reduce", "all_reduce_")}
        assert sum(both.values()) == sum(n for n, _ in reduced)
        assert sum(size.get(k, 0) for k in both) == sum(b for _, b in reduced)


def _groups_of_each(context: Context, name: str, options: dict[str, Any], times: int) -> list[int]:
    """How many process groups PyTorch has after each of several parallel modules has made a step."""
    torch.set_num_threads(1)
    found = []
    for _ in range(times):
        case = made(name)
        runner: Any = planner.torch.parallelize(case.module, planned(case, options))._planner
        with torch.no_grad():
            runner.stage.step(runner.feed((*case.inputs, *case.targets), case.kwargs))
        found.append(len(torch.distributed.distributed_c10d._world.pg_names))
    return found


@pytest.mark.parametrize("options", [KINDS["2-d"], STAGES["1f1b"]], ids=["2-d", "1f1b"])
def test_all_modules_of_a_process_share_its_groups(workers: Workers, options: dict[str, Any]) -> None:
    """PyTorch keeps every group, with its threads and sockets, for as long as the process is in its world."""
    for first, *later in workers.call(_groups_of_each, "gpt", options, 3):
        assert first > 1
        assert later == [first] * 2
