"""Moments as everything that people or other programs read has them: RFC 3339, UTC, milliseconds."""

from __future__ import annotations

import time

__all__ = ["moment"]


def moment(seconds: float) -> str:
    """Of seconds since the epoch, as `2026-01-31T09:30:00.125Z`; later moments have no lesser text."""
    whole, thousandths = divmod(int(seconds * 1000), 1000)
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(whole))}.{thousandths:03d}Z"
