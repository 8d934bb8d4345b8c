"""GPUs of NVIDIA by nvidia-smi: names, memory and driver as CSV, links by `topo -m`."""

from __future__ import annotations

import csv
import re
from collections import Counter
from typing import Final

from .found import Device, Links, Report
from .tools import LIMIT_S, Answer, ask, note_on_visible

__all__ = ["nvidia", "topology"]

_FIELDS: Final = ("name", "memory.total", "driver_version")
_MIG: Final = "mig.mode.current"  # drivers before 450 do not know it
# A column of `topo -m` ends in an escape sequence where the driver underlines its headings, in a pipe, too.
_ESCAPES: Final = re.compile(r"\x1b\[[0-9;]*m")
_GPU: Final = re.compile(r"GPU\d+$")
_ADAPTER: Final = re.compile(r"(NIC\d+|mlx\d+_\d+|bnxt_re\d+|irdma\d+|efa_\d+|rdmap\w+)$")
_LINK: Final = re.compile(r"(X|NV\d+|SYS|NODE|PHB|PXB|PIX|SOC|PSB|N/A)$")


def nvidia(limit_s: float = LIMIT_S) -> Report:
    """What nvidia-smi says."""
    answer = _query((*_FIELDS, _MIG), limit_s)
    if answer.installed and "not a valid field" in answer.problem:
        answer = _query(_FIELDS, limit_s)
    if answer.problem:
        return Report("nvidia-smi", answer.installed, answer.problem)
    devices, split, lost = [], 0, []
    for row in _rows(answer.text):
        name, memory, driver, *rest = (cell.strip() for cell in row)
        if name.startswith("["):  # such as [GPU is lost]
            lost.append(name.strip("[]")[:100])
            continue
        devices.append(Device("nvidia", name, _mebibytes(memory), driver))
        split += rest == ["Enabled"]
    if not devices:
        return Report("nvidia-smi", True, f"shows no device, but says: {lost[0]}" if lost else "shows no device")
    notes = note_on_visible("CUDA_VISIBLE_DEVICES", len(devices))
    notes += [f"nvidia-smi says of {count} more devices: {said}" for said, count in Counter(lost).items()]
    if split:
        notes.append(f"MIG divides {split} of the {len(devices)} devices; profiles are of whole devices")
    matrix = ask("nvidia-smi", "topo", "-m", limit_s=limit_s) if len(devices) > 1 else None
    links = None if matrix is None or matrix.problem else topology(matrix.text)
    if matrix is not None and links is None:
        why = f": it {matrix.problem}" if matrix.problem else ""
        notes.append(f"nvidia-smi topo -m says nothing of the links between the devices{why}")
    return Report("nvidia-smi", True, devices=tuple(devices), links=links, notes=tuple(notes))


def _rows(text: str) -> list[list[str]]:
    """The lines that have all fields; none where the text is no CSV."""
    try:
        return [row for row in csv.reader(text.splitlines(), skipinitialspace=True) if len(row) >= len(_FIELDS)]
    except csv.Error:
        return []


def _query(fields: tuple[str, ...], limit_s: float) -> Answer:
    return ask("nvidia-smi", f"--query-gpu={','.join(fields)}", "--format=csv,noheader", limit_s=limit_s)


def _mebibytes(text: str) -> int | None:
    found = re.match(r"(\d{1,9}) MiB$", text)
    return None if found is None else int(found[1]) << 20


def topology(text: str) -> Links | None:
    """The links in the matrix of `topo -m`; None where there is no matrix.

    Its columns are separated by tabs, by spaces where somebody has copied it, and numbers of processors follow them.
    """
    lines = [_ESCAPES.sub("", line).split() for line in text.splitlines()]
    heads = next((i for i, words in enumerate(lines) if words and _GPU.match(words[0])), None)
    if heads is None:
        return None
    gpus = sum(1 for word in lines[heads] if _GPU.match(word))
    adapters = sum(1 for word in lines[heads] if _ADAPTER.match(word))
    pairs: Counter[str] = Counter()
    seen = 0
    for words in lines[heads + 1 :]:
        if not words or not _GPU.match(words[0]):
            continue
        cells = words[1 : 1 + gpus]
        if len(cells) < gpus or not all(_LINK.match(cell) for cell in cells):
            return None
        pairs.update(cells[seen + 1 :])  # the matrix is symmetric: each pair counts once
        seen += 1
    if seen != gpus:
        return None
    return Links(tuple(sorted(pairs.items(), key=lambda p: (-p[1], p[0]))), adapters)
