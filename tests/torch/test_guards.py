"""What would compute something else without a word is refused, and what is the same in other words is taken."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytestmark = [pytest.mark.peer, pytest.mark.usefixtures("process_alone")]

from torch import Tensor, nn  # noqa: E402
from torch.nn.functional import cross_entropy  # noqa: E402

import planner.torch  # noqa: E402
from planner.errors import InputError, UsageError  # noqa: E402
from planner.runtime.placements import local_tensor  # noqa: E402

X = torch.randn(8, 16, generator=torch.Generator().manual_seed(0))
Y = torch.arange(8)


def _mlp() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 8))


def _planned(module: nn.Module, inputs: Any = X, targets: Any = Y, **options: Any) -> Any:
    given = {"loss": cross_entropy, "hardware": "a100-80", "cache": False, "pin": ["rest=data_parallel"], **options}
    return planner.torch.plan(module, inputs, targets=targets, **given)


def _parallel(module: nn.Module, inputs: Any = X, targets: Any = Y, **options: Any) -> nn.Module:
    return planner.torch.parallelize(module, _planned(module, inputs, targets, **options))


class Words(nn.Module):
    """With a temperature in a buffer."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table, self.layers = nn.Embedding(8, 16), _mlp()
        self.register_buffer("heat", torch.ones(()))

    def forward(self, ids: Tensor, scale: float = 1.0) -> Tensor:
        return self.layers(self.table(ids)) * scale / self.heat


class Counting(nn.Module):
    """With a running mean and two counts in buffers, one of which the step reads."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = _mlp()
        self.register_buffer("mean", torch.zeros(16))
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))
        self.register_buffer("seen", torch.zeros((), dtype=torch.int64))

    def forward(self, x: Tensor) -> Tensor:
        self.mean.mul_(0.9).add_(x.mean(0), alpha=0.1)
        self.calls += 1
        self.seen += 1
        return self.layers(x - self.mean) / self.seen


def test_an_input_that_is_given_twice_is_two() -> None:
    module = _parallel(Words(), Y, Y)
    assert module(Y.flip(0), Y).item() == pytest.approx(cross_entropy(Words()(Y.flip(0)), Y).item(), rel=1e-6)


def test_buffers_that_a_step_changes_are_read_anew() -> None:
    module, alone = _parallel(Counting()), Counting()
    for step in range(1, 4):
        assert module(X * step, Y).item() == pytest.approx(cross_entropy(alone(X * step), Y).item(), rel=1e-6)
    torch.testing.assert_close(module.mean, alone.mean)
    assert (module.calls, module.seen) == (3, 3)


def _rows(scores: Tensor, labels: Tensor) -> Tensor:
    return cross_entropy(scores, labels, reduction="none")


@pytest.mark.parametrize(
    "loss",
    [
        lambda scores, labels: cross_entropy(scores, labels, reduction="sum"),
        lambda scores, labels: _rows(scores, labels).sum() / scores.shape[0],
        lambda scores, labels: _rows(scores, labels).mean() + 0.1 * scores.square().mean(),
    ],
    ids=["sum", "sum over the number of samples", "means"],
)
def test_micro_batches_have_the_loss_and_the_gradients_of_the_whole_batch(loss: Any) -> None:
    alone, module = _mlp(), _parallel(_mlp(), loss=loss, micro_batches=2)
    whole, parts = loss(alone(X), Y), module(X, Y)
    torch.testing.assert_close(parts, whole)
    whole.backward()
    parts.backward()
    for p, q in zip(module.parameters(), alone.parameters(), strict=True):
        torch.testing.assert_close(p.grad, q.grad)


def _of_some(scores: Tensor, labels: Tensor) -> Tensor:
    used = labels > 0
    return (_rows(scores, labels) * used).sum() / used.sum()


def _of_shares(scores: Tensor, labels: Tensor) -> Tensor:
    weights = labels + 1.0
    return (_rows(scores, labels) * (weights / weights.sum())).sum()


def _of_attention(scores: Tensor, labels: Tensor) -> Tensor:
    rows = _rows(scores, labels)
    return (rows * rows.detach().softmax(0)).sum()


def _of_pairs(scores: Tensor, labels: Tensor) -> Tensor:
    return torch.einsum("bi,ci->", scores, scores)


@pytest.mark.parametrize("loss", [_of_some, _of_pairs])
def test_a_loss_that_is_neither_a_mean_nor_a_sum_is_named(loss: Any) -> None:
    with pytest.warns(UserWarning, match="the loss is neither a mean nor a sum over samples"):
        _parallel(_mlp(), loss=loss, micro_batches=2)


@pytest.mark.parametrize(("loss", "op"), [(_of_shares, "Div"), (_of_attention, "Softmax")])
def test_where_samples_meet_in_a_loss_is_named(loss: Any, op: str) -> None:
    with pytest.warns(UserWarning, match=f"samples of a micro-batch meet each other, .* in {op} "):
        _parallel(_mlp(), loss=loss, micro_batches=2)


def test_buffers_of_micro_batches_are_refused() -> None:
    with pytest.raises(InputError, match=r"changes the buffer .*; plan with micro_batches=1"):
        _parallel(Counting(), micro_batches=2)


class Pairs(nn.Module):
    """With the other samples of the batch as what a sample is told from."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = _mlp(), _mlp()

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        scores = self.one(x) @ self.other(y).T
        return cross_entropy(scores, torch.arange(len(scores)))


