"""A model of Hugging Face's transformers from its config.json alone: no weights, no tokenizer and no network."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor, nn

from planner.errors import InputError, UsageError
from planner.nearest import did_you_mean
from planner.torch.capture.unallocated import without_weights
from planner.torch.export.modules import failed

__all__ = ["Configured", "configured"]

_MOST_BYTES = 1 << 24  # of a config.json; those of known models have some thousand
_PER_SAMPLE: Final = (
    "ForAudioClassification",
    "ForImageClassification",
    "ForSequenceClassification",
    "ForVideoClassification",
)
_PER_TOKEN: Final = (
    "ForCausalLM",
    "ForConditionalGeneration",
    "ForMaskedLM",
    "ForTokenClassification",
    "LMHeadModel",
)
# Entries that say how a checkpoint is stored, or what is run beside the model.
_NOT_OF_THE_MODEL: Final = frozenset({
    "_attn_implementation", "architectures", "auto_map", "dtype", "model_type", "quantization_config", "torch_dtype",
})  # fmt: skip


@dataclass(frozen=True)
class Configured:
    """A module with the arguments of one step; `trains`: whether it returns its loss."""

    module: nn.Module
    inputs: Mapping[str, Any]
    trains: bool
    name: str


def configured(
    where: Path, *, batch: int, sequence: int | None, architecture: str | None, settings: Mapping[str, Any]
) -> Configured:
    """The model of a config.json, or of the folder that it lies in.

    `settings` replace entries of the configuration; `architecture` is the class of transformers, by default the first
    that the configuration names.

    Raises:
        UsageError: transformers is missing, or an option does not fit the configuration.
        InputError: there is no configuration that transformers understands.
    """
    os.environ.setdefault("HF_HUB_OFFLINE", "1")  # read when transformers is imported
    entries = _entries(where)
    transformers = _transformers()
    kind = _class(transformers, entries, architecture, where)
    config = _config(transformers, entries, settings, where)
    try:
        with without_weights():
            module = kind(config)
    except Exception as error:
        raise failed(f"--hf {where}: {kind.__name__}", error) from error
    inputs, trains = _inputs(module, config, batch, sequence)
    name = where.stem if where.is_file() and where.stem != "config" else where.resolve().parent.name \
        if where.is_file() else where.resolve().name  # fmt: skip
    return Configured(module, inputs, trains, name or kind.__name__)


def _entries(where: Path) -> dict[str, Any]:
    file = where / "config.json" if where.is_dir() else where
    if not file.is_file():
        fetch = (
            "nothing is downloaded here: fetch the configuration first "
            f"(`hf download {where} config.json --local-dir DIR`, no weights are needed) and give --hf DIR"
            if not where.exists() and not where.is_absolute() and len(where.parts) == 2
            else "give the path of a config.json, or of the folder that it lies in"
        )
        raise InputError(f"--hf {where}: expected a config.json, found none; {fetch}")
    try:
        if file.stat().st_size > _MOST_BYTES:
            raise InputError(f"--hf {file}: {file.stat().st_size:,} bytes; expected a config.json of a few thousand")
        entries = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"--hf {file}: cannot be read as JSON ({str(error)[:120]}); give a config.json") from error
    if not isinstance(entries, dict) or not isinstance(entries.get("model_type"), str):
        raise InputError(
            f"--hf {file}: expected a configuration of transformers with its model_type, found none; give the "
            "config.json of a model"
        )
    return entries


def _transformers() -> Any:
    try:
        import transformers
    except ImportError as error:
        raise UsageError(
            f"--hf needs transformers, which cannot be imported ({error}); install it: "
            "pip install '.[export]' transformers, in the repository"
        ) from error
    transformers.logging.set_verbosity_error()
    return transformers


def _class(transformers: Any, entries: Mapping[str, Any], given: str | None, where: Path) -> Any:
    named = entries.get("architectures")
    name = given or (named[0] if isinstance(named, list) and named and isinstance(named[0], str) else None)
    if name is None:
        raise UsageError(
            f"--hf {where}: the configuration names no architectures; name the class of transformers with "
            "--architecture, as LlamaForCausalLM"
        )
    try:
        found = getattr(transformers, name, None)
    except Exception as error:  # its module needs a package that is missing
        raise UsageError(f"--hf {where}: {name} cannot be imported: {' '.join(str(error).split())[:300]}") from error
    if not (isinstance(found, type) and issubclass(found, nn.Module)):
        others = [n for n in dir(transformers) if n.startswith(name[:2]) and n != name and not n.endswith("Config")]
        hint = did_you_mean(name, others)
        raise InputError(
            f"--hf {where}: transformers {transformers.__version__} has no model {name}{hint}; code that a model "
            "brings with it is not run here: write a function that makes the module, and export that"
        )
    return found


def _config(transformers: Any, entries: Mapping[str, Any], settings: Mapping[str, Any], where: Path) -> Any:
    """Without the cache of decoding, which a step has none of."""
    given = {k: v for k, v in entries.items() if k not in _NOT_OF_THE_MODEL}
    try:
        config = transformers.AutoConfig.for_model(entries["model_type"], **given)
        for name, value in settings.items():
            owner = config
            *path, last = name.split(".")
            for part in path:
                owner = getattr(owner, part)
            if not hasattr(owner, last):
                known = [k for k in owner.to_dict() if not k.startswith("_")]
                raise UsageError(f"--arg {name}: the configuration has no {name}{did_you_mean(last, known)}")
            setattr(owner, last, value)
    except UsageError:
        raise
    except Exception as error:
        raise InputError(
            f"--hf {where}: transformers {transformers.__version__} does not understand this configuration: "
            f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
        ) from error
    for owner in (config, getattr(config, "text_config", None), getattr(config, "decoder", None)):
        if owner is not None and hasattr(owner, "use_cache"):
            owner.use_cache = False
    return config


def _inputs(module: Any, config: Any, batch: int, sequence: int | None) -> tuple[dict[str, Any], bool]:
    """One step's arguments by name: what the model reads, and labels where it makes a loss of them."""
    kind = type(module).__name__
    accepted = _accepted(module)
    length = _length(config, sequence)
    main = getattr(module, "main_input_name", "input_ids")
    made: dict[str, Any] = {}
    if main == "input_ids" or (main == "pixel_values" and "input_ids" in accepted):
        made["input_ids"] = _words(batch, length)
    if main == "pixel_values" or "CLIP" in kind or "SigLIP" in kind.upper():
        vision = getattr(config, "vision_config", config)
        made["pixel_values"] = _floats(batch, *_image(vision))
    elif main == "input_features":
        frames = 2 * int(getattr(config, "max_source_positions", 1500))
        made["input_features"] = _floats(batch, int(getattr(config, "num_mel_bins", 80)), frames)
    elif main == "input_values":
        made["input_values"] = _floats(batch, sequence or 16000)
    elif main != "input_ids":
        raise UsageError(f"{kind} reads {main}; give its inputs with --inputs")
    made = {k: v for k, v in made.items() if k in accepted}
    if "return_loss" in accepted and "labels" not in accepted:
        made["return_loss"] = True
        return made, True
    if "labels" in accepted and kind.endswith(_PER_SAMPLE):
        return made | {"labels": _words(batch)}, True
    if "labels" in accepted and kind.endswith(_PER_TOKEN):
        return made | {"labels": _words(batch, length)}, True
    if "start_positions" in accepted and "end_positions" in accepted:
        return made | {"start_positions": _words(batch), "end_positions": _words(batch)}, True
    return made, False


def _accepted(module: nn.Module) -> set[str]:
    import inspect

    return set(inspect.signature(module.forward).parameters)


def _length(config: Any, sequence: int | None) -> int:
    """`sequence`, which by default is 512 tokens or what the model has positions for."""
    text = getattr(config, "text_config", config)
    for name in ("max_position_embeddings", "n_positions", "max_target_positions", "max_sequence_length"):
        most = getattr(text, name, None)
        if isinstance(most, int) and most > 0:
            if sequence is not None and sequence > most:
                raise UsageError(
                    f"--sequence {sequence}: the configuration has {name} {most}; give fewer tokens, or --arg {name}=…"
                )
            return sequence or min(512, most)
    return sequence or 512


def _image(config: Any) -> tuple[int, int, int]:
    size = getattr(config, "image_size", 224)
    height, width = (size, size) if isinstance(size, int) else (int(size[0]), int(size[1]))
    return int(getattr(config, "num_channels", 3)), height, width


def _words(*shape: int) -> Tensor:
    return torch.empty(shape, dtype=torch.int64, device="meta")


def _floats(*shape: int) -> Tensor:
    return torch.empty(shape, device="meta")
