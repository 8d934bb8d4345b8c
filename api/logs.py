"""Logs: one JSON object a line, on standard error."""

from __future__ import annotations

import json
import logging
import re
import sys
import uuid
from collections.abc import Mapping
from typing import Any

from planner.api.moments import moment

__all__ = ["JsonLines", "log_to", "request_id_of"]

_SANE_ID = re.compile(rb"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


def request_id_of(given: bytes | None) -> str:
    """The caller's id where it is one that may stand in logs and headers, else a new one."""
    if given is not None and _SANE_ID.fullmatch(given):
        return given.decode("ascii")
    return uuid.uuid4().hex


class JsonLines(logging.Formatter):
    """One JSON object a line; `extra={"fields": {...}}` adds members."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": moment(record.created),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        fields = getattr(record, "fields", None)
        if isinstance(fields, Mapping):
            line |= fields
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


def log_to(stream: Any = None, level: int = logging.INFO) -> None:
    """All logs of this process as JSON lines."""
    handler = logging.StreamHandler(sys.stderr if stream is None else stream)
    handler.setFormatter(JsonLines())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level)
