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
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from planner.accuracy.models import Model, UnknownModelError, model_of
from planner.accuracy.reader import RowReader, Unusable
from planner.accuracy.settings import configuration_of
from planner.accuracy.sources import framework_of, hardware_of
from planner.clock.configuration import Configuration
from planner.errors import InputError

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
        reader = RowReader(path, row, str(row.get("id", index)))
        dataset = reader.text("dataset", default="rows")
        try:
            cases.append(_case(reader, dataset, profiles))
        except (Unusable, UnknownModelError) as e:
            left.append(LeftOut(reader.row, dataset, str(e.args[0])))
    return Rows(tuple(cases), tuple(left))


def _case(reader: RowReader, dataset: str, profiles: Collection[str]) -> Case:
    needed = ("dp", "tp", "pp", "num_devices", "global_batch", "seq")
    if lacking := [n for n in needed if reader.count(n) is None]:
        raise Unusable(f"no parallel configuration to predict: {', '.join(lacking)} not given")
    published = reader.text("hardware")
    hardware = hardware_of(published, profiles)
    if hardware is None:
        raise Unusable(f"no profile for hardware {published!r}")
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
    configuration, missing, filled = configuration_of(reader, framework, model.size("layers"))
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


def _adapters_only(reader: RowReader, model: Model, seq: int) -> bool:
    """Whether the weights are not trained: the row counts four operations per weight and token, not six."""
    counted, rate = reader.measured("model_tflops_per_gpu"), reader.measured("tokens_per_s_per_gpu")
    if counted is None or rate is None or model.architecture not in ("gpt", "llama"):
        return False
    return counted * 1e12 / rate < _FROZEN * model.flops_per_token(seq)


def _network(reader: RowReader) -> int | None:
    """Gb/s between servers where a note states them: the same devices are sold with different networks."""
    stated = re.search(r"inter_node (\d+) ?Gb/s", str(reader.values.get("note") or ""))
    return int(stated[1]) if stated else None


def _step_seconds(reader: RowReader, model: Model, seq: int) -> float:
    """Seconds per step: measured, else from the token rate, else from the model's counted operations.

    global_batch · seq / (tokens/s per device · devices), or tokens · operations per token / (rate · devices) with the
    operations that publishers count (`Model.flops_per_token`).  A step time that contradicts the row's own token rate
    is left out.
    """
    step = reader.measured("step_time_s", "step_time_s_derived")
    tokens = reader.needed("global_batch") * seq / reader.needed("num_devices")
    rate = reader.measured("tokens_per_s_per_gpu")
    if step is not None and rate is not None and abs(math.log(step * rate / tokens)) > _AGREE:
        raise Unusable(f"inconsistent: step of {step} s, but {tokens:g} tokens per device at {rate} tokens/s")
    if step is not None:
        return step
    if rate is not None:
        return tokens / rate
    counted = reader.measured("model_tflops_per_gpu")
    if counted is None:
        raise Unusable("no step time, token rate or model TFLOP/s measured")
    if model.architecture not in ("gpt", "llama"):
        raise Unusable("only model TFLOP/s measured, and how a sparse model's operations were counted is not said")
    return tokens * model.flops_per_token(seq) / (counted * 1e12)
