"""Checkpoints of Megatron-core: a DCP folder (`torch_dist`) with `metadata.json` and `common.pt` beside it.

Layers are stacked in one tensor (`decoder.layers.self_attention.linear_qkv.weight`: [layers, ...]), and experts in
another dimension (`….experts.experts.linear_fc1.weight`: [layers, experts, ...]), unless a number stands in the name.
`common.pt` has what is no tensor: among it, how many updates the optimizer has made.  Modules keep an `_extra_state`,
an object of each layer, which Megatron asks for whether it holds anything or not; here it holds nothing.
Sources: megatron/core/dist_checkpointing/{serialization,mapping}.py, megatron/core/transformer/utils.py and
megatron/core/optimizer/{optimizer,distrib_optimizer}.py of Megatron-core 0.16.1.
"""

from __future__ import annotations

import fnmatch
import json
import math
import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from planner.checkpoint.naming import Tensor
from planner.checkpoint.wording import listed
from planner.errors import InputError
from planner.stored.arrays import Files, Range, StoredArray
from planner.stored.formats.crc import patches
from planner.stored.formats.dcp import METADATA, DistCp, Folder, Objects, metadata
from planner.stored.formats.layout import Entry
from planner.stored.formats.registry import read_file
from planner.stored.formats.torch_file import saved
from planner.stored.moves import Held
from planner.stored.writing import FileToWrite
from planner.transfer.blocks import blocks
from planner.transfer.pieces import whole

__all__ = ["COUNT", "check_reshardable", "is_megatron", "with_common", "written"]

COUNT: Final = "global_step"  # how many updates the optimizer has made, as a tensor of the checkpoint
_CONFIG: Final = "metadata.json"
_COMMON: Final = "common.pt"
_BACKEND: Final = {"sharded_backend": "torch_dist", "sharded_backend_version": 1, "common_backend": "torch",
                   "common_backend_version": 1}  # fmt: skip
_STATE: Final = "optimizer.state."
_MAIN: Final = ("fp32_param", "param")  # names of the weights in fp32: of Float16Optimizer, of DistributedOptimizer
_BEFORE: Final = "pre_mlp_layernorm."  # the norm in front of experts
_FUSED: Final = "mlp.linear_fc1.layer_norm_"  # that of a matrix behind it
_CHUNK: Final = 64 << 20  # bytes of a chunk at most, since each rank reads chunks whole
_SMALL: Final = 1 << 20  # bytes of a tensor whose layers need no chunks of their own
_LONGEST: Final = 1 << 16  # bytes of metadata.json
_STEPS: Final = ("common_step", "step")
_MOST_STEPS: Final = 1 << 62


# Reading


def is_megatron(folder: Path) -> bool:
    """Whether a DCP folder is Megatron's.  InputError where its `metadata.json` cannot be read."""
    file = folder / _CONFIG
    if not file.is_file():
        return False
    try:
        if file.stat().st_size > _LONGEST:
            raise ValueError(f"{file.stat().st_size:,} bytes")
        found = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as e:
        raise InputError(f"{file}: expected what Megatron writes there, found {e}; bring back the file") from None
    return isinstance(found, dict) and found.get("sharded_backend") == "torch_dist"


def with_common(folder: Path, found: Folder) -> Folder:
    """What a DCP folder has, with what lies beside it in `common.pt`: the optimizer's count as the tensor COUNT, all
    else among the values.

    InputError where the file cannot be read.
    """
    tensors = {n: h for n, h in found.tensors.items() if not _is_alias(n, h, found.tensors)}
    common = folder / _COMMON
    if not common.is_file():
        return replace(found, tensors=tensors)
    content = read_file(common)
    beside: dict[str, Any] = {f"common.{n}": v for n, v in content.values.items()}
    beside |= {f"common.{n}": None for n in content.arrays}
    count = _count(common, content.values, content.arrays)
    if count is not None and any(n.startswith(_STATE) for n in tensors):
        value = np.array(count, np.int64)
        array = StoredArray(Path("."), 0, value.dtype, (), data=value.tobytes())
        tensors[COUNT] = Held(whole(()), (array,), value.dtype)
    return replace(found, tensors=tensors, values={**beside, **found.values}, files=(*found.files, common))


