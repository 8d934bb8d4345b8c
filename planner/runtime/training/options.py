"""What a training is asked to be; nothing here needs PyTorch."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from planner.errors import UsageError

__all__ = ["Numbers", "TrainingOptions"]

OptimizerName = Literal["adamw", "sgd"]

# Of a plan's optimizer: ours, and the momentum that its name says.
_OF_PLAN: Final[dict[str, tuple[OptimizerName, float]]] = {
    "adam": ("adamw", 0.0), "momentum": ("sgd", 0.9), "sgd": ("sgd", 0.0),
}  # fmt: skip
_RATE: Final = 1e-3  # torch's default for both
_DECAY: Final[dict[OptimizerName, float]] = {"adamw": 1e-2, "sgd": 0.0}


@dataclass(frozen=True, slots=True)
class Numbers:
    """An optimizer with all its numbers; `clip`: the largest norm of all gradients together, None without a limit."""

    optimizer: OptimizerName
    lr: float
    weight_decay: float
    momentum: float
    clip: float | None

    @property
    def keeps_state(self) -> bool:
        """Whether the optimizer keeps anything beside the weights."""
        return bool(self.slots)

    @property
    def slots(self) -> tuple[str, ...]:
        """What it keeps of each element of a parameter, as torch calls it."""
        if self.optimizer == "adamw":
            return "exp_avg", "exp_avg_sq"
        return ("momentum_buffer",) if self.momentum else ()


@dataclass(frozen=True, slots=True)
class TrainingOptions:
    """What was asked for; None where nothing was.

    weights  an ONNX file, a .safetensors file or a folder of such
    seed     of weights, where no file holds them, and of the batch, where there is no data
    data     a folder (`planner.runtime.training.data`)
    save     a folder that gets a checkpoint every `save_every` steps and behind the last one
    load     a checkpoint, or the folder of several, of which the newest is taken
    resume   whether to go on from the newest checkpoint under `save`, if there is one; `steps` then counts all steps of
             the training
    profile  a folder that gets the profile of some steps behind the last one, which change nothing
    """

    steps: int = 1
    optimizer: OptimizerName | None = None
    lr: float | None = None
    weight_decay: float | None = None
    momentum: float | None = None
    clip: float | None = None
    weights: Path | None = None
    seed: int | None = None
    data: Path | None = None
    save: Path | None = None
    save_every: int | None = None
    load: Path | None = None
    profile: Path | None = None
    resume: bool | None = None

    def numbers(self, planned: str, before: dict[str, Any] | None = None) -> Numbers:
        """The optimizer: as asked, else as the checkpoint's training `before` had it, else as the plan and torch do.

        UsageError where a number means nothing to the optimizer, or where the checkpoint is of another optimizer.
        """
        ours, stated = _OF_PLAN[planned]
        earlier = before or {}
        kept: OptimizerName | None = earlier.get("optimizer")
        if self.optimizer is not None and kept is not None and kept != self.optimizer:
            raise UsageError(
                f"--optimizer {self.optimizer}: the checkpoint {self.load} is of a training with {kept}, whose state "
                f"does not fit; leave --optimizer out, or take its weights alone with --weights"
            )
        name = self.optimizer or kept or ours
        if name == "adamw" and self.momentum is not None:
            raise UsageError("--momentum: AdamW has none; leave it out, or ask for --optimizer sgd")

        def taken(given: float | None, key: str, default: float) -> float:
            return float(given if given is not None else earlier.get(key, default))

        clip = self.clip if self.clip is not None else earlier.get("clip")
        return Numbers(
            name,
            taken(self.lr, "lr", _RATE),
            taken(self.weight_decay, "weight_decay", _DECAY[name]),
            taken(self.momentum, "momentum", stated if name == "sgd" and self.optimizer is None else 0.0),
            None if clip is None else float(clip),
        )
