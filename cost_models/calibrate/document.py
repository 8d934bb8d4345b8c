"""The calibrated profile as TOML: the base profile's values, the measured ones in their place, and every source."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator, Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any

from ..profile import load_profile, moved, packaged_text, parse_profile, profile_names

__all__ = ["base_document", "calibrated_text"]

Document = dict[str, Any]


def base_document(name_or_path: str) -> Document:
    """The tables of a packaged profile or of a file, as they stand there.  ProfileError as of `load_profile`."""
    load_profile(name_or_path)  # refuses what is malformed
    if name_or_path in profile_names():
        return tomllib.loads(packaged_text(name_or_path))
    return moved(tomllib.loads(Path(name_or_path).read_text(encoding="utf-8")))


def calibrated_text(
    base: Mapping[str, Any],
    values: Mapping[str, float | int],
    *,
    name: str,
    description: str,
    source: str,
    notes: Mapping[str, str] | None = None,
) -> str:
    """TOML of `base` with `values` by dotted key (those of a protocol by its name: `protocols.gloo.base_latency_s`).

    A table of rates by element type or kind is replaced as a whole, a protocol by those named, so that nothing measured
    stands beside something assumed of another machine; with measured links the base's islands, super-nodes and
    library constants go.  `source` is the note of every value given that has none of its own in `notes`.

    ProfileError where the result is not a profile.
    """
    document = deepcopy(dict(base))
    document |= {"name": name, "description": description}
    sources = dict(document["sources"])
    for table in {k.rpartition(".")[0] for k in values if k.startswith("device.") and k.count(".") == 2}:
        _drop(document, table, sources)
    if "device.memory_efficiency" in values:
        _drop(document, "device.memory_efficiency_by_kind", sources)
    if "device.matrix_launch_latency_s" in values:  # measured with the gap around a product, and at one type
        _drop(document, "device.matmul_efficiency_by_type", sources)
        _drop(document, "device.product_ramp_s", sources)
    if any(k.startswith("protocols.") for k in values):
        _replace_protocols(document, values, sources)
    if "server.bandwidth_bytes_per_s" in values:
        for table in ("server", "island", "supernode", "nccl", "measured"):
            document.pop(table, None)
            _forget(sources, table)
        document["server"] = {"topology": "switch"}
        sources["server.topology"] = source
    for key, value in values.items():
        if not key.startswith("protocols."):
            _set(document, key, value)
            sources.pop(key, None)
        sources[key] = (notes or {}).get(key, source)
    document["sources"] = dict(sorted(sources.items()))
    text = "\n".join(_lines(document)) + "\n"
    parse_profile(text, origin=name)
    return text


def _set(document: Document, key: str, value: float | int) -> None:
    *tables, last = key.split(".")
    here = document
    for t in tables:
        here = here.setdefault(t, {})
    here[last] = value


def _drop(document: Document, table: str, sources: dict[str, str]) -> None:
    *above, last = table.split(".")
    here = document
    for t in above:
        here = here.get(t, {})
    here.pop(last, None)
    _forget(sources, table)


def _forget(sources: dict[str, str], key: str) -> None:
    for noted in [k for k in sources if k == key or k.startswith(f"{key}.")]:
        del sources[noted]


def _replace_protocols(document: Document, values: Mapping[str, float | int], sources: dict[str, str]) -> None:
    """One ring protocol for each that is named; latencies across servers stay those of the base's first protocol."""
    old = (document.get("protocols") or [{}])[0]
    _forget(sources, "protocols")
    named: dict[str, Document] = {}
    for key, value in values.items():
        if key.startswith("protocols."):
            _, protocol, field = key.split(".")
            named.setdefault(protocol, {"name": protocol, "algorithms": ["ring"]})[field] = value
    for protocol, fields in named.items():
        fields.setdefault("network_step_latency_s", old.get("network_step_latency_s", 0.0))
        sources[f"protocols.{protocol}.algorithms"] = "derived: latency and bandwidth of a ring were fitted"
        sources[f"protocols.{protocol}.network_step_latency_s"] = "assumed: taken over; one server was measured"
    document["protocols"] = list(named.values())


def _lines(document: Mapping[str, Any]) -> Iterator[str]:
    """TOML of a profile's tables: plain values first, then tables, then arrays of tables, sources last."""
    yield from (f"{_key(k)} = {_value(v)}" for k, v in document.items() if not _is_table(v))
    for k, v in document.items():
        if isinstance(v, dict) and k != "sources":
            yield from _table(k, v)
    for k, v in document.items():
        if _is_table(v) and isinstance(v, list):
            for item in v:
                yield from ("", f"[[{_key(k)}]]", *(f"{_key(a)} = {_value(b)}" for a, b in item.items()))
    yield from _table("sources", document["sources"])


def _table(name: str, table: Mapping[str, Any]) -> Iterator[str]:
    yield from ("", f"[{name}]")
    yield from (f"{_key(k)} = {_value(v)}" for k, v in table.items() if not isinstance(v, dict))
    for k, v in table.items():
        if isinstance(v, dict):
            yield from _table(f"{name}.{_key(k)}", v)


def _is_table(value: Any) -> bool:
    return isinstance(value, dict) or (isinstance(value, list) and bool(value) and isinstance(value[0], dict))


def _key(key: str) -> str:
    plain = key.replace("_", "").replace("-", "")
    return key if plain.isascii() and plain.isalnum() else json.dumps(key)


def _value(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.6g}" if "e" in f"{value:.6g}" or "." in f"{value:.6g}" else f"{value:.6g}.0"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_value, value))}]"
    return json.dumps(value, ensure_ascii=False)
