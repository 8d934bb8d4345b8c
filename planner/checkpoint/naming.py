"""What a tensor of a checkpoint is: a parameter, or a slot of its optimizer, whatever the framework spells it.

| | weight | Adam | momentum |
|---|---|---|---|
| MindSpore | `P` | `moment1.P`, `moment2.P` (`adam_m.P`, `adam_v.P` of AdamWeightDecay) | `moments.P` |
| PyTorch, by DCP | `model.P` | `optimizer.state.P.exp_avg`, `….exp_avg_sq` | `optimizer.state.P.momentum_buffer` |
| plain | `P` | `P.exp_avg`, `P.exp_avg_sq` | `P.momentum_buffer` |

Sources: mindspore/nn/optim (prefixes of the slots), torch.distributed.checkpoint.state_dict.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

__all__ = ["SHAPED", "STYLES", "Tensor", "parameters_among", "parse", "spelled", "style_of"]

STYLES: Final = ("mindspore", "torch", "plain")
_SLOTS: Final = {
    "moment1": "exp_avg", "adam_m": "exp_avg", "exp_avg": "exp_avg", "moment2": "exp_avg_sq", "adam_v": "exp_avg_sq",
    "exp_avg_sq": "exp_avg_sq", "moments": "momentum_buffer", "accum": "momentum_buffer",
    "momentum_buffer": "momentum_buffer", "step": "step",
}  # fmt: skip
SHAPED: Final = ("exp_avg", "exp_avg_sq", "momentum_buffer")  # slots with the shape of their parameter
_MINDSPORE: Final = {"exp_avg": "moment1", "exp_avg_sq": "moment2", "momentum_buffer": "moments"}


@dataclass(frozen=True, slots=True)
class Tensor:
    """`parameter` is empty of what belongs to none; `slot` of the parameter itself; `name`: as it was spelled."""

    name: str
    parameter: str = ""
    slot: str = ""


def parse(name: str, parameters: Collection[str]) -> Tensor:
    """What a name says, among these parameters."""
    if name in parameters:
        return Tensor(name, name)
    parts = name.split(".")
    for length in range(len(parts) - 1, 0, -1):
        for begin in range(len(parts) - length + 1):
            if (parameter := ".".join(parts[begin : begin + length])) not in parameters:
                continue
            front, back = parts[:begin], parts[begin + length :]
            if front in (["model"], ["module"]) and not back:
                return Tensor(name, parameter)
            rest = [*front, *back]
            known = [_SLOTS[p] for p in rest if p in _SLOTS]
            return Tensor(name, parameter, known[-1] if known else ".".join(rest))
    return Tensor(name)


def parameters_among(names: Collection[str]) -> set[str]:
    """Those of the names that are parameters, where nobody says which are: all but slots of others."""
    known = set(names)
    plain = {n.removeprefix("model.") for n in known} if style_of(known) == "torch" else known
    out = set()
    for name in plain:
        parts = name.split(".")
        rest = {".".join(parts[:-1])} if parts[-1] in _SLOTS else set()
        rest |= {".".join(parts[1:])} if parts[0] in _SLOTS else set()
        if not rest & plain and not name.startswith("optimizer.state."):
            out.add(name)
    return out


def style_of(names: Collection[str]) -> str:
    """How a checkpoint spells its tensors."""
    if any(n.startswith("optimizer.state.") for n in names):  # "model." alone may be the module's own
        return "torch"
    if any(n.partition(".")[0] in ("moment1", "moment2", "moments", "adam_m", "adam_v") for n in names):
        return "mindspore"
    return "plain"


def spelled(tensor: Tensor, style: str) -> str:
    """The name in another style."""
    if not tensor.parameter:
        return tensor.name
    if style == "torch":
        return f"optimizer.state.{tensor.parameter}.{tensor.slot}" if tensor.slot else f"model.{tensor.parameter}"
    if not tensor.slot:
        return tensor.parameter
    if style == "mindspore":
        return f"{_MINDSPORE.get(tensor.slot, tensor.slot)}.{tensor.parameter}"
    return f"{tensor.parameter}.{tensor.slot}"
