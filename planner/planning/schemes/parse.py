"""Strategies by name: `ddp`, `zero1`…`zero3`, `fsdp`, `hsdp:shard=8`, `megatron:tp=8,pp=4,…` → `Configuration`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

from planner.clock.configuration import ATTENTIONS, CONTEXTS, LOSSES, MATRIX_TYPES, RECOMPUTES, SCHEDULES, Configuration
from planner.clock.stages import chunks_of
from planner.cost_models.pipeline import chunks_of_schedule
from planner.errors import UsageError
from planner.nearest import did_you_mean

__all__ = ["KEYS", "SCHEMES", "in_words", "parse_strategy", "spelled", "written"]

# What frameworks do unless told otherwise: the vendor's attention, collectives beside computing.
_TODAY: Final = {"attention": "native", "overlap_gradients": True}
_OVERLAP: Final = {**_TODAY, "overlap_parameters": True}
SCHEMES: Final[Mapping[str, Mapping[str, Any]]] = MappingProxyType(
    {
        "ddp": {"zero": 0, **_TODAY},
        "zero1": {"zero": 1, **_OVERLAP},
        "zero2": {"zero": 2, **_OVERLAP},
        "zero3": {"zero": 3, **_OVERLAP},
        "fsdp": {"zero": 3, **_OVERLAP},
        "hsdp": {"zero": 3, **_OVERLAP},
        "megatron": {"zero": 1, "overlap_pipeline": True, **_OVERLAP},
    }
)


@dataclass(frozen=True, slots=True)
class _Key:
    field: str
    read: Callable[[str], Any]
    expected: str


def _count(text: str) -> int:
    if not text.isascii() or not text.isdigit() or not 1 <= int(text) <= 10**7:
        raise ValueError(text)
    return int(text)


def _flag(text: str) -> bool:
    return {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}[text.lower()]


def _one_of(*words: str) -> Callable[[str], str]:
    def read(text: str) -> str:
        if text not in words:
            raise ValueError(text)
        return text

    return read


def _fraction(text: str) -> float:
    value = float(text)
    if not 0 <= value <= 1:
        raise ValueError(text)
    return value


KEYS: Final[Mapping[str, _Key]] = MappingProxyType(
    {
        **{k: _Key(k, _count, "a positive integer") for k in ("dp", "tp", "pp", "cp", "ep", "micro_batch")},
        "context": _Key("context", _one_of(*CONTEXTS), ", ".join(CONTEXTS)),
        "copies": _Key("copies", _count, "micro-batches that pass together"),
        "vpp": _Key("virtual_stages", _count, "chunks per pipeline rank"),
        "stage_layers": _Key(
            "stage_layers", lambda t: tuple(_count(n) for n in t.split("-")), "layers of each chunk, as in 9-11-11-9"
        ),
        "shard": _Key("shard_ranks", _count, "ranks that divide the weights"),
        "zero": _Key("zero", lambda t: int(_one_of("0", "1", "2", "3")(t)), "0, 1, 2 or 3"),
        "sp": _Key("sequence_parallel", _flag, "true or false"),
        "recompute": _Key("recompute", _one_of(*RECOMPUTES), ", ".join(RECOMPUTES)),
        **{name: _Key(name, _fraction, "a fraction of the blocks") for name in ("recompute_blocks", "offload")},
        **{
            name: _Key(name, lambda t: tuple(map(int, t.split("-"))), "blocks of each chunk, as in 4-3-2-0")
            for name in ("recompute_layers", "offload_layers")
        },
        "schedule": _Key("schedule", _one_of(*SCHEDULES), ", ".join(SCHEDULES)),
        "matrix": _Key("matrix_type", _one_of(*MATRIX_TYPES), ", ".join(MATRIX_TYPES)),
        "attention": _Key("attention", _one_of(*ATTENTIONS), ", ".join(ATTENTIONS)),
        **{
            name: _Key(name, lambda t: int(_one_of("2", "4")(t)), "2 or 4")
            for name in ("parameter_bytes", "gradient_bytes")
        },
        "cast_gathers": _Key("cast_gathers", _flag, "true or false"),
        "fuse": _Key("fuse", _flag, "true or false"),
        "loss": _Key("loss", _one_of(*LOSSES), ", ".join(LOSSES)),
        "frozen": _Key("frozen", _flag, "true or false"),
        **{
            f"overlap_{what}": _Key(f"overlap_{what}", _flag, "true or false")
            for what in ("gradients", "parameters", "tensor", "pipeline")
        },
    }
)


def parse_strategy(
    text: str, *, devices: int, batch: int, precision: str = "bf16", optimizer: str = "adam"
) -> Configuration:
    """`text` on `devices`, for a step of `batch` samples.

    What is left out follows: dp from the devices, micro_batch all of a rank's samples (Megatron: one), sequence
    parallelism wherever Megatron's tensor parallelism is.

    Raises:
        UsageError: naming the scheme, key or number, what was expected and what was found.
    """
    scheme, _, rest = text.partition(":")
    if scheme not in SCHEMES:
        hint = did_you_mean(scheme, SCHEMES)
        raise UsageError(f"--strategy {text!r}: expected one of {', '.join(SCHEMES)}, found {scheme!r}{hint}")
    given = _given(text, rest)
    if scheme == "hsdp" and "shard_ranks" not in given:
        raise UsageError(f"--strategy {text!r}: hsdp needs shard=N, the ranks that divide the weights")
    fields: dict[str, Any] = {**SCHEMES[scheme], **given, "precision": precision, "optimizer": optimizer}
    used = fields.get("tp", 1) * fields.get("pp", 1) * fields.get("cp", 1)
    if devices % used:
        raise UsageError(f"--strategy {text!r}: tp · pp · cp = {used} does not divide {devices} devices")
    dp = fields.setdefault("dp", devices // used)
    if dp * used != devices:
        raise UsageError(f"--strategy {text!r}: dp · tp · pp · cp = {dp * used}, but there are {devices} devices")
    if batch % dp:
        raise UsageError(
            f"--strategy {text!r}: batch: expected a multiple of dp={dp}, found {batch} samples; give --batch"
        )
    per_rank = batch // dp
    micro = fields.setdefault("micro_batch", 1 if scheme == "megatron" else per_rank)
    if per_rank % micro:
        raise UsageError(
            f"--strategy {text!r}: micro_batch={micro} does not divide the {per_rank} samples of a data-parallel rank"
        )
    if fields.get("virtual_stages", 1) > 1 and fields.get("pp", 1) == 1:
        raise UsageError(f"--strategy {text!r}: vpp={fields['virtual_stages']} cuts pipeline stages, but pp=1; give pp")
    fields["micro_batches"] = per_rank // micro
    if scheme == "megatron":
        fields.setdefault("sequence_parallel", fields.get("tp", 1) > 1)
    _check_schedule(text, fields)
    try:
        return Configuration(**fields)
    except UsageError as e:
        raise UsageError(f"--strategy {text!r}: {e}") from None


def _check_schedule(text: str, fields: dict[str, Any]) -> None:
    """Chunks per pipeline rank that the schedule runs; the V of zb-v has two unless told otherwise."""
    schedule = fields.get("schedule", "1f1b")
    if schedule == "zb-v":
        fields.setdefault("virtual_stages", 2)
    chunks = fields.get("virtual_stages", 1)
    expected = chunks if schedule == "1f1b" else chunks_of_schedule(schedule, chunks)  # 1F1B of several interleaves
    if chunks != expected:
        raise UsageError(f"--strategy {text!r}: vpp: {schedule} runs {expected} chunk(s) per rank, found {chunks}")


def spelled(c: Configuration) -> str:
    """The configuration as `--strategy` takes it: what a scheme leaves open, and what differs from Megatron's."""
    usual = Configuration(**SCHEMES["megatron"])
    entries = []
    for name, key in KEYS.items():
        value = getattr(c, key.field)
        whole = name == "sp" and c.tp > 1  # Megatron's tensor parallelism divides positions, too, unless told otherwise
        if name in ("dp", "micro_batch") or whole or value != getattr(usual, key.field):
            entries.append(f"{name}={written(value)}")
    return f"megatron:{','.join(entries)}"


