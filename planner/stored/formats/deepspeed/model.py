"""A file of the model: weights in the type of the training, buffers, and what the training itself saved."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from planner.errors import InputError
from planner.stored.arrays import StoredArray
from planner.stored.formats.deepspeed.parts import Flattened
from planner.stored.formats.layout import MOST_DIMENSIONS
from planner.stored.formats.nested import named_leaves
from planner.stored.formats.pickled import Call
from planner.stored.formats.torch_file import read_saved
from planner.stored.moves import Held

__all__ = ["Model", "frozen", "number", "read_model", "shape_of", "shards"]

# What says how the files lie, and is not needed once they are read.
_LAYOUT: Final = (
    "module", "buffer_names", "optimizer", "param_shapes", "frozen_param_shapes", "shared_params",
    "frozen_param_fragments", "dp_world_size", "mp_world_size", "checkpoint_parallel_dimensions", "ds_version",
    "universal_checkpoint_info", "num_experts",
)  # fmt: skip
Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Model:
    """`module`: tensors of the model's state_dict; `shapes`: of the optimizer's parameters, group by group, in the
    order in which they lie in it; `shared`: name → that of the parameter it shares; `fragments`: this rank's, of
    parameters that are not trained; `optimizer`: of a training without ZeRO; `rest`: what else is saved; `experts`:
    whether ranks divide experts."""

    file: Path
    module: dict[str, StoredArray] = field(default_factory=dict)
    buffers: frozenset[str] = frozenset()
    shapes: tuple[dict[str, Shape], ...] = ()
    shared: dict[str, str] = field(default_factory=dict)
    frozen: dict[str, Shape] = field(default_factory=dict)
    fragments: dict[str, StoredArray] = field(default_factory=dict)
    optimizer: Any = None
    rest: dict[str, Any] = field(default_factory=dict)
    experts: bool = False


def read_model(file: Path) -> Model:
    """InputError where the file is none of DeepSpeed's."""
    try:
        found = read_saved(file)
        if not isinstance(found, dict) or not isinstance(found.get("module"), dict):
            raise ValueError("no module in it")
        module: dict[str, StoredArray] = {}
        for name, leaf in named_leaves(found["module"]):
            if name in module:
                raise ValueError(f"two tensors called {name!r:.80}, by keys that have dots in them")
            if isinstance(leaf, StoredArray):
                module[name] = leaf
        shapes = tuple(_shapes(group) for group in found.get("param_shapes") or ())
        shared = {str(k): str(v) for k, v in _dict(found.get("shared_params")).items()}
        buffers = frozenset(str(n) for n in found.get("buffer_names") or ())
        fragments = {str(n): v for n, v in _dict(found.get("frozen_param_fragments")).items()
                     if isinstance(v, StoredArray)}  # fmt: skip
        rest = {str(k): v for k, v in found.items() if k not in _LAYOUT}
        return Model(file, module, buffers, shapes, shared, _shapes(_dict(found.get("frozen_param_shapes"))), fragments,
                     found.get("optimizer"), rest, bool(found.get("num_experts")))  # fmt: skip
    except OSError as e:
        raise InputError(f"{file}: cannot be read: {e.strerror}") from None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError) as e:
        raise InputError(f"{file}: expected a model that DeepSpeed saved, found {e}; save it anew") from None


def frozen(models: Mapping[int, Model]) -> dict[str, Held]:
    """Parameters that are not trained, of which each rank of ZeRO 3 has a part.  ValueError where they do not fit."""
    first = models[min(models)]
    if not first.frozen:
        return {}
    if sorted(models) != list(range(len(models))):
        raise ValueError(f"files of the model of ranks {sorted(models)[:8]}, where some are missing: bring them back")
    out = {}
    for name, shape in first.frozen.items():
        lengths = shards(shape, len(models))
        try:
            parts = [(models[r].fragments[name], 0) for r in sorted(models)]
            out[name] = Flattened.of(shape, lengths).held(parts)
        except KeyError:
            raise ValueError(f"{name!r:.80}, which no file of some rank has") from None
        except ValueError as e:
            raise ValueError(f"{name!r:.80}: {e}") from None
    return out


def shards(shape: Shape, ranks: int) -> list[int]:
    """Elements that each rank of ZeRO 3 has of a parameter, without those that fill up the last."""
    count = 1
    for n in shape:
        count *= n
    each = -(-count // ranks)
    return [max(0, min(each, count - r * each)) for r in range(ranks)]


def shape_of(value: Any) -> Shape:
    """Of a torch.Size.  ValueError where it is none."""
    if isinstance(value, Call) and value.arguments:
        value = value.arguments[0]
    elif isinstance(value, Call):
        value = ()
    if not isinstance(value, (tuple, list)) or len(value) > MOST_DIMENSIONS:
        raise ValueError(f"a shape {value!r:.80}")
    if any(isinstance(n, bool) or not isinstance(n, int) or not 0 <= n < 1 << 48 for n in value):
        raise ValueError(f"a shape {value!r:.80}")
    return tuple(value)


def number(value: Any) -> int:
    """An integer, or an enumeration of DeepSpeed's that is one.  ValueError where it is none."""
    if isinstance(value, Call) and len(value.arguments) == 1:
        value = value.arguments[0]
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(f"{value!r:.80} in place of a number")
    return value


def _shapes(group: Any) -> dict[str, Shape]:
    return {str(name): shape_of(shape) for name, shape in _dict(group).items()}


def _dict(value: Any) -> dict[Any, Any]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise ValueError(f"{type(value).__name__} in place of a dictionary")
    return value
