"""What a tensor of a checkpoint is: a parameter, or a slot of its optimizer, whatever the framework spells it.

| | weight | Adam | momentum |
|---|---|---|---|
| MindSpore | `P` | `moment1.P`, `moment2.P` (`adam_m.P`, `adam_v.P` of AdamWeightDecay) | `moments.P` |
| PyTorch, by DCP | `model.P` | `optimizer.state.P.exp_avg`, `….exp_avg_sq`, `….step` | `….momentum_buffer` |
| Megatron, by DCP | `P` | `optimizer.state.exp_avg.P`, `….exp_avg_sq.P`, `….fp32_param.P` (`param.P`) | |
| plain | `P` | `P.exp_avg`, `P.exp_avg_sq`, `P.step` | `P.momentum_buffer` |

Sources: mindspore/nn/optim (prefixes of the slots), torch.distributed.checkpoint.state_dict, megatron/core/optimizer
(`fp32_param` is the copy of a weight in fp32 that it updates, `param` in the distributed optimizer).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any, Final

__all__ = ["SHAPED", "Tensor", "numbered", "parameters_among", "parse", "slots_among", "spelled", "style_of"]

_BEFORE: Final = {"moment1": "exp_avg", "adam_m": "exp_avg", "moment2": "exp_avg_sq", "adam_v": "exp_avg_sq",
                  "moments": "momentum_buffer", "accum": "momentum_buffer", "stat": "stat",
                  "accu_grads": "accu_grads", "step": "step"}  # fmt: skip
_BEHIND: Final = ("exp_avg", "exp_avg_sq", "max_exp_avg_sq", "momentum_buffer", "step", "fp32_param")
SHAPED: Final = (
    "exp_avg",
    "exp_avg_sq",
    "max_exp_avg_sq",
    "momentum_buffer",
    "fp32_param",
)  # with the shape of their parameter
_MINDSPORE: Final = {"exp_avg": "moment1", "exp_avg_sq": "moment2", "momentum_buffer": "moments"}
_STATE: Final = "optimizer.state."
_MEGATRON: Final = {"param": "fp32_param"}  # names of slots that it has beside ours
_NUMBERED: Final = re.compile(rf"(?:.*\.)?state\.\d+\.(?:{'|'.join(_BEHIND)})")


@dataclass(frozen=True, slots=True)
class Tensor:
    """`parameter` is empty of what belongs to none; `slot` of the parameter itself; `name`: as it was spelled."""

    name: str
    parameter: str = ""
    slot: str = ""


def parse(name: str, parameters: Collection[str]) -> Tensor:
    """What a name says, among these parameters; nothing that it does not say in one of the ways above."""
    return Tensor(name, name) if name in parameters else _of_another(name, parameters)


def _of_another(name: str, parameters: Collection[str]) -> Tensor:
    """As `parse`, of a name that is that of no parameter itself."""
    front, _, rest = name.partition(".")
    if front in ("model", "module") and rest in parameters:
        return Tensor(name, rest)
    if front in _BEFORE and rest in parameters:
        return Tensor(name, rest, _BEFORE[front])
    parameter, _, slot = name.removeprefix(_STATE).rpartition(".")
    if (name.startswith(_STATE) or slot in _BEHIND) and parameter in parameters:
        return Tensor(name, parameter, slot)
    slot, _, parameter = name.removeprefix(_STATE).partition(".")
    slot = _MEGATRON.get(slot, slot)
    if name.startswith(_STATE) and slot in _BEHIND and parameter in parameters:
        return Tensor(name, parameter, slot)
    return Tensor(name)


def slots_among(names: Collection[str]) -> dict[str, str]:
    """Of names as MindSpore spells them: those of slots → their parameters, which are among the names, too."""
    split = ((n, *n.partition(".")) for n in names)
    return {n: rest for n, front, _, rest in split if front in _BEFORE and rest in names}


def parameters_among(names: Collection[str], kind: str = "", paths: Iterable[tuple[Any, ...]] = ()) -> set[str]:
    """Those of the names that are parameters, where nobody says which are: all but slots of others."""
    known = set(names)
    plain = {n.removeprefix("model.") for n in known} if style_of(known, kind, paths) == "torch" else known
    return {n for n in plain if not n.startswith(_STATE) and not _of_another(n, plain).slot}


def numbered(names: Collection[str]) -> str | None:
    """A slot whose parameter is a number, as `Optimizer.state_dict()` of PyTorch has them, if there is one."""
    return next((n for n in names if _NUMBERED.fullmatch(n)), None)


def style_of(names: Collection[str], kind: str = "", paths: Iterable[tuple[Any, ...]] = ()) -> str:
    """How a checkpoint of some kind spells its tensors, which lie at `paths` of nested dictionaries, if at any."""
    if kind == "megatron":
        return "megatron"
    if any(p[:1] == ("model",) and len(p) == 2 for p in paths):
        return "torch"
    if any(n.startswith(_STATE) for n in names):  # "model." alone may be the module's own
        return "torch"
    if kind == "dcp" and names and all(n.startswith("model.") for n in names):
        return "torch"
    return "mindspore" if any(n.partition(".")[0] in _BEFORE for n in names) else "plain"


def spelled(tensor: Tensor, style: str) -> str:
    """The name in another style."""
    if not tensor.parameter:
        return tensor.name
    if style == "torch":
        return f"{_STATE}{tensor.parameter}.{tensor.slot}" if tensor.slot else f"model.{tensor.parameter}"
    if not tensor.slot:
        return tensor.parameter
    if style == "megatron":
        return f"{_STATE}{tensor.slot}.{tensor.parameter}"
    if style == "mindspore":
        return f"{_MINDSPORE.get(tensor.slot, tensor.slot)}.{tensor.parameter}"
    return f"{tensor.parameter}.{tensor.slot}"