def in_words(c: Configuration) -> str:
    """The configuration as people say it: `DP 16 x TP 2 x PP 8 (1F1B, 32 micro-batches of 1), ZeRO 1`."""
    degrees = [("DP", c.dp), (_context(c), c.cp), ("TP", c.tp), ("PP", c.pp)]
    named = [f"{name} {count}" for name, count in degrees if count > 1] or ["one device"]
    orders = {"1f1b": "1F1B", "gpipe": "GPipe", "zb-h1": "ZB-H1", "zb-v": "ZB-V", "interleaved": "interleaved 1F1B"}
    order = [] if c.pp == 1 else [orders[c.order]]
    if c.order == "interleaved":
        order.append(f"{c.virtual_stages} chunks a stage")
    batches = "" if c.micro_batches == 1 else "es"
    together = "" if c.copies == 1 else f", {c.copies} at once"
    order.append(f"{c.micro_batches} micro-batch{batches} of {c.micro_batch}{together}")
    parts = [f"{' x '.join(named)} ({', '.join(order)})"]
    if c.ep > 1:
        parts.append(f"experts over {c.ep}")
    if c.dp * c.cp > 1:
        groups = "" if c.shard_ranks in (None, c.dp * c.cp) else f" in groups of {c.shard_ranks} ranks"
        parts.append(f"ZeRO {c.zero}{groups}")
    if c.sequence_parallel:
        parts.append("sequence parallel")
    if c.recompute != "none":
        share = f" of {c.recompute_blocks:.0%} of the blocks" if c.recompute_blocks < 1 else ""
        if c.recompute_layers is not None:
            share = f" of {_by_stage(c, c.recompute_layers)} blocks by stage"
        parts.append(f"{c.recompute} recomputation{share}")
    if c.offload:
        parts.append(f"activations of {c.offload:.0%} of the blocks in the host's memory")
    if c.offload_layers is not None:
        parts.append(f"activations of {_by_stage(c, c.offload_layers)} blocks by stage in the host's memory")
    if c.stage_layers is not None:
        parts.append(f"layers by stage {_by_stage(c, c.stage_layers)}")
    return ", ".join(parts)


