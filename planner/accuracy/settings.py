"""How a row was trained: its fields and its framework's defaults as a `Configuration`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from planner.accuracy.reader import RowReader, Unusable
from planner.accuracy.sources import GENERIC, Framework
from planner.clock.configuration import Configuration
from planner.errors import UsageError

__all__ = ["configuration_of"]


def configuration_of(
    reader: RowReader, framework: Framework, layers: int
) -> tuple[Configuration, tuple[str, ...], tuple[str, ...]]:
    """The configuration, which of its fields `filled_in` decides, and all that neither row nor framework give."""
    dp, tp, pp = reader.needed("dp"), reader.needed("tp"), reader.needed("pp")
    cp, ep = reader.count("cp") or 1, reader.count("ep") or 1
    devices, batch = reader.needed("num_devices"), reader.needed("global_batch")
    if dp * tp * pp * cp != devices:
        raise Unusable(f"inconsistent: dp {dp} x tp {tp} x pp {pp} x cp {cp} is not num_devices {devices}")
    filled = [] if framework is not GENERIC else ["framework"]
    changes: dict[str, Any] = {**framework.always, **(framework.tensor if tp > 1 else {})}
    changes |= _schedule(reader, framework, pp, filled)
    changes |= _precision(reader)
    recompute, switches = _recompute(reader, layers)
    changes |= switches
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
    # MindFormers cuts products and their collectives in pieces (fine_grain_interleave); its copies of a micro-batch
    # (micro_batch_interleave_num) are beside the batch_size that the row calls micro_batch.
    if tp > 1 and (reader.count("fine_grain_interleave") or 1) > 1:
        changes["overlap_tensor"] = True
    changes["copies"] = reader.count("micro_batch_interleave_num") or 1
    if isinstance(split := reader.values.get("use_seq_parallel"), bool):
        changes["sequence_parallel"] = split and tp > 1
    changes |= _offsets(reader, layers, pp, int(changes.get("virtual_stages", 1)))
    micro_batch = reader.count("micro_batch")
    if micro_batch is None:
        filled.append("micro_batch")
        parts = pp * int(changes.get("virtual_stages", 1)) if framework.micro_batches == "stages" else 0
        micro_batch = max(1, batch // dp // parts) if parts > 1 else 1
    if batch % (dp * micro_batch):
        raise Unusable(f"inconsistent: global_batch {batch} is no multiple of dp {dp} x micro_batch {micro_batch}")
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
        raise Unusable(f"inconsistent: {e}") from e
    missing = "offload" if framework.offloads and found.zero == 3 else "recompute"
    return found, (missing,) if open_to_memory else (), tuple(filled)


def _schedule(reader: RowReader, framework: Framework, pp: int, filled: list[str]) -> dict[str, Any]:
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


def _offsets(reader: RowReader, layers: int, pp: int, chunks: int) -> dict[str, Any]:
    """MindFormers' `offset`: layers of each stage (or [chunk][stage]) beyond an even share; 0 deals them evenly."""
    offset = reader.values.get("offset")
    flat = (
        [v for part in offset for v in (part if isinstance(part, list) else [part])] if isinstance(offset, list) else []
    )
    if not all(isinstance(v, int) and not isinstance(v, bool) for v in flat):
        raise reader.wrong("offset", "whole numbers of layers by stage")
    if pp == 1 or not any(flat):
        return {}
    counts = tuple(layers // (pp * chunks) + v for v in flat)
    if len(counts) != pp * chunks or sum(counts) != layers or min(counts) < 1:
        raise Unusable(f"inconsistent: offset {offset} does not cut {layers} layers into {pp * chunks} stages")
    return {"stage_layers": counts}


def _precision(reader: RowReader) -> dict[str, Any]:
    """The type of activations, and that of matrix products where it is a narrower one."""
    precision = reader.text("precision", default="bf16").lower()
    narrow = (("fp4", "fp4"), ("mxfp8", "mxfp8"), ("fp8-row", "fp8-row"), ("fp8", "fp8"))
    matrix = next((kind for phrase, kind in narrow if phrase in precision), None)
    if matrix is not None:
        return {"precision": "bf16", "matrix_type": matrix}
    if "bf" in precision:
        return {"precision": "bf16"}
    if "16" in precision or "half" in precision:
        return {"precision": "fp16"}
    if "tf32" in precision:
        return {"precision": "fp32", "matrix_type": "tf32"}
    if "32" in precision:
        return {"precision": "fp32"}
    raise reader.wrong("precision", "a type such as bf16, fp16, fp8, mxfp8, nvfp4 or fp32")


def _recompute(reader: RowReader, layers: int) -> tuple[str | None, dict[str, Any]]:
    """What is recomputed, None where the row is silent, and what else it says (sequence parallelism, blocks).

    MindFormers gives an object of switches, each true, false, a list of blocks by stage, or patterns of operators.
    """
    stated = reader.values.get("recompute")
    if stated is None:
        return None, {}
    if isinstance(stated, dict):
        if stated.get("recompute") is None and stated.get("select_recompute") is None:
            return None, {}
        return _switches(reader, stated, layers)
    if not isinstance(stated, str):
        raise reader.wrong("recompute", "a text, an object or null")
    kind = next((k for k in ("selective", "full", "none") if stated.lower().startswith(k)), None)
    if kind == "selective" and "(op)" in stated.lower():
        return "products", {}  # torchtitan's selection of operators
    if kind is None:
        raise reader.wrong("recompute", "none, selective or full")
    return kind, {"sequence_parallel": True} if "sequence" in stated.lower() else {}


def _switches(reader: RowReader, stated: Mapping[str, Any], layers: int) -> tuple[str, dict[str, Any]]:
    whole = stated.get("recompute")
    if isinstance(whole, list):
        counts = [v for part in whole for v in (part if isinstance(part, list) else [part])]
        if not all(isinstance(v, int) for v in counts):
            raise reader.wrong("recompute", "whole numbers of blocks by stage in recompute.recompute")
        if sum(counts):
            return "full", {"recompute_blocks": min(1.0, sum(counts) / layers)}
    elif whole:
        return "full", {}
    return ("selective" if stated.get("select_recompute") else "none"), {}
