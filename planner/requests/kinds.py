"""`--hardware NAME:COUNT+NAME:COUNT`: what names several kinds of devices, and who refuses it."""

from __future__ import annotations

from pathlib import Path

from planner.errors import UsageError

__all__ = ["EXAMPLE", "names_kinds", "refuse_kinds"]

EXAMPLE = "--hardware h100:32+a100-80:32 --devices 64"


def names_kinds(hardware: str | None) -> bool:
    """Whether so many devices of named kinds are asked for, rather than one profile by its name or file."""
    if hardware is None or Path(hardware).exists():
        return False
    return "+" in hardware or hardware.rpartition(":")[2].isdecimal()


def refuse_kinds(hardware: str) -> None:
    """UsageError where several kinds are named to what knows one."""
    if names_kinds(hardware):
        raise UsageError(
            f"--hardware {hardware}: expected the name or the file of one profile here, found a cluster of several "
            f"kinds of devices, which `planner search` alone knows (MODEL {EXAMPLE}); name one of them"
        )