def _context(c: Configuration) -> str:
    return "CP" if c.context == "ring" else f"CP by {c.context}"


def _by_stage(c: Configuration, counts: Sequence[int]) -> str:
    """Counts of chunks, added up by rank of the pipeline."""
    return written(tuple(sum(counts[k] for k in chunks_of(c, d)) for d in range(c.pp)))


def written(value: object) -> str:
    """A value as `--strategy` has it."""
    if isinstance(value, tuple):
        return "-".join(map(str, value))
    return str(value).lower() if isinstance(value, bool) else str(value)


def _given(text: str, rest: str) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for item in filter(None, rest.split(",")):
        name, equals, value = item.partition("=")
        key = KEYS.get(name)
        if key is None or not equals:
            hint = did_you_mean(name, KEYS) if key is None and equals else ""
            known = "" if hint else f" with a key of {', '.join(KEYS)}"
            raise UsageError(f"--strategy {text!r}: {item!r}: expected KEY=VALUE{known}{hint}")
        if key.field in out:
            raise UsageError(f"--strategy {text!r}: {name} is given twice; keep one")
        try:
            out[key.field] = key.read(value)
        except (ValueError, KeyError):
            raise UsageError(f"--strategy {text!r}: {name}: expected {key.expected}, found {value!r}") from None
    return out
