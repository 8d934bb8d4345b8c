"""Fourier transforms and complex weights of captured modules."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.peer

from torch import Tensor, nn  # noqa: E402

from planner.errors import InputError  # noqa: E402
from planner.frontends import import_bytes  # noqa: E402
from planner.torch.capture import capture  # noqa: E402
from planner.torch.capture.writer import as_array  # noqa: E402
from planner.verify.reference import gradients, run_ops  # noqa: E402
from tests.torch.training import worst  # noqa: E402


class Mixing(nn.Module):
    """As FNet mixes positions and channels."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.fft.fft(torch.fft.fft(x, dim=-1), dim=-2).real


class Filter(nn.Module):
    """A learned filter of frequencies over two dimensions, as GFNet has it; its weights are pairs of numbers."""

    def __init__(self, rows: int, columns: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(rows, columns // 2 + 1, 3, 2))

    def forward(self, x: Tensor) -> Tensor:
        seen = torch.fft.rfft2(x, dim=(1, 2), norm="ortho") * torch.view_as_complex(self.weight)
        return torch.fft.irfft2(seen, s=x.shape[1:3], dim=(1, 2), norm="ortho")


class Spectral(nn.Module):
    """As a Fourier neural operator: low frequencies are mixed over channels, the others are dropped."""

    def __init__(self, kept: int) -> None:
        super().__init__()
        self.kept, self.weight = kept, nn.Parameter(torch.randn(3, 3, kept, 2))

    def forward(self, x: Tensor) -> Tensor:
        seen = torch.fft.rfft(x)
        low = torch.einsum("bik,iok->bok", seen[..., : self.kept], torch.view_as_complex(self.weight))
        whole = torch.cat([low, torch.zeros_like(seen[..., self.kept :])], -1)
        return torch.fft.irfft(whole, n=x.shape[-1])


class Step(nn.Module):
    def __init__(self, inner: nn.Module, width: int) -> None:
        super().__init__()
        self.before, self.inner = nn.Linear(width, width), inner

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(self.before(x)).square().mean()


@pytest.mark.parametrize(
    ("module", "shape"),
    [
        (Step(Mixing(), 5), (2, 6, 5)), (Step(Filter(4, 6), 3), (2, 4, 6, 3)), (Step(Filter(3, 5), 3), (2, 3, 5, 3)),
        (Step(Spectral(3), 8), (2, 3, 8)), (Step(Spectral(2), 7), (2, 3, 7)),
    ],
    ids=["fnet", "gfnet, even", "gfnet, odd", "fno, even", "fno, odd"],
)  # fmt: skip
def test_transforms_and_their_gradients_are_pytorchs(module: nn.Module, shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    x = torch.randn(shape)
    found = capture(module, (x,))
    graph = import_bytes(found.model)
    values = {n: as_array(t) for n, t in found.constants.items()} | {found.inputs[0]: as_array(x)}
    values |= {n: as_array(p) for n, p in module.named_parameters()}
    whole = run_ops(graph, values)
    assert float(whole[graph.outputs[0]]) == pytest.approx(module(x).item(), rel=1e-5)
    module(x).backward()
    truth = {n: p.grad.numpy() for n, p in module.named_parameters() if p.grad is not None}
    assert truth.keys() == set(found.parameters)
    assert worst(gradients(graph, values, whole, list(found.parameters)), truth) < 1e-5


@pytest.mark.parametrize("norm", ["backward", "ortho", "forward"])
@pytest.mark.parametrize("inverse", [False, True])
def test_transforms_are_scaled_as_pytorch_scales_them(norm: str, inverse: bool) -> None:
    class Whole(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            seen = torch.view_as_complex(x)
            turned = torch.fft.ifftn(seen, norm=norm) if inverse else torch.fft.fftn(seen, dim=(0, 2), norm=norm)
            return torch.view_as_real(turned)

    x = torch.randn(3, 4, 5, 2)
    found = capture(Whole(), (x,))
    graph = import_bytes(found.model)
    values = {n: as_array(t) for n, t in found.constants.items()} | {found.inputs[0]: as_array(x)}
    torch.testing.assert_close(torch.as_tensor(run_ops(graph, values)[graph.outputs[0]]), Whole()(x))


def test_a_transform_that_is_too_long_is_refused() -> None:
    class Long(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.fft.rfft(x).abs().sum()

    with pytest.raises(InputError, match="a Fourier transform of 8192 elements: expected 4096 at most"):
        capture(Long(), (torch.randn(2, 8192),))
