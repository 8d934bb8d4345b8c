"""Settings of the service: command-line options, else PLANNER_* variables, else the defaults below."""

from __future__ import annotations

import argparse
import ipaddress
import math
import os
from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, dataclass, field, fields
from pathlib import Path
from typing import Any

from planner.api.jobs.eviction import ARTIFACT_BYTES
from planner.api.jobs.sandbox import MODES, Mode
from planner.errors import UsageError
from planner.processors import processors
from planner.requests.values import size_with_unit

__all__ = ["Settings", "add_settings", "is_loopback", "settings_of", "variable"]


def _default_data() -> Path:
    base = os.environ.get("XDG_DATA_HOME") or "~/.local/share"
    return Path(base).expanduser() / "planner" / "service"


def _default_workers() -> int:
    return max(1, processors() - 1)


def _bytes(text: str) -> int:
    try:
        return size_with_unit(text)
    except argparse.ArgumentTypeError as e:
        raise ValueError(str(e)) from e


def _quota(text: str) -> int:
    return 0 if text.strip() == "0" else _bytes(text)


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan  # in no range, so that the reader is told what was expected


def _positive(unit: str) -> Callable[[str], float]:
    def parse(text: str) -> float:
        value = _number(text)
        if not 0 < value < 10**8:
            raise ValueError(f"expected a positive number of {unit}")
        return value

    return parse


def _rate(text: str) -> float:
    value = _number(text)
    if not 0 <= value < 10**6:
        raise ValueError("expected a number of requests per second, 0 for no limit")
    return value


