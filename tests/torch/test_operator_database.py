"""PyTorch's own list of its operators, with its own samples: each is computed as eager mode does, or refused by name.

Loss and gradients of a step whose loss weighs every element of what the operator returns are compared with those of
autograd.  The list needs `expecttest`; all of it takes about twenty CPU minutes.
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("expecttest")
pytestmark = [pytest.mark.peer, pytest.mark.slow]

from torch import Tensor, nn  # noqa: E402
from torch.testing._internal.common_methods_invocations import op_db  # noqa: E402
from torch.utils import _pytree as pytree  # noqa: E402

from planner.errors import InputError  # noqa: E402
from planner.kernels.gradients import NoVjpError  # noqa: E402
from tests.torch.kernels import by_kernels  # noqa: E402

_MOST_SAMPLES = 4

# Samples of these are not as eager mode has them.
FAULTS: dict[str, str] = {
    "nn.functional.multi_head_attention_forward": "it drops half of the weights, by a seed that the list sets alone",
}


def _named(op: Any) -> str:
    return f"{op.name}.{op.variant_test_name}" if op.variant_test_name else str(op.name)


OPERATORS = {_named(op): op for op in op_db if torch.float32 in op.dtypes}


class _Of(nn.Module):
    """A sample's operator: tensors with a gradient are parameters, anything else is constant."""

    def __init__(self, op: Any, leaves: list[Any], form: Any) -> None:
        super().__init__()
        self.op, self.form, self.leaves = op, form, []
        for i, x in enumerate(leaves):
            trained = isinstance(x, Tensor) and x.requires_grad and x.is_floating_point()
            if trained:
                self.register_parameter(f"p{i}", nn.Parameter(x.detach().clone()))
            self.leaves.append(f"p{i}" if trained else [x.detach().clone() if isinstance(x, Tensor) else x])
        self.one = nn.Parameter(torch.ones(1))  # a step has a parameter, also of operators without gradients

    def forward(self, x: Tensor) -> Tensor:
        given = [getattr(self, leaf) if isinstance(leaf, str) else leaf[0] for leaf in self.leaves]
        first, operands, named = pytree.tree_unflatten(given, self.form)
        loss = (self.one * x).sum()
        for y in pytree.tree_leaves(self.op(first, *operands, **named)):
            if not isinstance(y, Tensor) or not y.numel() or y.is_complex():
                continue
            weights = torch.linspace(0.5, 1.5, y.numel()).view(y.shape)
            if y.is_floating_point():
                loss = loss + (y.float() * y.float() * weights).sum()
            else:
                loss = loss + (y.float() * weights).sum() * self.one.sum()
        return loss


def _samples(op: Any) -> list[Any]:
    found = list(op.sample_inputs("cpu", torch.float32, requires_grad=op.supports_autograd))
    last = len(found) - 1
    return found if last < _MOST_SAMPLES else [found[i * last // (_MOST_SAMPLES - 1)] for i in range(_MOST_SAMPLES)]


def _compared(op: Any, sample: Any, x: Tensor) -> str:
    leaves, form = pytree.tree_flatten((sample.input, sample.args, sample.kwargs))
    try:
        module = _Of(op.op, leaves, form)
        truth = module(x)
        drawn = not torch.equal(truth, module(x))
        truth.backward()
    except Exception:
        return "not a step of this form"
    if drawn:
        return "random"
    if not torch.isfinite(truth).all():
        return "not finite"
    try:
        loss, found = by_kernels(module, x)
    except (InputError, NoVjpError):  # what the kernels that verify plans cannot differentiate, they name
        return "refused"
    np.testing.assert_allclose(loss, truth.detach().numpy(), rtol=1e-4, atol=1e-5)
    for name, p in module.named_parameters():
        expected = np.zeros(p.shape, np.float32) if p.grad is None else p.grad.numpy()
        if not np.isfinite(expected).all():
            continue
        most = float(np.abs(expected).max()) if expected.size else 0.0
        computed = np.zeros_like(expected) if found.get(name) is None else found[name]
        np.testing.assert_allclose(computed, expected, rtol=2e-3, atol=max(1e-6, 1e-4 * most), err_msg=name)
    return "computed"


@pytest.mark.parametrize("name", OPERATORS)
def test_an_operator_of_the_database_is_computed_as_eager_or_refused_by_name(
    name: str, request: pytest.FixtureRequest
) -> None:
    if name in FAULTS:
        request.applymarker(pytest.mark.xfail(strict=True, reason=FAULTS[name]))
    x = torch.tensor([0.7])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for sample in _samples(OPERATORS[name]):
            torch.manual_seed(0)
            _compared(OPERATORS[name], sample, x)


def test_the_database_is_mostly_computed() -> None:
    """So that the comparison does not pass by refusing everything: elementwise operators alone are a hundred."""
    for name in ("add", "matmul", "softmax", "scatter_add", "nn.functional.conv2d", "cumsum", "diagonal_scatter"):
        op = OPERATORS[name]
        assert _compared(op, _samples(op)[0], torch.tensor([0.7])) == "computed", name


def test_a_comparison_notices_a_wrong_operator() -> None:
    op = OPERATORS["sin"]
    sample = _samples(op)[0]

    class Wrong:
        @staticmethod
        def op(x: Tensor) -> Tensor:
            return torch.sin(x) if torch.compiler.is_exporting() else torch.cos(x)

    with pytest.raises(AssertionError):
        _compared(Wrong, sample, torch.tensor([0.7]))
