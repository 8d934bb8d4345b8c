"""Content security policies: what pages of this service may do."""

from __future__ import annotations

from functools import cache
from typing import Final

from planner.report.html import SCRIPT_HASHES, STYLE_HASHES

__all__ = ["FRAMED", "hashed_page", "page_policy"]

_SCRIPTS: Final = " ".join(f"'{h}'" for h in SCRIPT_HASHES.values())
_STYLES: Final = " ".join(f"'{h}'" for h in STYLE_HASHES)
FRAMED: Final = "frame-ancestors 'self'; sandbox allow-scripts allow-downloads"


@cache
def hashed_page(more: str) -> dict[str, str]:
    """Headers of a report or diff: only its own script and style, and no origin: names in a model that slipped
    through all escaping could neither call the service nor read its cookie.  The page at / may frame it."""
    policy = (
        f"default-src 'none'; script-src {_SCRIPTS}; style-src {_STYLES}; img-src data:; "
        f"base-uri 'none'; form-action 'none'; {more}"
    )
    return {"content-security-policy": policy, "x-frame-options": "SAMEORIGIN"}


@cache
def page_policy() -> str:
    """Of the page at /: its own files, reports in frames, and this service alone."""
    return (
        f"default-src 'none'; script-src 'self' {_SCRIPTS}; style-src 'self' {_STYLES}; "
        "img-src 'self' data:; connect-src 'self'; frame-src 'self' blob:; base-uri 'none'; frame-ancestors 'none'; "
        "form-action 'none'"
    )
