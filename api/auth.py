"""Who asks: a key in `Authorization: Bearer`, or the session cookie of the page; without any key, whoever is on this
machine."""

from __future__ import annotations

import secrets
import time
from typing import Annotated, Final

from fastapi import Depends, Request

from planner.api.errors import Problem
from planner.api.jobs.keys import MONITOR
from planner.api.service import Service, service_of

__all__ = [
    "COOKIE",
    "LOCAL",
    "SESSION_S",
    "Tenant",
    "end_session",
    "expect_monitor",
    "mark_of",
    "open_session",
    "tenant_of",
    "within_rate",
]

LOCAL: Final = "local"
COOKIE: Final = "planner_session"
SESSION_S: Final = 12 * 3600


def keys_needed(service: Service) -> bool:
    """True once there has been a key, revoked ones too: revoking the last must not open the door."""
    return service.store.keys.exist()


def tenant_of(request: Request, service: Service) -> str:
    """Problem `unauthorised` unless a valid key or session comes along, or none is needed."""
    keys = service.store.keys
    scheme, _, secret = request.headers.get("authorization", "").partition(" ")
    if scheme:
        if not keys_needed(service):
            return LOCAL
        found = keys.authenticate(secret.strip()) if scheme.lower() == "bearer" else None
        if found is None:
            raise Problem("unauthorised", "the key is unknown or revoked; send Authorization: Bearer KEY")
        if found == MONITOR:
            raise Problem("unauthorised", "the key opens /metrics alone; send one of `planner keys create --tenant T`")
        return found
    cookie = request.cookies.get(COOKIE)
    if cookie is not None and (found := _of_session(service, cookie)) is not None:
        return found
    if keys_needed(service):
        raise Problem("unauthorised", "send Authorization: Bearer KEY; `planner keys create` makes one")
    return LOCAL


def expect_monitor(request: Request, service: Service) -> None:
    """Problem `unauthorised` unless a key for metrics comes along, or none is needed."""
    if not keys_needed(service):
        return
    scheme, _, secret = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() != "bearer" or service.store.keys.authenticate(secret.strip()) != MONITOR:
        message = "metrics count all tenants; send Authorization: Bearer KEY, one of `planner keys create --metrics`"
        raise Problem("unauthorised", message)


def mark_of(request: Request, service: Service) -> str | None:
    """What is kept of the key that a request came with; None where it came without."""
    scheme, _, secret = request.headers.get("authorization", "").partition(" ")
    if not keys_needed(service):
        return None
    if scheme:
        return service.store.keys.mark(secret.strip())
    text = service.signer.open("session", request.cookies.get(COOKIE, ""))
    return None if text is None else text.split(".")[1]


def open_session(service: Service, secret: str) -> tuple[str, str]:
    """The tenant and the value of the cookie.  Problem where the key is not valid."""
    tenant = service.store.keys.authenticate(secret)
    if tenant is None or tenant == MONITOR:
        raise Problem("unauthorised", "the key is unknown or revoked")
    until, mark, nonce = int(time.time()) + SESSION_S, service.store.keys.mark(secret), secrets.token_hex(8)
    return tenant, service.signer.seal("session", f"{until}.{mark}.{nonce}")


def end_session(service: Service, cookie: str) -> None:
    """The cookie is worth nothing any more, wherever it may have been copied to."""
    if (text := service.signer.open("session", cookie)) is not None:
        service.store.sessions.end(text, float(text.partition(".")[0]))


def _of_session(service: Service, cookie: str) -> str | None:
    """The tenant; a session ends with its key, with its time, or when it is ended."""
    text = service.signer.open("session", cookie)
    if text is None:
        return None
    until, mark, *_ = text.split(".")
    if int(until) <= time.time() or service.store.sessions.ended(text):
        return None
    return service.store.keys.holder(mark)


async def within_rate(request: Request, service: Service, tenant: str, count: int = 1) -> None:
    """Problem `rate-limited` where the tenant asks too often; `count`: for how many requests this one stands."""
    rate = await service.rate(tenant, count)
    if rate is None:
        return
    request.state.rate = rate
    if rate.wait:
        message = f"more than {service.settings.rate:g} requests a second; wait {rate.wait:.2g} s"
        raise Problem("rate-limited", message)


async def _tenant(request: Request) -> str:
    service = service_of(request)
    tenant = await service.look(tenant_of, request, service)
    request.state.tenant = tenant
    await within_rate(request, service, tenant)
    service.enter(request, tenant)
    return tenant


Tenant = Annotated[str, Depends(_tenant)]
