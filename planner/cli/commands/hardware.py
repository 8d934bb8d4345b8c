"""`planner hardware [NAME | --detect]`: the machines that are known, where each value comes from, and which this is."""

from __future__ import annotations

import argparse
import dataclasses
import json
from typing import TYPE_CHECKING, Any

from planner.cli.options import add_json_option
from planner.errors import UsageError
from planner.requests.values import profile_of

if TYPE_CHECKING:
    from planner.detect.machine import Kind, Machine

__all__ = ["configure", "run"]

_CALIBRATE = "no packaged profile describes it: `planner calibrate` measures this machine and writes one"


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "name", nargs="?", metavar="NAME", help="profile or TOML file to show; without it all are listed"
    )
    parser.add_argument(
        "--detect",
        action="store_true",
        help="show the accelerators of this machine, by nvidia-smi, npu-smi and rocm-smi, with the profile of each and "
        "the options that plan for them; the exit status is 1 where none is found",
    )
    add_json_option(parser)


def run(options: argparse.Namespace) -> int:
    from planner.cost_models import load_profile, profile_names

    if options.detect:
        if options.name is not None:
            raise UsageError(f"--detect contradicts the profile {options.name}; leave one out")
        return _detect(options.json)
    if options.name is None:
        profiles = [load_profile(n) for n in profile_names()]
        if options.json:
            print(json.dumps([{"name": p.name, "description": p.description} for p in profiles], indent=1))
        else:
            for p in profiles:
                print(f"{p.name:14} {p.description}")
        return 0
    profile = profile_of(options.name)
    values = _plain(dataclasses.asdict(profile))
    sources = values.pop("sources")
    if options.json:
        print(json.dumps({**values, "sources": sources}, indent=1))
        return 0
    print(f"{profile.name}: {profile.description}\n")
    for key, source in sources.items():
        print(f"{key} = {_at(values, key)}\n    {source}")
    return 0


def _detect(as_json: bool) -> int:
    from planner.detect.machine import detect

    machine = detect()
    if as_json:
        print(json.dumps(machine.document(), indent=1))
    else:
        print("\n".join(_lines(machine)))
    return 0 if machine.kinds else 1


def _lines(machine: Machine) -> list[str]:
    lines = [line for kind in machine.kinds for line in _of_kind(kind)]
    if not machine.kinds:
        lines.append("no accelerator is found on this machine")
    said = [r for r in machine.reports if r.problem and (r.installed or not machine.kinds)]
    lines += [f"  {r.tool:11}{r.problem}" for r in said]
    if machine.options:
        lines.append(f"plan with    planner search MODEL {' '.join(machine.options)}")
    elif not machine.kinds:
        lines.append(
            "to plan for another machine, give its profile: `planner search MODEL --hardware NAME --devices N` "
            "(`planner hardware` lists all)"
        )
    return lines


def _of_kind(kind: Kind) -> list[str]:
    device = kind.device
    memory = "" if device.memory_bytes is None else f", {device.memory_bytes / 2**30:.1f} GiB each"
    driver = f", driver {device.driver}" if device.driver else ""
    lines = [f"{kind.count} x {device.name}{memory}{driver}"]
    lines.append(f"  profile    {_CALIBRATE if kind.profile is None else f'{kind.profile}: {kind.description}'}")
    if kind.links is not None:
        lines.append(f"  links      {_links(kind)}")
        if kind.links.adapters:
            lines.append(f"  network    {kind.links.adapters} adapters")
    return [*lines, *(f"  note       {note}" for note in kind.notes)]


def _links(kind: Kind) -> str:
    """Of most pairs first: NVLink by the number of links of a device to the switch or to its neighbour, else PCIe."""
    assert kind.links is not None
    pairs = kind.links.pairs
    parts = []
    for name, count in pairs:
        text = f"NVLink ({name[2:]} links)" if name.startswith("NV") else f"PCIe ({name})"
        parts.append(f"{text} between {'all' if len(pairs) == 1 else f'{count} of {sum(n for _, n in pairs)}'} pairs")
    return ", ".join(parts)


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _plain(v) for k, v in value.items()}
    return [_plain(v) for v in value] if isinstance(value, tuple | list) else value


def _at(values: Any, key: str) -> Any:
    """Value at a dotted key; protocols are listed by position or name in the keys."""
    for part in key.split("."):
        if isinstance(values, list):
            values = next((v for i, v in enumerate(values) if part in (str(i), v.get("name"))), None)
        else:
            values = values.get(part) if isinstance(values, dict) else None
    return values
