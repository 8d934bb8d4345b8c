"""What Inductor makes of a step keeps what the plan has it do."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.peer

from torch.fx.experimental.proxy_tensor import make_fx  # noqa: E402

import planner.torch  # noqa: E402
from planner.runtime.stored import StoredOnce  # noqa: E402
from planner.runtime.workers import Context, Workers  # noqa: E402
from tests.torch.training import made, planned  # noqa: E402


def _attentions(context: Context) -> str:
    """F and B: the passes of attentions, in the order in which the compiled step calls them."""
    from torch._inductor.utils import run_and_get_code

    torch.set_num_threads(1)
    case = made("nanogpt")
    plan = planned(case, {"strategy": "ddp:micro_batch=8,recompute=full"})
    module = planner.torch.parallelize(case.module, plan, mode="compiled")
    _, code = run_and_get_code(lambda: module(*case.inputs, *case.targets))
    calls = re.findall(r"= torch\.ops\.aten\.\w*attention\w*?(_backward)?\.default\(", "\n".join(code))
    return "".join("B" if backward else "F" for backward in calls)


def test_blocks_that_run_again_do_so_in_the_backward_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    """And not beside the first time, where what they make would lie until the backward pass after all."""
    monkeypatch.setenv("TORCHINDUCTOR_FORCE_DISABLE_CACHES", "1")
    with Workers(1) as workers:
        (found,) = workers.call(_attentions)
    layers = found.count("B")
    assert layers > 1
    assert found == "F" * layers + "FB" * layers


def _exchanges(context: Context) -> str:
    """b and w: collectives of the compiled step that begin and are waited for; a dot: what is computed."""
    from torch._inductor.utils import run_and_get_code

    torch.set_num_threads(1)
    case = made("gpt")
    module = planner.torch.parallelize(case.module, planned(case, {"strategy": "fsdp:micro_batch=4"}), mode="compiled")
    _, code = run_and_get_code(lambda: module(*case.inputs, *case.targets))
    kinds = {"_c10d_functional.wait_tensor": "w", "_c10d_functional.": "b", "extern_kernels.": ".", "  cpp_fused": "."}
    called = re.findall(
        r"(_c10d_functional\.wait_tensor|_c10d_functional\.|extern_kernels\.|^ +cpp_fused)\w*(?:\.default)?\(",
        "\n".join(line for c in code for line in c.splitlines() if "assert" not in line and "#" not in line),
        re.MULTILINE,
    )
    return "".join(kinds.get(c if c in kinds else "  cpp_fused", "") for c in called)


def test_compiled_steps_compute_between_beginning_and_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parameters are gathered one collective ahead, and not all at the beginning."""
    monkeypatch.setenv("TORCHINDUCTOR_FORCE_DISABLE_CACHES", "1")
    with Workers(2) as workers:
        found, _ = workers.call(_exchanges)
    assert found.count("b") == found.count("w") > 6
    assert len(re.findall(r"b\.+w", found)) >= 4
    assert "www" not in found


def _gelu_gradients(context: Context) -> tuple[int, int]:
    """How many kernels of the compiled step compute a gradient of a GELU, and how many GELUs the module has."""
    from torch._inductor.utils import run_and_get_code

    torch.set_num_threads(1)
    case = made("nanogpt")
    gelus = sum(isinstance(m, torch.nn.GELU) for m in case.module.modules())
    module = planner.torch.parallelize(case.module, planned(case, {"strategy": "ddp"}), mode="compiled")
    _, code = run_and_get_code(lambda: module(*case.inputs, *case.targets))
    calls = re.findall(r"^ +(cpp_fused\w*gelu_backward\w*)\(", "\n".join(code), re.MULTILINE)
    return len(calls), gelus


def test_what_a_product_reads_is_computed_once_for_all_of_its_readers(monkeypatch: pytest.MonkeyPatch) -> None:
    """The gradient of a GELU is read by two products, and by the sum that is the gradient of a bias."""
    monkeypatch.setenv("TORCHINDUCTOR_FORCE_DISABLE_CACHES", "1")
    with Workers(1) as workers:
        ((calls, gelus),) = workers.call(_gelu_gradients)
    assert calls == gelus > 1


def _marked(function: Callable[..., object], *inputs: torch.Tensor) -> list[str]:
    module = make_fx(function, tracing_mode="fake")(*inputs)
    StoredOnce()(module.graph)
    return [n.name for n in module.graph.nodes if n.meta.get("inductor_realize_to_strides")]


def test_sums_of_stored_tensors_are_stored_where_several_read_them() -> None:
    x, w = torch.randn(4, 8), torch.randn(8, 8)

    def residual(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
        first = x + x @ w  # read by the product, and by the next sum
        second = first + first @ w
        return second.mean(1), second.std(1)

    assert _marked(residual, x, w) == ["add", "add_1"]
    # Of one stored tensor alone, with a bias, or with one reader: computing it again reads no more.
    assert _marked(lambda x, w: ((x + x.sin()).sum(1), (x + x.sin()).cos()), x, w) == []
    assert _marked(lambda x, w: (x @ w + w[0]).sin() * (x @ w + w[0]), x, w) == []
    assert _marked(lambda x, w: (x + x @ w).sum(1), x, w) == []


def test_what_no_product_reads_or_products_alone_is_left_to_inductor() -> None:
    x, w = torch.randn(4, 8), torch.randn(8, 8)

    def twice(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
        inner = x.sin() * x
        return inner @ w, inner.t() @ inner

    assert _marked(twice, x, w) == []
    assert _marked(lambda x, w: ((s := x.sin()) @ w, s.sum(0)), x, w) == ["sin"]
    assert _marked(lambda x, w: ((s := x.sin()).t().contiguous().t() @ w, s.view(32).sum()), x, w) == []
