"""Modules that read sizes from arguments: what is said to be fixed is known while they are captured."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.peer

from torch import Tensor, nn  # noqa: E402

from planner.errors import InputError  # noqa: E402
from planner.torch.capture import capture  # noqa: E402
from tests.torch.kernels import by_kernels  # noqa: E402

SIZES = torch.tensor([2, 1, 5])
X = torch.randn(8, 4, generator=torch.Generator().manual_seed(0))


def _split(x: Tensor, sizes: Tensor) -> Tensor:
    return torch.stack([part.mean(0) for part in x.split(sizes.tolist())])


def _places(x: Tensor, sizes: Tensor) -> Tensor:
    return x * torch.cat([torch.arange(n) for n in sizes])[:, None]


def _counted(x: Tensor, sizes: Tensor) -> Tensor:
    return x[: int(sizes.max())] * sizes.prod().item()


def _masked(x: Tensor, sizes: Tensor) -> Tensor:
    odd = torch.repeat_interleave(sizes % 2 == 1, sizes)
    return x[odd] + x.masked_select(odd[:, None].expand(8, 4)).view(-1, 4)


def _masked_in_the_second_place(x: Tensor, sizes: Tensor) -> Tensor:
    return x[1:, torch.tensor([True, False, True, True]) & (sizes.sum() == 8)]


def _repeated(x: Tensor, sizes: Tensor) -> Tensor:
    return torch.repeat_interleave(x[:3], sizes, dim=0) * x


def _written(x: Tensor, sizes: Tensor) -> Tensor:
    limits = torch.zeros(len(sizes) + 1, dtype=torch.int64)
    limits[1:] = sizes.cumsum(0)
    limits[-1] -= 1
    limits += 1
    return torch.stack([x[a - 1 : b - 1].sum(0) for a, b in pairwise(limits.tolist())])


def _found(x: Tensor, sizes: Tensor) -> Tensor:
    (at,) = torch.where(sizes > 1)
    return x[at] if sizes.argmin() == 1 and bool((sizes > 0).all()) else -x[at]


def _mixed_with_what_is_fed(x: Tensor, sizes: Tensor) -> Tensor:
    scale = sizes.float()
    scale[0] = x[0, 0].detach()
    scale += 1
    return x[:3] * scale[:, None]


def _written_together(x: Tensor, sizes: Tensor) -> Tensor:
    scale = torch.zeros(3)
    torch._foreach_copy_([scale], [x[:3, 0].detach().clone()])
    return x * scale.sum().item()


def _drawn(x: Tensor, sizes: Tensor) -> Tensor:
    return x * torch.poisson(sizes.float()).sum().item()


def _written_and_read_again(x: Tensor, sizes: Tensor) -> Tensor:
    view = sizes[1:]
    sizes = sizes.t()
    sizes += 1
    view.mul_(2)
    sizes[0] = view.sum()
    return x * int(sizes.sum()) + x[: sizes[1] - 3].sum() * view.max().item()


def _sizes_in_slices(x: Tensor, sizes: Tensor) -> Tensor:
    a, b, c = x.split(list(sizes))
    return x[: sizes[0]] * b + c[sizes[1] : sizes[1] + 1] + a.repeat_interleave(repeats=sizes[:2], dim=0)[:1]


STEPS = [
    _split, _places, _counted, _masked, _masked_in_the_second_place, _repeated, _written, _found,
    _mixed_with_what_is_fed, _written_and_read_again, _sizes_in_slices,
]  # fmt: skip


class Step(nn.Module):
    def __init__(self, of: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.of, self.weight = of, nn.Parameter(torch.linspace(0.5, 1.5, 4))

    def forward(self, x: Tensor, sizes: Tensor) -> Tensor:
        y = self.of(x * self.weight, sizes)
        return (y * y * torch.linspace(0.5, 1.5, y.numel()).view(y.shape)).sum()


@pytest.mark.parametrize("step", STEPS, ids=lambda s: s.__name__.strip("_"))
def test_a_step_that_reads_fixed_values_is_the_modules_step(step: Any) -> None:
    module = Step(step)
    truth = module(X, SIZES.clone())
    truth.backward()
    loss, found = by_kernels(module, X, SIZES.clone(), fixed=("sizes",))
    np.testing.assert_allclose(loss, truth.detach().numpy(), rtol=1e-5)
    assert module.weight.grad is not None
    np.testing.assert_allclose(found["weight"], module.weight.grad.numpy(), rtol=1e-5)


def test_what_is_fixed_is_no_input_and_other_values_are_refused() -> None:
    found = capture(Step(_split), (X, SIZES), fixed=("sizes",))
    assert found.inputs == ("x",)
    assert len(found.flattened((X, SIZES.clone()), {}, ())) == 1
    with pytest.raises(InputError, match="sizes has other values than those that the step was planned with"):
        found.flattened((X, SIZES.flip(0)), {}, ())


class Collided(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))

    def forward(self, *inputs: Tensor, scale: Tensor) -> Tensor:
        return (inputs[0] * self.weight * scale.sum()).sum()


def test_an_argument_is_fixed_and_none_that_is_called_alike() -> None:
    given = torch.tensor([1.0, 2.0, 3.0]), torch.tensor([4.0, 5.0, 6.0])
    module = Collided()
    loss, _ = by_kernels(module, given[0], scale=given[1], fixed=("scale",))
    np.testing.assert_allclose(loss, module(given[0], scale=given[1]).detach().numpy())


def test_capturing_leaves_what_is_fixed_as_it_is() -> None:
    sizes = SIZES.clone()
    with pytest.warns(UserWarning, match="writes into its input"):
        found = capture(Step(_written_and_read_again), (X, sizes), fixed=("sizes",))
    assert torch.equal(sizes, SIZES)
    assert torch.equal(found.fixed[0].numbers, SIZES)
    with pytest.raises(InputError, match="sizes has other values"):
        found.flattened((X, SIZES.float()), {}, ())


def test_without_fixed_the_message_says_that_it_might_help() -> None:
    with pytest.raises(InputError, match=r"name it: planner\.torch\.plan\(…, fixed=\(…,\)\)"):
        capture(Step(_split), (X, SIZES))


@pytest.mark.parametrize("step", [_written_together, _drawn], ids=lambda s: s.__name__.strip("_"))
def test_numbers_that_are_not_known_are_not_read(step: Any) -> None:
    with pytest.raises(InputError):
        capture(Step(step), (X, SIZES), fixed=("sizes",))


def test_a_name_of_no_argument_is_refused_with_those_there_are() -> None:
    with pytest.raises(InputError, match="fixed: no tensor is given as 'grid'; given are x, sizes"):
        capture(Step(_split), (X, SIZES), fixed=("grid",))
    with pytest.raises(InputError, match="fixed: sizes has no numbers"):
        capture(Step(_split), (X, SIZES.to("meta")), fixed=("sizes",))


def test_images_of_sizes_that_are_fixed_enter_a_language_model() -> None:
    """Qwen2-VL splits its patches by the sizes of images, and looks for them among the tokens."""
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    text = {
        "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 2,
        "num_key_value_heads": 1, "vocab_size": 64, "max_position_embeddings": 64, "use_cache": False,
        "bos_token_id": 1, "eos_token_id": 2,
        "rope_parameters": {"rope_type": "default", "mrope_section": [2, 3, 3], "rope_theta": 1e4},
    }  # fmt: skip
    vision = {"depth": 1, "embed_dim": 32, "hidden_size": 32, "num_heads": 2, "patch_size": 2, "mlp_ratio": 2}
    config = transformers.Qwen2VLConfig(
        text_config=text, vision_config=vision, image_token_id=60, video_token_id=61, vision_start_token_id=62,
        vision_end_token_id=63,
    )  # fmt: skip
    model = transformers.Qwen2VLForConditionalGeneration(config).train()
    grid = torch.tensor([[1, 4, 4], [1, 2, 4]])
    ids = torch.randint(3, 59, (2, 12), generator=torch.Generator().manual_seed(1))
    for row, (_, h, w) in enumerate(grid.tolist()):
        ids[row, 2 : 2 + h * w // 4] = 60
    given = {
        "input_ids": ids, "labels": ids.clone(), "image_grid_thw": grid, "mm_token_type_ids": (ids == 60).int(),
        "pixel_values": torch.randn(24, 3 * 2 * 4, generator=torch.Generator().manual_seed(2)),
    }  # fmt: skip
    truth = model(**given).loss
    truth.backward()
    loss, found = by_kernels(model, fixed=("image_grid_thw", "mm_token_type_ids"), **given)
    np.testing.assert_allclose(loss, truth.detach().numpy(), rtol=1e-5)
    for name, p in model.named_parameters():
        if p.grad is not None and float(p.grad.abs().max()) > 1e-6:
            most = float(p.grad.abs().max())
            np.testing.assert_allclose(found[name], p.grad.numpy(), rtol=2e-3, atol=1e-4 * most, err_msg=name)