def _count(least: int, most: int = 10**6) -> Callable[[str], int]:
    def parse(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = least - 1
        if not least <= value <= most:
            raise ValueError(f"expected an integer from {least} to {most}")
        return value

    return parse


def _path(text: str) -> Path:
    return Path(text).expanduser()


def _names(text: str) -> tuple[str, ...]:
    return tuple(part.strip().lower() for part in text.split(",") if part.strip())


def _switch(text: str) -> bool:
    if text.lower() not in ("0", "1", "no", "yes", "false", "true"):
        raise ValueError("expected yes or no")
    return text.lower() in ("1", "yes", "true")


def _sandbox(text: str) -> Mode:
    found = next((mode for mode in MODES if mode == text.lower()), None)
    if found is None:
        raise ValueError(f"expected one of {', '.join(MODES)}")
    return found


def _share(text: str) -> str:
    if text not in ("all", "tenant"):
        raise ValueError("expected all or tenant")
    return text


def _setting(parse: Callable[[str], Any], description: str, metavar: str) -> dict[str, Any]:
    return {"parse": parse, "description": description, "metavar": metavar}


@dataclass(frozen=True, slots=True)
class Settings:
    """What the service runs by.  Sizes in bytes, times in seconds."""

    data: Path = field(
        default_factory=_default_data, metadata=_setting(_path, "folder for jobs, plans, uploads and keys", "DIR")
    )
    store: str = field(
        default="",
        metadata=_setting(str.strip, "database that several hosts share, in place of the folder's", "postgresql://…"),
    )
    blobs: str = field(
        default="",
        metadata=_setting(
            str.strip, "where models and plans lie with --store: a bucket, or a folder that all share", "s3://…|DIR"
        ),
    )
    host: str = field(default="127.0.0.1", metadata=_setting(str, "address to listen on", "ADDRESS"))
    port: int = field(default=8080, metadata=_setting(_count(0, 65535), "port to listen on; 0: any free one", "PORT"))
    workers: int = field(
        default_factory=_default_workers,
        metadata=_setting(_count(0), "number of searches at a time; 0: `planner worker` is started elsewhere", "N"),
    )
    upload_limit: int = field(default=64 * 2**20, metadata=_setting(_bytes, "largest request body", "SIZE"))
    child_memory: int = field(default=8 * 2**30, metadata=_setting(_bytes, "memory of one search", "SIZE"))
    child_cpu: int = field(default=3600, metadata=_setting(_count(1), "processor seconds of one search", "S"))
    child_wall: int = field(default=3600, metadata=_setting(_count(1), "seconds of one search", "S"))
    sandbox: Mode = field(
        default="auto",
        metadata=_setting(
            _sandbox,
            "sandbox of processes that read models: auto, as far as the kernel grants one; require, all of it, or the "
            "service does not start; off, none",
            "MODE",
        ),
    )
    rate: float = field(
        default=200.0,
        metadata=_setting(
            _rate,
            "number of requests a second that each tenant may send, with bursts of twice as many; 0: any number",
            "R",
        ),
    )
    queue: int = field(
        default=100, metadata=_setting(_count(1), "number of unfinished jobs that each tenant may have", "N")
    )
    tenant_quota: int = field(
        default=0, metadata=_setting(_quota, "bytes that each tenant's jobs and plans may take; 0: any number", "SIZE")
    )
    artifact_bytes: int = field(
        default=ARTIFACT_BYTES,
        metadata=_setting(
            _bytes,
            "bytes that reports, traces, diffs and emitted files of all tenants may take; those unused for longest are "
            "removed, and made again when somebody asks",
            "SIZE",
        ),
    )
    failed_retention: float = field(
        default=1.0,
        metadata=_setting(_positive("days"), "days until the results of failed and cancelled jobs are removed", "DAYS"),
    )
    retention: float = field(
        default=30.0, metadata=_setting(_positive("days"), "days until a finished job is removed", "DAYS")
    )
    most_wait: float = field(
        default=60.0,
        metadata=_setting(_positive("seconds"), "seconds that a request may wait by `Prefer: wait`, at most", "S"),
    )
    heartbeat: float = field(
        default=15.0, metadata=_setting(_positive("seconds"), "seconds between signs of life on event streams", "S")
    )
    longest_stream: float = field(
        default=3600.0,
        metadata=_setting(_positive("seconds"), "seconds after which an event stream ends, to be taken up again", "S"),
    )
    stall: float = field(
        default=30.0,
        metadata=_setting(_positive("seconds"), "seconds after which a reader that takes nothing is cut off", "S"),
    )
    connections: int = field(
        default=2000,
        metadata=_setting(_count(0), "number of open connections that each address may have; 0: any number", "N"),
    )
    open_requests: int = field(
        default=1000, metadata=_setting(_count(1), "number of requests of each tenant that are answered at a time", "N")
    )
    share: str = field(
        default="all", metadata=_setting(_share, "tenants whose equal requests share one computation", "all|tenant")
    )
    names: tuple[str, ...] = field(
        default=(), metadata=_setting(_names, "host names that requests may be addressed to", "HOST,…")
    )
    webhook_hosts: tuple[str, ...] = field(
        default=(), metadata=_setting(_names, "hosts that webhooks of jobs may go to; none: no webhooks", "HOST,…")
    )
    https: bool = field(
        default=False, metadata=_setting(_switch, "whether the service stands behind a proxy that speaks TLS", "yes|no")
    )


def variable(name: str) -> str:
    """Name of the setting's environment variable."""
    return f"PLANNER_{name.upper()}"


def add_settings(parser: argparse.ArgumentParser, *names: str) -> None:
    """Options for these settings; all of them where none is named."""
    for f in fields(Settings):
        if names and f.name not in names:
            continue
        parser.add_argument(
            f"--{f.name.replace('_', '-')}",
            metavar=f.metadata["metavar"],
            help=f"{f.metadata['description']} ({variable(f.name)}{_default(f)})",
        )


def _default(f: Field[Any]) -> str:
    if f.default is MISSING or f.default in ((), ""):
        return ""  # of this machine, or nothing
    value = f.default
    if isinstance(value, bool):
        value = "yes" if value else "no"
    elif f.metadata["metavar"] == "SIZE":
        value = "0" if not value else f"{value // 2**20} MiB" if value < 2**30 else f"{value // 2**30} GiB"
    elif isinstance(value, float):
        value = f"{value:g}"
    return f"; default: {value}"


def settings_of(options: argparse.Namespace, environment: Mapping[str, str] | None = None) -> Settings:
    """UsageError where a value is not of its setting's form."""
    given = os.environ if environment is None else environment
    values: dict[str, Any] = {}
    for f in fields(Settings):
        text, where = getattr(options, f.name, None), f"--{f.name.replace('_', '-')}"
        if text is None:
            text, where = given.get(variable(f.name)), variable(f.name)
        if text is None or text == "":
            continue
        try:
            values[f.name] = f.metadata["parse"](text)
        except ValueError as e:
            raise UsageError(f"{where} {text!r}: {e}") from e
    return Settings(**values)


def is_loopback(host: str) -> bool:
    """Whether nothing but this machine can reach the address."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
