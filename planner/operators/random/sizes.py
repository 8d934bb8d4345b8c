"""How operators that draw random numbers carry a new size."""

from __future__ import annotations

from planner.frontends.facts.sizes import shaped_like_first

__all__: list[str] = []


shaped_like_first("Dropout")
shaped_like_first("com.microsoft::BiasDropout", others=(2,))
