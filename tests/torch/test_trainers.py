"""The hooks for trainers that docs/torch.md shows: they train as the plain module does."""

from __future__ import annotations

import logging
import re
import warnings
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.peer

from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402
from torch.utils.data import DataLoader, Dataset, TensorDataset  # noqa: E402

import planner.torch  # noqa: E402
from planner.runtime.workers import Context, Workers  # noqa: E402

DOCUMENT = Path(__file__).parents[2] / "docs" / "torch.md"
PLANS = ["megatron:tp=2,micro_batch=8", "fsdp:micro_batch=4", "megatron:dp=2,zero=0,micro_batch=2"]


def shown(word: str) -> dict[str, Any]:
    """What the code of the document that has the word in it defines."""
    (code,) = (c for c in re.findall(r"```python\n(.*?)```", DOCUMENT.read_text(), re.S) if word in c)
    names: dict[str, Any] = {}
    exec(code, names)
    return names


class Words(Dataset):  # type: ignore[type-arg]
    def __len__(self) -> int:
        return 8

    def __getitem__(self, i: int) -> dict[str, Any]:
        ids = torch.randint(0, 128, (16,), generator=torch.Generator().manual_seed(i))
        return {"input_ids": ids, "labels": ids}


def _by_hugging_face(context: Context | None, strategy: str | None, folder: str) -> list[float]:
    from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    config = GPT2Config(vocab_size=128, n_positions=16, n_embd=32, n_layer=2, n_head=4, resid_pdrop=0.0,
                        embd_pdrop=0.0, attn_pdrop=0.0, use_cache=False, bos_token_id=0, eos_token_id=0)  # fmt: skip
    model: Any = GPT2LMHeadModel(config)
    model.train()
    how = TrainingArguments(folder, per_device_train_batch_size=8, max_steps=4, logging_steps=1, report_to=[],
                            use_cpu=True, save_strategy="no", disable_tqdm=True, max_grad_norm=0.5, seed=0,
                            lr_scheduler_type="constant", learning_rate=1e-3)  # fmt: skip
    kind: Any = Trainer
    if strategy is not None:
        batch = {k: torch.stack([Words()[i][k] for i in range(8)]) for k in ("input_ids", "labels")}
        plan = planner.torch.plan(model, batch, hardware="cpu", cache=False, strategy=strategy)
        model, kind = planner.torch.parallelize(model, plan), shown("class PlannedTrainer")["PlannedTrainer"]
    trainer = kind(model, how, train_dataset=Words())
    trainer.model_accepts_loss_kwargs = False
    trainer.train()
    return [h[key] for h in trainer.state.log_history for key in ("loss", "grad_norm") if key in h]


@pytest.mark.parametrize("strategy", PLANS)
def test_hugging_faces_trainer_trains_a_parallel_module(strategy: str, tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    with Workers(2) as workers:
        first, second = workers.call(_by_hugging_face, strategy, str(tmp_path))
    alone = _by_hugging_face(None, None, str(tmp_path))
    assert first == second
    assert len(alone) == 8
    assert first == pytest.approx(alone, rel=1e-5)


def _by_lightning(context: Context | None, strategy: str | None) -> list[float]:
    import lightning.pytorch

    class Module(lightning.pytorch.LightningModule):
        def __init__(self, net: nn.Module) -> None:
            super().__init__()
            self.net, self.losses = net, []

        def training_step(self, batch: Any, _: int) -> Any:
            x, y = batch
            loss = functional.cross_entropy(self.net(x), y) if strategy is None else self.net(x, y)
            self.losses.append(loss.item())
            return loss

        def configure_optimizers(self) -> Any:
            return torch.optim.AdamW(self.net.parameters(), lr=1e-2)

        def configure_gradient_clipping(self, optimizer: Any, gradient_clip_val: Any = None, **_: Any) -> None:
            clip = nn.utils.clip_grad_norm_ if strategy is None else planner.torch.clip_grad_norm_
            clip(self.net.parameters(), 0.5)

    warnings.simplefilter("ignore")
    logging.getLogger("lightning").setLevel(logging.ERROR)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 10))
    x, y = torch.randn(8, 64), torch.randint(0, 10, (8,))
    if strategy is not None:
        plan = planner.torch.plan(net, x, targets=y, loss=functional.cross_entropy, hardware="cpu", cache=False,
                                  strategy=strategy)  # fmt: skip
        net = planner.torch.parallelize(net, plan)
    module = Module(net)
    shown("SingleDeviceStrategy")["trainer"].fit(module, DataLoader(TensorDataset(x, y), batch_size=8))
    return module.losses


@pytest.mark.parametrize("strategy", PLANS)
def test_lightning_trains_a_parallel_module(strategy: str) -> None:
    pytest.importorskip("lightning")
    with Workers(2) as workers:
        first, second = workers.call(_by_lightning, strategy)
    alone = _by_lightning(None, None)
    assert first == second
    assert len(alone) == 4
    assert first == pytest.approx(alone, rel=1e-5)