def _is_alias(name: str, held: Held, tensors: Mapping[str, Held]) -> bool:
    """Whether a name means what another name means already, as in what is written here."""
    slot, _, parameter = name.removeprefix(_STATE).partition(".")
    others = [name.replace(_FUSED, _BEFORE)] if _FUSED in name else []
    if name.startswith(_STATE) and slot in _MAIN:
        others += [parameter] if slot == _MAIN[0] else [parameter, f"{_STATE}{_MAIN[0]}.{parameter}"]
    return any(tensors[o].arrays == held.arrays for o in others if o in tensors)


def _count(file: Path, values: Mapping[str, Any], arrays: Mapping[str, StoredArray]) -> int | None:
    """The optimizer's count, where all places that have it agree.  InputError where one has no number."""
    found: list[Any] = [v for n, v in values.items() if _is_step(n) and isinstance(v, (int, float))]
    with Files() as files:
        for name, a in arrays.items():
            if _is_step(name) and a.shape in ((), (1,)):
                found.append(files.read(a, [(0, n) for n in a.shape]).reshape(-1)[0].item())
    wrong = next((v for v in found if not isinstance(v, (int, float)) or not 0 <= v < _MOST_STEPS), None)
    if wrong is not None:
        raise InputError(f"{file}: expected a count of an optimizer's steps, found {wrong!s:.40}; save it anew")
    counts = set(map(int, found))
    return counts.pop() if len(counts) == 1 else None


def _is_step(name: str) -> bool:
    return name.startswith("optimizer.") and name.rpartition(".")[2] in _STEPS


def check_reshardable(
    place: Path, tensors: Mapping[str, Held], said: Mapping[str, Tensor], skip: Sequence[str]
) -> None:  # fmt: skip
    """InputError where an optimizer's state lies in a form that belongs to the ranks that wrote it."""
    kept = [n for n in tensors if not any(fnmatch.fnmatchcase(n, p) for p in skip)]
    buckets = [
        n for n in kept if n.startswith(("optimizer.distributed.", "chained_")) or ".optimizer.distributed." in n
    ]
    flat = [n for n in kept if said[n].slot and said[n].parameter in tensors and tensors[n].shape
            and tensors[n].shape != tensors[said[n].parameter].shape]  # fmt: skip
    if buckets or flat:
        form = "in the buckets of its ranks (dp_reshardable)" if buckets else "flattened, as before Megatron-core 0.14"
        patterns = "--skip '*optimizer.distributed.*'" if buckets else f"--skip '{_STATE}*'"
        raise InputError(
            f"{place}: the optimizer's state lies {form}: {listed(buckets or flat)}; save it with "
            f"--dist-ckpt-optim-fully-reshardable, or leave it out with {patterns}"
        )


# Writing


def written(place: Path, entries: Sequence[Entry], count: int | None) -> tuple[list[FileToWrite], dict[str, bytes]]:
    """(files, small ones with their content) of a folder with these tensors, under Megatron's names; `count`: of the
    optimizer's updates.

    InputError where counts of parameters differ: Megatron has one.
    """
    steps = [e.name for e in entries if e.name.startswith(f"{_STATE}step.")]
    if steps:
        raise InputError(f"{place}: Megatron counts the updates of all parameters once, found counts that differ, or "
                         f"of no parameter with a state: {listed(steps)}; leave them out with --skip")  # fmt: skip
    data = DistCp({e.name: c for e in entries if len(c := list(_chunks(e))) > 1})
    nothing, path, extra = _file([None], b""), "__0_0.distcp", "__0_1.distcp"
    names = {e.name for e in entries}
    objects = Objects(extra, len(nothing), tuple(n for e in entries for n in _extra_states(e)))
    about = metadata({path: entries}, data, objects, aliases=dict(_aliases(names)), nested=False)
    small = {METADATA: about, _COMMON: _common(names, count), _CONFIG: json.dumps(_BACKEND).encode()}
    return [FileToWrite(path, data, tuple(entries), {})], small | ({extra: nothing} if objects.names else {})


