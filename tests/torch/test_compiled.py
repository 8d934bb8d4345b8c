"""What Inductor makes of a step keeps what the plan has it do."""

from __future__ import annotations

import re

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.peer

import planner.torch  # noqa: E402
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
