"""PyTorch is an extra: absent, it is named in one clear error."""

from __future__ import annotations

from importlib.util import find_spec

from planner.errors import UsageError

__all__ = ["require_torch"]


def require_torch(what: str) -> None:
    """UsageError where PyTorch is not installed; `what` needs it."""
    if find_spec("torch") is None:
        raise UsageError(
            f"{what} needs PyTorch, which is not installed; install the extra: pip install '.[torch]' in the repository"
        )
