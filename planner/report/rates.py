"""Samples, tokens and operations per second of a step, as one line."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["rates_text"]


def rates_text(document: Mapping[str, Any]) -> str:
    """Samples, tokens and operations a second, as far as they can be counted."""
    out = []
    if document.get("samples_per_s") is not None:
        out.append(f"{document['samples_per_s']:,.4g} samples/s")
    if document.get("tokens_per_s") is not None:
        out.append(f"{document['tokens_per_s']:,.0f} tokens/s")
    if document.get("mfu") is not None:
        rate = document["flops_per_s_per_device"] / 1e12
        out.append(f"{rate:.4g} TFLOP/s per device (MFU {document['mfu']:.1%})")
    return ", ".join(out)