def _front(name: str) -> int:
    """How many leading dimensions stack layers and experts."""
    return len(re.findall(r"(?:^|\.)layers\.(?!\d)", name)) + ("experts.experts." in name)


def _chunks(e: Entry) -> Iterator[list[Range]]:
    """A chunk of each layer and expert, so that a rank reads little of what it does not need; large ones in several."""
    front = min(_front(e.name), len(e.shape)) if e.nbytes > _SMALL else 0
    for at in np.ndindex(*e.shape[:front]):
        for box in blocks(e.shape[front:], _CHUNK // e.dtype.itemsize):
            yield [*((i, i + 1) for i in at), *box]


def _extra_states(e: Entry) -> Iterator[str]:
    """Names of the objects that Megatron asks for beside a module's weight."""
    module, _, kind = e.name.rpartition(".")
    if kind != "weight" or not module.startswith("decoder.") or e.name.startswith(_STATE):
        return
    counts = e.shape[: _front(e.name)] or (1,)
    modules = [module]
    if module.endswith("self_attention.linear_qkv"):
        modules.append(module.removesuffix("linear_qkv") + "core_attention")
    for m in modules:
        for at in np.ndindex(*counts):
            yield f"{m}._extra_state/shard_{'.'.join(map(str, at))}_{'.'.join(map(str, counts))}"


def _aliases(names: set[str]) -> Iterator[tuple[str, str]]:
    """(another name of a tensor that Megatron may ask for, the name that has it).

    Of a weight in fp32, which its optimizers call differently: where no slot has it, the weight itself.  And of the
    norm before experts, which TransformerEngine's layers and Megatron's own call differently.
    """
    for name in names:
        slot, _, parameter = name.removeprefix(_STATE).partition(".")
        if name.startswith(_STATE) and slot == "exp_avg" and parameter in names:
            main = f"{_STATE}{_MAIN[0]}.{parameter}"
            held = main if main in names else parameter
            mains = [n for n in (f"{_STATE}{s}.{parameter}" for s in _MAIN) if n not in names]
            yield from ((n, held) for n in mains)
            yield from ((n.replace(_BEFORE, _FUSED), held) for n in mains if _BEFORE in n)
        if _BEFORE in name and (other := name.replace(_BEFORE, _FUSED)) not in names:
            yield other, name


def _common(names: set[str], count: int | None) -> bytes:
    numbered = any(re.match(r"decoder\.layers\.\d", n) for n in names)
    content = {
        "singleton_local_shards": False, "non_homogeneous_layers": numbered,
        "distrib_optim_sharding_type": "fully_reshardable", "chained_optim_avoid_prefix": True,
    }  # fmt: skip
    value: dict[str, Any] = {"checkpoint_version": 3.0, "iteration": count or 0, "content_metadata": content}
    data = b""
    if any(n.startswith(_STATE) for n in names):
        optimizer: dict[str, Any] = {"param_state_sharding_type": content["distrib_optim_sharding_type"]}
        if count is not None:
            step = Entry("step", np.dtype(np.float32), ())
            data = np.array(count, np.float32).tobytes()
            inner = any(n.startswith(f"{_STATE}{_MAIN[0]}.") for n in names)  # Float16Optimizer has another within
            optimizer |= {"optimizer": {"state": {"common_step": step}}} if inner else {"state": {"common_step": step}}
        value["optimizer"] = optimizer
    return _file(value, data)


def _file(value: Any, data: bytes) -> bytes:
    """A file of torch.save; `data`: of the one tensor that is within the value."""
    entry = next(_entries(value), None)
    made = saved([] if entry is None else [entry], value)
    out = bytearray(made.size)
    fixed = list(made.fixed)
    if entry is not None:
        member = "archive/data/0"
        assert len(data) == math.prod(entry.shape) * entry.dtype.itemsize
        fixed.append((made.begins[member], data))
        fixed += patches(made.sums[member], b"", zlib.crc32(data), len(data))
    for offset, part in fixed:
        out[offset : offset + len(part)] = part
    return bytes(out)


def _entries(value: Any) -> Iterator[Entry]:
    if isinstance(value, Entry):
        yield value
    elif isinstance(value, dict):
        for v in value.values():
            yield from _entries(v)
