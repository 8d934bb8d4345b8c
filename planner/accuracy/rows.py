"""Published measurements -> cases that can be predicted.

A row (JSON object) says what was trained (`model`, `model_dims`, `seq`, `precision`), where (`hardware`,
`num_devices`), how (`dp`, `tp`, `pp`, `cp`, `ep`, `vpp`, `zero`, `recompute`, `micro_batch`, `global_batch`) and what
was `measured`.  `source` names the framework (`sources.py`), `group` the rows of one configuration.
`read_rows` turns it into a `Case`, or into a `LeftOut` with the reason.  A field of the wrong kind is an InputError:
a file that cannot be understood must not be half measured.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from planner.accuracy.models import Model, UnknownModelError, model_of
from planner.accuracy.sources import GENERIC, Framework, framework_of, hardware_of
from planner.errors import InputError, UsageError
from planner.evaluate.configuration import Configuration

__all__ = ["Case", "LeftOut", "Rows", "filled_in", "read_rows"]

GIB: Final = 2.0**30
_FROZEN: Final = 0.8  # between the 2/3 of adapters and the 1 of training all weights
_AGREE: Final = 0.02  # a step time and a token rate of one row may differ by rounding, no more


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One measurement.

    Attributes:
        row: the row's id as text.
        group: rows of one configuration share it; cross-validation keeps them together.
        model: what `planner.builder.build` is told, `batch` and `attention` aside.
        hardware: name of a profile.
        step_s: measured seconds per step.
        allocated_bytes, reserved_bytes: measured peak of the fullest device, where published.
        missing: fields of the configuration that `filled_in` must decide.
        server_network_gbps: network of a server, where the row says it.
        doubtful: the row says that its configuration may not be that of the run.
        filled: fields that the row does not give and its framework does not settle either.
    """

    row: str
    dataset: str
    group: str
    model: Model
    seq: int
    configuration: Configuration
    hardware: str
    framework: str
    step_s: float
    allocated_bytes: float | None = None
    reserved_bytes: float | None = None
    missing: tuple[str, ...] = ()
    filled: tuple[str, ...] = ()
    server_network_gbps: int | None = None
    doubtful: bool = False

    @property
    def complete(self) -> bool:
        """Whether the row, with its framework's defaults, says all that a prediction depends on."""
        return not self.filled

    @property
    def comparable(self) -> tuple[object, ...]:
        """Equal for cases that do the same work on the same machines, so that their configurations compete."""
        sizes = dict(self.model.sizes)
        sizes.pop("vocab", None)  # padded by the tensor-parallel ranks
        c = self.configuration
        what = (self.model.architecture, tuple(sorted(sizes.items())), c.precision, c.matrix)
        return (*what, self.dataset, self.hardware, c.devices, c.global_batch)


@dataclass(frozen=True, slots=True)
class LeftOut:
    row: str
    dataset: str
    reason: str


@dataclass(frozen=True, slots=True)
class Rows:
    cases: tuple[Case, ...]
    left_out: tuple[LeftOut, ...]


class _Unusable(Exception):
    """A row is well-formed and cannot be predicted; the message says why."""


def filled_in(case: Case, fits: Callable[[Case], bool]) -> Case:
    """The case with what is missing decided by a rule fixed beforehand, so that no error can steer it.

    Missing recomputation: none where the step then fits the device, else the core of attention, else all.  Missing
    offloading: the least eighth of the blocks with which the step fits the device, and all recomputed where none does.
    """
    if not case.missing:
        return case
    ways: list[dict[str, Any]] = [{"recompute": kind} for kind in ("none", "selective", "full")]
    if "offload" in case.missing:
        ways = [{"offload": eighths / 8} for eighths in range(9)] + [{"recompute": "full"}]
    tried = [replace(case, configuration=case.configuration.with_(**way), missing=()) for way in ways]
    return next((t for t in tried[:-1] if fits(t)), tried[-1])


