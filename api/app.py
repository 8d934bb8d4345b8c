"""The FastAPI application."""

from __future__ import annotations

from fastapi import FastAPI
from pydantic import BaseModel

from cost_models import load_profile, profile_names
from planner import __version__

__all__ = ["create_app"]


class Health(BaseModel):
    status: str
    version: str


class Hardware(BaseModel):
    """A machine that can be planned for; memory in bytes per device, None where the profile sets no limit."""

    name: str
    description: str
    devices_per_server: int | None
    memory_bytes: int | None


def create_app() -> FastAPI:
    """Health checks and the list of hardware."""
    app = FastAPI(title="planner", version=__version__)

    @app.get("/healthz")
    def healthz() -> Health:
        return Health(status="ok", version=__version__)

    @app.get("/readyz")
    def readyz() -> Health:
        return Health(status="ok" if profile_names() else "no hardware profiles", version=__version__)

    @app.get("/v1/hardware")
    def hardware() -> list[Hardware]:
        profiles = [load_profile(name) for name in profile_names()]
        return [
            Hardware(
                name=p.name,
                description=p.description,
                devices_per_server=p.devices_per_server,
                memory_bytes=p.memory_bytes,
            )
            for p in profiles
        ]

    return app
