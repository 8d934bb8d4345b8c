"""`/v1/hardware`: the machines that can be planned for."""

from __future__ import annotations

import dataclasses
import json
from functools import cache
from typing import Annotated

from fastapi import APIRouter, Path, Request, Response
from pydantic import RootModel

from planner.api.auth import Tenant
from planner.api.descriptions import header, link, problems
from planner.api.errors import Problem
from planner.api.respond import constant
from planner.api.schemas import Hardware
from planner.cost_models import load_profile, profile_names

__all__ = ["router"]

router = APIRouter(tags=["hardware"])


class HardwareList(RootModel[list[Hardware]]):
    """All of them, by name."""


@cache
def _all() -> bytes:
    profiles = [load_profile(name) for name in profile_names()]
    listed = [
        Hardware(
            name=p.name,
            description=p.description,
            devices_per_server=p.devices_per_server,
            memory_bytes=p.memory_bytes,
        )
        for p in profiles
    ]
    return HardwareList(listed).model_dump_json().encode()


@cache
def _one(name: str) -> bytes:
    return json.dumps(dataclasses.asdict(load_profile(name))).encode()


_NOT_MODIFIED = {"description": "The caller has it"}


@router.get(
    "/v1/hardware",
    operation_id="listHardware",
    summary="All machines",
    responses={
        200: {
            "model": HardwareList,
            "headers": {"ETag": header("Of these bytes.")},
            "links": {"first": link("getHardware", "The first of them.", name="$response.body#/0/name")},
        },
        304: _NOT_MODIFIED,
        **problems(),
    },
)
async def list_hardware(request: Request, tenant: Tenant) -> Response:
    return await constant(request, _all(), "application/json")


@router.get(
    "/v1/hardware/{name}",
    operation_id="getHardware",
    summary="A machine, with the source of every value",
    responses={
        200: {
            "description": "All values of the profile, as `planner hardware NAME --json` has them",
            "headers": {"ETag": header("Of these bytes.")},
            "content": {"application/json": {"schema": {"type": "object"}}},
        },
        304: _NOT_MODIFIED,
        **problems("not-found", "validation"),
    },
)
async def get_hardware(request: Request, tenant: Tenant, name: Annotated[str, Path(examples=["a100-80"])]) -> Response:
    if name not in profile_names():
        raise Problem("not-found", f"hardware {name[:100]!r}: expected one of {', '.join(profile_names())}")
    return await constant(request, _one(name), "application/json")