def read_rows(path: Path, profiles: Collection[str]) -> Rows:
    """All rows of a file: `{"rows": [...]}` or the list itself.

    InputError naming the file, or the row's id and field, where something is malformed.
    """
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except OSError as e:
        raise InputError(f"{path}: cannot be read ({e.strerror}); give a JSON file of measured rows") from e
    except (ValueError, RecursionError) as e:
        raise InputError(f"{path}: not JSON ({e}); expected an object with `rows`, or a list of rows") from e
    rows = document.get("rows") if isinstance(document, dict) else document
    if not isinstance(rows, list):
        raise InputError(f"{path}: expected an object with a list `rows`, or a list of rows, found none")
    if not rows:
        raise InputError(f"{path}: an empty list of rows; there is nothing to measure")
    cases: list[Case] = []
    left: list[LeftOut] = []
    for index, row in enumerate(rows):
        if not isinstance(row, dict):
            raise InputError(f"{path}: row {index}: expected an object, found {type(row).__name__}")
        reader = _Reader(path, row, str(row.get("id", index)))
        dataset = reader.text("dataset", default="rows")
        try:
            cases.append(_case(reader, dataset, profiles))
        except (_Unusable, UnknownModelError) as e:
            left.append(LeftOut(reader.row, dataset, str(e.args[0])))
    return Rows(tuple(cases), tuple(left))


@dataclass(frozen=True, slots=True)
class _Reader:
    """Checked access to a row's fields; InputError names file, row, field, what was expected and what was found."""

    path: Path
    values: Mapping[str, Any]
    row: str

    def wrong(self, name: str, expected: str) -> InputError:
        found = repr(self.values[name])[:80] if name in self.values else "nothing"
        return InputError(f"{self.path}: row {self.row}: {name}: expected {expected}, found {found}")

    def text(self, name: str, default: str | None = None) -> str:
        value = self.values.get(name)
        if value is None and default is not None:
            return default
        if not isinstance(value, str) or not value:
            raise self.wrong(name, "a text")
        return value

    def count(self, name: str, *, least: int = 1) -> int | None:
        value = self.values.get(name)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value < 2**40:
            raise self.wrong(name, f"an integer of at least {least}, or null")
        return value

    def needed(self, name: str) -> int:
        value = self.count(name)
        if value is None:
            raise _Unusable(f"{name} is not given")
        return value

    def measured(self, *names: str) -> float | None:
        """The first of these figures that was measured."""
        table = self.values.get("measured")
        if not isinstance(table, dict):
            raise self.wrong("measured", "an object of figures")
        for name in names:
            value = table.get(name)
            if value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
                raise InputError(
                    f"{self.path}: row {self.row}: measured.{name}: expected a positive number, found {value!r}"
                )
            return float(value)
        return None


def _case(reader: _Reader, dataset: str, profiles: Collection[str]) -> Case:
    needed = ("dp", "tp", "pp", "num_devices", "global_batch", "seq")
    if lacking := [n for n in needed if reader.count(n) is None]:
        raise _Unusable(f"no parallel configuration to predict: {', '.join(lacking)} not given")
    published = reader.text("hardware")
    hardware = hardware_of(published, profiles)
    if hardware is None:
        raise _Unusable(f"no profile for hardware {published!r}")
    framework = framework_of(reader.text("source", default=""))
    tp = reader.needed("tp")
    name, dims = reader.text("model"), reader.values.get("model_dims")
    if not isinstance(dims, dict | str | None):
        raise reader.wrong("model_dims", "an object, a reference or null")
    seq = reader.needed("seq")
    try:
        model = model_of(name, dims, seq=seq, vocab_multiple=max(1, framework.vocab_multiple * tp))
    except (TypeError, ValueError) as e:
        raise reader.wrong("model_dims", f"numbers ({e})") from e
    if framework.untied and model.architecture == "gpt":
        model = model.with_(untied=True)
    configuration, missing, filled = _configuration(reader, framework, model.size("layers"))
    if _adapters_only(reader, model, seq):
        configuration = configuration.with_(frozen=True)
    allocated, reserved = reader.measured("peak_alloc_gib"), reader.measured("peak_reserved_gib", "peak_memory_gib")
    return Case(
        row=reader.row,
        dataset=dataset,
        group=str(reader.values.get("group") or reader.row),
        model=model,
        seq=seq,
        configuration=configuration,
        hardware=hardware,
        framework=framework.name,
        step_s=_step_seconds(reader, model, seq),
        allocated_bytes=None if allocated is None else allocated * GIB,
        reserved_bytes=None if reserved is None else reserved * GIB,
        missing=missing,
        filled=filled,
        server_network_gbps=_network(reader),
        doubtful="may not be" in reader.text("config_completeness", default=""),
    )


def _adapters_only(reader: _Reader, model: Model, seq: int) -> bool:
    """Whether the weights are not trained: the row counts four operations per weight and token, not six."""
    counted, rate = reader.measured("model_tflops_per_gpu"), reader.measured("tokens_per_s_per_gpu")
    if counted is None or rate is None or model.architecture not in ("gpt", "llama"):
        return False
    return counted * 1e12 / rate < _FROZEN * model.flops_per_token(seq)


