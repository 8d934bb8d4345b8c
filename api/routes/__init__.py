"""The routes of the service, one file for each kind of thing.

A module here that holds a `router` is mounted, described, counted and limited by what it says of itself: nothing else
lists it.
"""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules

from fastapi import APIRouter

__all__ = ["routers"]


def routers() -> list[APIRouter]:
    """Of all modules of this package, by their names.  TypeError where one holds none."""
    return [_router(f"{__name__}.{module.name}") for module in iter_modules(__path__)]


def _router(module: str) -> APIRouter:
    found = getattr(import_module(module), "router", None)
    if not isinstance(found, APIRouter):
        raise TypeError(f"{module}: expected an APIRouter by the name of router, found {found!r}")
    return found
