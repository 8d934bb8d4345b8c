"""NPUs of Huawei by the table of `npu-smi info`, whose columns differ between versions and whose rows do not."""

from __future__ import annotations

import re
from typing import Final

from .found import Device, Report
from .tools import LIMIT_S, ask, note_on_visible

__all__ = ["ascend"]

# | 0     910B3               | OK            | 96.0        36                0    / 0             |
# The second cell is the device's health, a word; in the table of processes below it is a number.
_NPU: Final = re.compile(r"^\|\s*(\d+)\s+((?:Ascend)?\d[\w-]*|Ascend[\w-]*)\s*\|\s*[A-Za-z][^|]*\|")
# | 0     1                   | 0000:9F:00.0  | 0           0    / 0          3195 / 65536         |
_CHIP: Final = re.compile(
    r"^\|\s*\d+(?:\s+\d+)?\s*\|\s*[0-9A-Fa-fx]{4}:[0-9A-Fa-fx]{2}:[0-9A-Fa-fx]{2}\.\d\s*\|(.*)\|\s*$"
)
_USED: Final = re.compile(r"(\d+)\s*/\s*(\d+)")
_VERSION: Final = re.compile(r"Version:\s*(\S+)")


def ascend(limit_s: float = LIMIT_S) -> Report:
    """What npu-smi says."""
    answer = ask("npu-smi", "info", limit_s=limit_s)
    if answer.problem:
        return Report("npu-smi", answer.installed, answer.problem)
    devices = table(answer.text)
    if not devices:
        return Report("npu-smi", True, "shows no device")
    return Report(
        "npu-smi", True, devices=devices, notes=tuple(note_on_visible("ASCEND_RT_VISIBLE_DEVICES", len(devices)))
    )


def table(text: str) -> tuple[Device, ...]:
    """The chips in the table: two rows each, the name of the card in the first and memory in the second.

    Of a card of two chips the rows follow one another with the same card number; the name is then that of a chip.
    """
    version = _VERSION.search(text)
    driver = "" if version is None else version[1]
    devices: list[Device] = []
    name = None
    cards: list[str] = []
    for line in text.splitlines():
        npu, chip = _NPU.match(line), _CHIP.match(line)
        if chip is not None and name is not None:
            devices.append(Device("ascend", name, _memory(chip[1]), driver))
            name = None
        elif npu is not None and chip is None:
            name = npu[2]
            cards.append(npu[1])
    if len(cards) > len(set(cards)):  # two dies to a card: those of a 910C are all called Ascend910
        devices = [
            Device(d.vendor, "910C" if d.name == "Ascend910" else d.name, d.memory_bytes, driver) for d in devices
        ]
    return tuple(devices)


def _memory(cells: str) -> int | None:
    """Of the pairs used / total the last is the memory of the device; the first is 0 / 0 where it has no other."""
    pairs = _USED.findall(cells)
    total = int(pairs[-1][1]) if pairs else 0
    return total << 20 if 0 < total < 1 << 24 else None
