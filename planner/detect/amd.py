"""GPUs of AMD by rocm-smi, which answers in JSON; its keys differ between versions in their capitals."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from .found import Device, Report
from .tools import LIMIT_S, ask

__all__ = ["amd"]

_TRIES: Final = 100  # braces in warnings


def amd(limit_s: float = LIMIT_S) -> Report:
    """What rocm-smi says."""
    answer = ask(
        "rocm-smi", "--showproductname", "--showmeminfo", "vram", "--showdriverversion", "--json", limit_s=limit_s
    )
    if answer.problem:
        return Report("rocm-smi", answer.installed, answer.problem)
    devices = cards(answer.text)
    if devices is None:
        return Report("rocm-smi", True, "printed no JSON")
    if not devices:
        return Report("rocm-smi", True, "shows no device")
    return Report("rocm-smi", True, devices=devices)


def cards(text: str) -> tuple[Device, ...] | None:
    """The devices in the document; warnings may stand before and behind it.  None where there is none."""
    document = _document(text)
    if document is None:
        return None
    driver = _value(document.get("system"), "driver version")
    devices = []
    for key, card in document.items():
        if not key.startswith("card") or not isinstance(card, Mapping):
            continue
        name = _value(card, "card series")
        if not name or name.startswith("0x"):  # older versions print numbers where their table lacks the product
            name = _value(card, "card model") or name
        total = _value(card, "vram total memory (b)")
        memory = int(total) if total.isascii() and total.isdigit() and len(total) < 16 else None
        devices.append(Device("amd", name or "unknown", memory, driver))
    return tuple(devices)


def _document(text: str) -> dict[str, Any] | None:
    """The first object of JSON in the text."""
    begin = -1
    for _ in range(_TRIES):
        begin = text.find("{", begin + 1)
        if begin < 0:
            return None
        try:
            found, _ = json.JSONDecoder().raw_decode(text, begin)
        except (ValueError, RecursionError):
            continue
        if isinstance(found, dict):
            return found
    return None


def _value(table: Any, key: str) -> str:
    if not isinstance(table, Mapping):
        return ""
    return next((str(v).strip() for k, v in table.items() if str(k).lower() == key), "")
