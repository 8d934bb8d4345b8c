"""Samples, tokens and operations per second of a step, as one line."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["rates_text"]


def rates_text(document: Mapping[str, Any]) -> str:
    """Samples, tokens and operations a second, as far as they can be counted."""
    out = []
    if document.get("samples_per_s") is not None:
        out.append(f"{_four(document['samples_per_s'])} samples/s")
    if document.get("tokens_per_s") is not None:
        out.append(f"{document['tokens_per_s']:,.0f} tokens/s")
    if document.get("mfu") is not None:
        rate = document["flops_per_s_per_device"] / 1e12
        out.append(f"{_four(rate)} TFLOP/s per device (MFU {document['mfu']:.1%})")
    return ", ".join(out)


def _four(x: float) -> str:
    """Four digits, never as a power of ten."""
    if x >= 1000:
        return f"{x:,.0f}"
    return f"{x:.4g}" if x >= 1e-4 or not x else "less than 0.0001"