class Neighbours(nn.Module):
    """Whose samples read each other."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = _mlp()

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        return self.layers(torch.zeros_like(x).index_add(0, edges[1], x[edges[0]]))


def test_samples_that_meet_are_said_where_the_batch_is_cut() -> None:
    with pytest.warns(UserWarning, match=r"meet each other, .* in MatMul .*, whose result has the shape \[4, 4\], of"):
        _parallel(Pairs(), (X, X), (), loss=None, micro_batches=2)
    edges = torch.tensor([[0, 1, 2, 3, 7], [1, 2, 3, 4, 0]])
    with pytest.raises(InputError, match=r"input edges counts rows of the batch.*; plan with micro_batches=1"):
        _parallel(Neighbours(), (X, edges), micro_batches=2)
    alone = cross_entropy(Neighbours()(X, edges), Y).item()
    assert _parallel(Neighbours(), (X, edges))(X, edges, Y).item() == pytest.approx(alone, rel=1e-6)


def test_a_module_under_a_plan_is_neither_copied_nor_pickled() -> None:
    module = _parallel(_mlp())
    for taken in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(UsageError, match="cannot be copied or pickled"):
            taken(module)
    with pytest.raises(UsageError, match="runs under a plan already"):
        _planned(module)


def test_an_optimizer_of_the_parameters_before_is_found_out() -> None:
    module = _mlp()
    stale = torch.optim.SGD(module.parameters(), lr=0.1)
    module = _parallel(module, optimizer=stale)
    module(X, Y).backward()
    with pytest.raises(UsageError, match="would train nothing; make the optimizer"):
        stale.step()
    torch.optim.SGD(module.parameters(), lr=0.1).step()


def test_frozen_weights_stay_frozen_and_may_have_other_numbers() -> None:
    alone, module = _mlp(), _mlp()
    module[0].requires_grad_(False)
    module = _parallel(module)
    module[0].requires_grad_(True)
    with pytest.raises(UsageError, match=r"0\.(weight|bias) was frozen when the step was planned"):
        module(X, Y)
    module[0].requires_grad_(False)
    for each in (alone, module):
        with torch.no_grad():
            each[0].weight.mul_(2)
    torch.testing.assert_close(module(X, Y), cross_entropy(alone(X), Y))
    module(X, Y).backward()
    assert module[0].weight.grad is None
    assert module[2].weight.grad is not None


def test_buffers_that_were_taken_over_stay_as_they_were() -> None:
    module = _parallel(Words(), Y)
    module.heat.fill_(1.0)
    module(Y, Y)
    module.heat.fill_(2.0)
    with pytest.raises(UsageError, match="heat has other numbers"):
        module(Y, Y)


def test_arguments_come_by_place_or_by_name() -> None:
    module = _parallel(Words(), (Y, 2.0))
    truth = module(Y, 2.0, Y).item()
    assert module(Y, ids=Y, scale=2.0).item() == module(Y, Y, scale=2.0).item() == truth
    with pytest.raises(InputError, match=r"planned with \[2\.0\] for its arguments that are no tensors, and is called"):
        module(Y, 3.0, Y)
    named = _parallel(Words(), {"scale": 2.0, "ids": Y})
    assert named(Y, ids=Y, scale=2.0).item() == named(Y, 2.0, Y).item() == truth
    with pytest.raises(InputError, match="give it the same arguments, and the targets behind them"):
        named(ids=Y, scale=2.0)


def test_inputs_of_other_types_and_indices_out_of_range_are_named() -> None:
    with pytest.raises(InputError, match=r"input input: expected elements of torch\.float32, found torch\.float64"):
        _parallel(_mlp())(X.double(), Y)
    module = _parallel(Words(), Y)
    assert module(Y.int(), Y.int()).item() == module(Y, Y).item()
    with pytest.raises(InputError, match=r"input ids: expected numbers from 0 to 7.*, found 8"):
        module(Y + 1, Y)
    with pytest.raises(InputError, match=r"input target: expected numbers from 0 to 7, or -100 .*, found -1"):
        module(Y, Y - 1)
    ignored = torch.tensor([0, 1, -100, 3, -100, 5, 6, 7])
    assert module(Y, ignored).item() == pytest.approx(cross_entropy(Words()(Y), ignored).item(), rel=1e-6)


def test_another_module_is_refused() -> None:
    plan = _planned(_mlp())
    with pytest.raises(
        InputError, match=r"0\.weight of shape \[32, 16\], and the module has it in the shape \[64, 16\]"
    ):
        planner.torch.parallelize(nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 8)), plan)
    with pytest.raises(InputError, match=r"2\.weight of shape \[8, 32\], and the module has none of this name"):
        planner.torch.parallelize(nn.Sequential(nn.Linear(16, 32)), plan)


def test_a_step_without_a_loss_is_refused() -> None:
    for loss in (None, lambda y, t: cross_entropy(y, t, reduction="none")):
        with pytest.raises(InputError, match="returns no loss; expected one number"):
            _parallel(_mlp(), targets=() if loss is None else Y, loss=loss)


def test_hooks_that_would_not_run_are_refused() -> None:
    module = _mlp()
    hook = module[0].weight.register_hook(lambda g: g)
    with pytest.raises(UsageError, match=r"0\.weight has a hook, which does not run"):
        _parallel(module)
    hook.remove()
    module[0].register_full_backward_hook(lambda *_: None)
    with pytest.raises(UsageError, match="0 has a backward hook, which does not run"):
        _parallel(module)


def test_hooks_of_the_parameters_that_a_plan_puts_there_run() -> None:
    plain, hooked = _parallel(_mlp()), _parallel(_mlp())
    weight, there = hooked.get_parameter("0.weight"), []
    weight.register_hook(lambda g: g * 2)
    weight.register_post_accumulate_grad_hook(lambda p: there.append(local_tensor(p.grad).clone()))
    for module in (plain, hooked, plain, hooked):
        module(X, Y).backward()
    first, second = (local_tensor(plain.get_parameter(n).grad) for n in ("0.weight", "2.weight"))  # of two steps
    assert torch.allclose(there[0], first)
    assert torch.allclose(there[1], 2 * first)
    assert torch.allclose(local_tensor(hooked.get_parameter("2.weight").grad), second)


def test_autocast_is_the_plans_precision_or_refused() -> None:
    exact, low = _parallel(_mlp()), _parallel(_mlp(), precision="bf16")
    alone = low(X, Y).item()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert low(X, Y).item() == alone
        with pytest.raises(UsageError, match="plan with precision='bf16' to compute so"):
            exact(X, Y)


def test_a_step_planned_in_evaluation_mode_trains_in_it() -> None:
    module = _parallel(_mlp().eval())
    module(X, Y).backward()
    assert module[0].weight.grad is not None
    dropping = nn.Sequential(_mlp(), nn.Dropout(0.1)).eval()
    with pytest.raises(UsageError, match=r"planned in evaluation mode, and 1 .*; call train\(\) before"):
        _parallel(dropping).train()(X, Y)


@pytest.mark.parametrize("norm", [1.0, 2.0, float("inf")])
def test_gradients_are_clipped_as_torch_clips(norm: float) -> None:
    module, alone = _parallel(_mlp()), _mlp()
    module(X, Y).backward()
    cross_entropy(alone(X), Y).backward()
    found = planner.torch.clip_grad_norm_(module.parameters(), 0.1, norm)
    truth = nn.utils.clip_grad_norm_(alone.parameters(), 0.1, norm)
    torch.testing.assert_close(found, truth)
    torch.testing.assert_close(module[0].weight.grad, alone[0].weight.grad)
    one = planner.torch.clip_grad_norm_(module[0].weight, 1e-3, norm)
    torch.testing.assert_close(one, nn.utils.clip_grad_norm_(alone[0].weight, 1e-3, norm))


def test_double_precision_stays() -> None:
    loss = _parallel(_mlp().double(), X.double())(X.double(), Y)
    torch.testing.assert_close(loss, cross_entropy(_mlp().double()(X.double()), Y), rtol=1e-14, atol=0)


def test_targets_in_a_mapping_are_one_target() -> None:
    def loss(y: Tensor, wanted: dict[str, Tensor]) -> Tensor:
        return cross_entropy(y, wanted["classes"])

    module = _parallel(_mlp(), targets={"classes": Y}, loss=loss)
    assert module(X, {"classes": Y}).item() == pytest.approx(cross_entropy(_mlp()(X), Y).item(), rel=1e-6)


class Remembers(nn.Module):
    """A running mean, which is another tensor after every call, or a teacher that follows."""

    def __init__(self, how: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.how, self.layer, self.teacher = how, nn.Linear(16, 8), nn.Linear(16, 8)
        self.teacher.requires_grad_(False)
        self.register_buffer("mean", torch.zeros(8))

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.layer(x)
        if self.how == "shrinks":
            self.mean = y.detach().mean()
        elif self.how == "follows":
            with torch.no_grad():
                self.teacher.weight.lerp_(self.layer.weight, 0.1)
        elif self.how == "scales":
            x.mul_(0.5)
        else:
            self.mean = 0.9 * self.mean + 0.1 * y.mean(0)
        return y - self.mean + self.teacher(x)


def test_a_buffer_that_becomes_another_tensor_is_the_modules_own() -> None:
    plain = Remembers("replaces")
    module = _parallel(copy.deepcopy(plain))
    for _ in range(3):
        truth = cross_entropy(plain(X), Y)
        plain.mean.detach_()
        assert torch.allclose(module(X, Y), truth, atol=1e-6)
        assert torch.allclose(module.mean, plain.mean, atol=1e-6)
    with pytest.raises(InputError, match=r"the buffer mean another shape or type, \[\] torch.float32 for \[8\]"):
        _parallel(Remembers("shrinks"))


def test_what_a_step_writes_into_besides_buffers_is_said() -> None:
    with pytest.raises(InputError, match=r"writes into the parameter teacher.weight; write into it behind the step"):
        _planned(Remembers("follows"))
    with pytest.warns(UserWarning, match="writes into its input"):
        _planned(Remembers("scales"))


def test_a_loss_may_weigh_classes_and_learns_nothing() -> None:
    weighs = nn.CrossEntropyLoss(weight=torch.arange(1.0, 9.0))
    plain = _mlp()
    module = _parallel(copy.deepcopy(plain), loss=weighs)
    assert torch.allclose(module(X, Y), weighs(plain(X), Y), atol=1e-6)

    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(()))

        def forward(self, scores: Tensor, labels: Tensor) -> Tensor:
            return cross_entropy(scores * self.scale, labels)

    with pytest.raises(InputError, match="the loss has a parameter of its own, scale; make the loss a part of"):
        _planned(_mlp(), loss=Scaled())


def test_keys_come_in_any_order() -> None:
    class OfTwo(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = _mlp()

        def forward(self, given: dict[str, Tensor]) -> Tensor:
            return self.layers(given["a"] - 2 * given["b"])

    plain = OfTwo()
    module = _parallel(copy.deepcopy(plain), ({"a": X, "b": X.flip(0)},))
    found = module({"b": X.flip(0), "a": X}, Y)
    assert torch.allclose(found, cross_entropy(plain({"a": X, "b": X.flip(0)}), Y), atol=1e-6)


def test_an_index_that_is_computed_is_not_compared_with_its_input() -> None:
    """As OPT counts positions from a mask."""

    class Counts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words, self.places, self.out = nn.Embedding(8, 16), nn.Embedding(6, 16), nn.Linear(16, 8)

        def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
            at = (torch.cumsum(mask, 1) * mask - 1) + 2
            return self.out(self.words(ids) + self.places(at)).flatten(0, 1)

    plain, mask = Counts(), torch.ones(2, 4, dtype=torch.int64)
    ids = Y.view(2, 4)  # a view of the targets
    module = _parallel(copy.deepcopy(plain), (ids, mask))
    assert torch.allclose(module(ids, mask, Y), cross_entropy(plain(ids, mask), Y), atol=1e-6)
    with pytest.raises(InputError, match="expected numbers from 0 to 7"):
        module(ids + 4, mask, Y)


class OfTwoTypes(nn.Module):
    """Most of it in bfloat16, and a layer in single precision that says so."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.wide, self.narrow = nn.Linear(16, 8), nn.Linear(16, 32, dtype=torch.bfloat16)
        self.last = nn.Linear(32, 8, dtype=torch.bfloat16)

    def forward(self, x: Tensor) -> Tensor:
        return self.wide(x) + self.last(self.narrow(x.to(torch.bfloat16))).float()


def test_a_module_of_two_types_computes_as_it_says_and_takes_inputs_of_its_types() -> None:
    alone, module = OfTwoTypes(), _parallel(OfTwoTypes())
    assert module._planner.narrowed is None
    assert module._planner.document.schedule.precision == "bf16"
    torch.testing.assert_close(module(X, Y), cross_entropy(alone(X), Y), rtol=2e-3, atol=0)  # roundings of bfloat16
    with pytest.raises(InputError, match=r"input x: expected elements of torch\.float32"):
        module(X.bfloat16(), Y)
    wide = nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 8))
    wide[1] = nn.Linear(64, 64, dtype=torch.float32)
    assert _parallel(wide, precision="bf16")._planner.narrowed == torch.bfloat16
