"""State of parallel modules and their optimizers under plain names: what torch.distributed.checkpoint saves and loads.

Names and shapes are those of the module alone, whatever the plan, so that a checkpoint of one plan is read under any
other, and by the plain module.  A parameter whose shards hold pieces that lie apart (queries, keys and values of one
matrix, each split by itself) is handed out in shards of one piece each, by a gather over the ranks that split it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.tensor import DTensor

from planner.errors import UsageError
from planner.runtime.placements import in_one_piece, in_shards_of, local_tensor

__all__ = ["STAGES", "clip_grad_norm_", "in_shards", "load_state_dict", "set_step", "state_dict", "whole_state_dict"]

STAGES: Final = "_planner_stages"  # of a parameter, by how many stages of the pipeline it is held


def state_dict(module: nn.Module, optimizer: torch.optim.Optimizer | None = None) -> dict[str, Any]:
    """State to save with torch.distributed.checkpoint: `model`, and `optimizer` where one is given.

    All ranks call it together.  To load, pass it to `torch.distributed.checkpoint.load`, and then to `load_state_dict`.
    """
    found: dict[str, Any] = {"model": _mapped(in_one_piece, _held(module))}
    if optimizer is not None:
        found["optimizer"] = _mapped(in_one_piece, get_optimizer_state_dict(module, optimizer))
    return found


def load_state_dict(
    module: nn.Module, state: Mapping[str, Any], optimizer: torch.optim.Optimizer | None = None
) -> None:
    """Puts state of `state_dict`, as it was or as it was loaded since, into the module and the optimizer.

    Dropout goes on from the step that the optimizer counts, as AdamW does.  Beside one that counts none, as SGD, and
    where the module is called several times for an update, say it with `set_step`.
    """
    now = _held(module)
    loaded = {n: in_shards_of(v, now[n]) for n, v in state["model"].items() if n in now}
    set_model_state_dict(module, loaded, options=StateDictOptions(strict=False))
    if optimizer is not None:
        fresh = get_optimizer_state_dict(module, optimizer)
        set_optimizer_state_dict(module, optimizer, _alike(state["optimizer"], fresh))
        counted = [int(s["step"]) for s in optimizer.state.values() if "step" in s]
        if counted and hasattr(type(module), "_planner"):
            set_step(module, max(counted))


def in_shards(module: nn.Module, state: dict[str, Any], prefix: str, *_: Any) -> None:
    """A hook of `load_state_dict`: whole tensors, as the plain module has them, become this rank's shards."""
    runner = getattr(type(module), "_planner", None)
    for name, p in module.named_parameters(remove_duplicate=False):
        value = state.get(prefix + name)
        fits = isinstance(value, Tensor) and not isinstance(value, DTensor) and value.shape == p.shape
        if runner is not None and fits and (p.is_meta or isinstance(p, DTensor)):
            state[prefix + name] = runner.shard(p, value)


def set_step(module: nn.Module, step: int) -> None:
    """Lets a parallel module drop what it drops behind so many calls; UsageError of a module without a plan."""
    runner = getattr(type(module), "_planner", None)
    if runner is None:
        raise UsageError(f"planner.torch.set_step: {type(module).__name__} is not parallel; parallelize it first")
    if step < 0:
        raise UsageError(f"planner.torch.set_step: step={step}: expected 0 or more steps that were made")
    runner.steps = step


def whole_state_dict(module: nn.Module) -> dict[str, Tensor]:
    """A copy of every parameter and buffer, whole, on every rank: what the plain module loads.

    A gather of all weights, which have to fit in one device's memory.  Parameters and running statistics of other
    pipeline stages come from the ranks that hold them.
    """
    found = {}
    elsewhere = _elsewhere(module)
    for name, value in get_model_state_dict(module).items():
        whole = value.full_tensor() if isinstance(value, DTensor) else value
        mine = value.to_local() if isinstance(value, DTensor) else value
        if name in elsewhere:
            found[name] = whole.to("meta")
            continue
        shared = not whole.is_meta and whole.data_ptr() == mine.data_ptr()
        found[name] = whole.clone() if shared else whole
    return _of_all_stages(found)


def clip_grad_norm_(parameters: Tensor | Iterable[Tensor], max_norm: float, norm_type: float = 2.0) -> Tensor:
    """Scales the gradients of a parallel module to a total norm of at most `max_norm`; returns the norm before.

    As torch.nn.utils.clip_grad_norm_, over parameters on several meshes and pipeline stages: each counts once.
    """
    given = [parameters] if isinstance(parameters, Tensor) else list(parameters)
    gradients = [p.grad for p in given if p.grad is not None]
    device = next((p.device for p in given if not p.is_meta), None)
    power = torch.zeros((), device=device)
    if math.isinf(norm_type):
        largest = [local_tensor(g).float().abs().max() for g in gradients if local_tensor(g).numel()]
        total = torch.stack([power, *largest]).max()
        dist.all_reduce(total, dist.ReduceOp.MAX)
        return _scaled(gradients, max_norm, total)
    for p in given:
        g = p.grad
        if g is None:
            continue
        copies = dist.get_world_size()  # of a plain tensor, which every rank holds
        if isinstance(g, DTensor):
            held = zip(g.device_mesh.shape, g.placements, strict=True)
            copies = math.prod(size for size, placement in held if placement.is_replicate())
            copies *= getattr(p, STAGES, 1)
        power = power + local_tensor(g).float().abs().pow(norm_type).sum() / copies
    dist.all_reduce(power)
    return _scaled(gradients, max_norm, power.pow(1.0 / norm_type))


def _scaled(gradients: Iterable[Tensor], max_norm: float, total: Tensor) -> Tensor:
    scale = torch.clamp(max_norm / (total + 1e-6), max=1.0)
    for g in gradients:
        local_tensor(g).mul_(scale.to(g.device))
    return total


def _held(module: nn.Module) -> dict[str, Any]:
    """The module's state without what other pipeline stages hold: parameters, and buffers that they write."""
    elsewhere = _elsewhere(module)
    state = get_model_state_dict(module)
    return {n: v for n, v in state.items() if n not in elsewhere and not (isinstance(v, Tensor) and v.is_meta)}


def _elsewhere(module: nn.Module) -> frozenset[str]:
    runner = getattr(type(module), "_planner", None)
    return frozenset() if runner is None else runner.elsewhere


def _mapped(change: Any, state: Any) -> Any:
    if isinstance(state, Mapping):
        return {k: _mapped(change, v) for k, v in state.items()}
    if isinstance(state, list | tuple):
        return type(state)(_mapped(change, v) for v in state)
    return change(state)


def _alike(state: Any, like: Any) -> Any:
    if isinstance(state, Mapping):
        return {k: _alike(v, like[k]) if k in like else v for k, v in state.items()}
    if isinstance(state, list | tuple):
        return state
    return in_shards_of(state, like)


def _of_all_stages(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """With what other pipeline stages hold."""
    holders: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(holders, [n for n, v in state.items() if not v.is_meta])
    device = next((v.device for v in state.values() if not v.is_meta), None)
    for name in sorted(state):
        if all(name in names for names in holders):
            continue
        first = next(rank for rank, names in enumerate(holders) if name in names)
        value = state[name]
        state[name] = torch.empty_like(value, device=device) if value.is_meta else value.contiguous()
        dist.broadcast(state[name], first)
    return state