def _network(reader: _Reader) -> int | None:
    """Gb/s between servers where a note states them: the same devices are sold with different networks."""
    told = re.search(r"inter_node (\d+) ?Gb/s", str(reader.values.get("note") or ""))
    return int(told[1]) if told else None


def _configuration(
    reader: _Reader, framework: Framework, layers: int
) -> tuple[Configuration, tuple[str, ...], tuple[str, ...]]:
    """The configuration, which of its fields `filled_in` decides, and all that neither row nor framework give."""
    dp, tp, pp = reader.needed("dp"), reader.needed("tp"), reader.needed("pp")
    cp, ep = reader.count("cp") or 1, reader.count("ep") or 1
    devices, batch = reader.needed("num_devices"), reader.needed("global_batch")
    if dp * tp * pp * cp != devices:
        raise _Unusable(f"inconsistent: dp {dp} x tp {tp} x pp {pp} x cp {cp} is not num_devices {devices}")
    filled = [] if framework is not GENERIC else ["framework"]
    changes: dict[str, Any] = {**framework.always, **(framework.tensor if tp > 1 else {})}
    changes |= _schedule(reader, framework, pp, filled)
    changes |= _precision(reader)
    recompute, told = _recompute(reader, layers)
    changes |= told
    zero = reader.count("zero", least=0)
    if zero not in (None, 0, 1, 2, 3):
        raise reader.wrong("zero", "0, 1, 2, 3 or null")
    zero = framework.zero if zero is None else zero
    changes["zero"] = framework.zero_with_pipeline if zero == 3 and pp > 1 else zero
    text = f"{reader.values.get('note') or ''} {reader.values.get('precision') or ''}"
    for phrase, settled in framework.notes:
        if re.search(phrase, text, re.IGNORECASE):
            changes |= {k: v for k, v in settled.items() if tp > 1 or k != "overlap_tensor"}
    source = reader.text("source", default="")
    for pattern, settled in framework.files:
        if re.search(pattern, source):
            changes |= settled
    # MindSpore's interleaved copies of a micro-batch: one computes while another communicates.
    if tp > 1 and max(reader.count("micro_batch_interleave_num") or 1, reader.count("fine_grain_interleave") or 1) > 1:
        changes["overlap_tensor"] = True
    if isinstance(split := reader.values.get("use_seq_parallel"), bool):
        changes["sequence_parallel"] = split and tp > 1
    changes |= _offsets(reader, layers, pp, int(changes.get("virtual_stages", 1)))
    micro_batch = reader.count("micro_batch")
    if micro_batch is None:
        filled.append("micro_batch")
        parts = pp * int(changes.get("virtual_stages", 1)) if framework.micro_batches == "stages" else 0
        micro_batch = max(1, batch // dp // parts) if parts > 1 else 1
    if batch % (dp * micro_batch):
        raise _Unusable(f"inconsistent: global_batch {batch} is no multiple of dp {dp} x micro_batch {micro_batch}")
    open_to_memory = False
    if recompute is None:
        recompute = framework.recompute
        open_to_memory = recompute in (None, "none")  # whatever was run fitted the device
        if recompute is None:
            filled.append("recompute")
    changes |= {"dp": dp, "tp": tp, "pp": pp, "cp": cp, "ep": ep, "micro_batch": micro_batch}
    changes |= {"micro_batches": batch // (dp * micro_batch), "recompute": recompute or "none"}
    try:
        found = Configuration(**changes)
    except UsageError as e:
        raise _Unusable(f"inconsistent: {e}") from e
    missing = "offload" if framework.offloads and found.zero == 3 else "recompute"
    return found, (missing,) if open_to_memory else (), tuple(filled)


def _schedule(reader: _Reader, framework: Framework, pp: int, filled: list[str]) -> dict[str, Any]:
    chunks, named = reader.count("vpp"), reader.text("schedule", default="").lower()
    if pp == 1:
        return {}
    if chunks is None and "interleaved" in named:
        chunks = 2  # two chunks per rank, the fewest that interleave, and torchtitan's default
        filled.append("virtual_stages")
    elif chunks is None and framework.interleaves and not named:
        filled.append("virtual_stages")
    chunks = chunks or 1
    for phrase, schedule in (("gpipe", "gpipe"), ("zbv", "zb-v"), ("zero", "zb-h1"), ("zb", "zb-h1")):
        if phrase in named:
            return {"schedule": schedule, "virtual_stages": chunks}
    return {"schedule": "interleaved" if chunks > 1 else "1f1b", "virtual_stages": chunks}


def _offsets(reader: _Reader, layers: int, pp: int, chunks: int) -> dict[str, Any]:
    """MindFormers' `offset`: layers of each stage (or [chunk][stage]) beyond an even share; 0 deals them evenly."""
    told = reader.values.get("offset")
    flat = [v for part in told for v in (part if isinstance(part, list) else [part])] if isinstance(told, list) else []
    if not all(isinstance(v, int) and not isinstance(v, bool) for v in flat):
        raise reader.wrong("offset", "whole numbers of layers by stage")
    if pp == 1 or not any(flat):
        return {}
    counts = tuple(layers // (pp * chunks) + v for v in flat)
    if len(counts) != pp * chunks or sum(counts) != layers or min(counts) < 1:
        raise _Unusable(f"inconsistent: offset {told} does not cut {layers} layers into {pp * chunks} stages")
    return {"stage_layers": counts}


def _precision(reader: _Reader) -> dict[str, Any]:
    """The type of activations, and that of matrix products where it is a narrower one."""
    told = reader.text("precision", default="bf16").lower()
    narrow = (("fp4", "fp4"), ("mxfp8", "mxfp8"), ("fp8-row", "fp8-row"), ("fp8", "fp8"))
    matrix = next((kind for phrase, kind in narrow if phrase in told), None)
    if matrix is not None:
        return {"precision": "bf16", "matrix_type": matrix}
    if "bf" in told:
        return {"precision": "bf16"}
    if "16" in told or "half" in told:
        return {"precision": "fp16"}
    if "tf32" in told:
        return {"precision": "fp32", "matrix_type": "tf32"}
    if "32" in told:
        return {"precision": "fp32"}
    raise reader.wrong("precision", "a type such as bf16, fp16, fp8, mxfp8, nvfp4 or fp32")


def _recompute(reader: _Reader, layers: int) -> tuple[str | None, dict[str, Any]]:
    """What is recomputed, None where the row is silent, and what else it says (sequence parallelism, blocks).

    MindFormers gives an object of switches, each true, false, a list of blocks by stage, or patterns of operators.
    """
    told = reader.values.get("recompute")
    if told is None:
        return None, {}
    if isinstance(told, dict):
        if told.get("recompute") is None and told.get("select_recompute") is None:
            return None, {}
        return _switches(reader, told, layers)
    if not isinstance(told, str):
        raise reader.wrong("recompute", "a text, an object or null")
    kind = next((k for k in ("selective", "full", "none") if told.lower().startswith(k)), None)
    if kind == "selective" and "(op)" in told.lower():
        return "products", {}  # torchtitan's selection of operators
    if kind is None:
        raise reader.wrong("recompute", "none, selective or full")
    return kind, {"sequence_parallel": True} if "sequence" in told.lower() else {}


def _switches(reader: _Reader, told: Mapping[str, Any], layers: int) -> tuple[str, dict[str, Any]]:
    whole = told.get("recompute")
    if isinstance(whole, list):
        counts = [v for part in whole for v in (part if isinstance(part, list) else [part])]
        if not all(isinstance(v, int) for v in counts):
            raise reader.wrong("recompute", "whole numbers of blocks by stage in recompute.recompute")
        if sum(counts):
            return "full", {"recompute_blocks": min(1.0, sum(counts) / layers)}
    elif whole:
        return "full", {}
    return ("selective" if told.get("select_recompute") else "none"), {}


def _step_seconds(reader: _Reader, model: Model, seq: int) -> float:
    """Seconds per step: measured, else from the token rate, else from the model's counted operations.

    global_batch · seq / (tokens/s per device · devices), or tokens · operations per token / (rate · devices) with the
    operations that publishers count (`Model.flops_per_token`).  A step time that contradicts the row's own token rate
    is left out.
    """
    step = reader.measured("step_time_s", "step_time_s_derived")
    tokens = reader.needed("global_batch") * seq / reader.needed("num_devices")
    rate = reader.measured("tokens_per_s_per_gpu")
    if step is not None and rate is not None and abs(math.log(step * rate / tokens)) > _AGREE:
        raise _Unusable(f"inconsistent: step of {step} s, but {tokens:g} tokens per device at {rate} tokens/s")
    if step is not None:
        return step
    if rate is not None:
        return tokens / rate
    counted = reader.measured("model_tflops_per_gpu")
    if counted is None:
        raise _Unusable("no step time, token rate or model TFLOP/s measured")
    if model.architecture not in ("gpt", "llama"):
        raise _Unusable("only model TFLOP/s measured, and how a sparse model's operations were counted is not said")
    return tokens * model.flops_per_token(seq) / (counted * 1e12)
