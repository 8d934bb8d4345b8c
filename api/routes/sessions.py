"""`/v1/sessions`: a key becomes a cookie, for the page: an EventSource cannot send headers."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response
from pydantic import ValidationError
from starlette.concurrency import run_in_threadpool

from planner.api.auth import COOKIE, LOCAL, SESSION_S, Tenant, end_session, keys_needed, open_session, within_rate
from planner.api.descriptions import header, json_body, problems
from planner.api.errors import Problem
from planner.api.respond import document
from planner.api.schemas import Session, SessionRequest
from planner.api.service import service_of
from planner.api.wire import network_of

__all__ = ["router"]

router = APIRouter(tags=["sessions"])


@router.get(
    "/v1/sessions",
    operation_id="getSession",
    summary="Whose session it is",
    responses={200: {"model": Session}, **problems()},
)
async def get_session(request: Request, tenant: Tenant) -> Response:
    service = service_of(request)
    return document(request, Session(tenant=tenant, keys=await service.look(keys_needed, service)))


@router.post(
    "/v1/sessions",
    operation_id="createSession",
    summary="Log in",
    responses={
        200: {"model": Session, "headers": {"Set-Cookie": header("The session.", required=False)}},
        **problems("origin-forbidden", "body-timeout", "too-large", "unsupported-media-type", "validation"),
    },
    openapi_extra={"security": [], "requestBody": json_body(SessionRequest)},
)
async def create_session(request: Request) -> Response:
    """The cookie is HttpOnly, is sent from this site alone, and ends with the key or after twelve hours."""
    service = service_of(request)
    await within_rate(request, service, _address(request))
    media = request.headers.get("content-type", "")
    if media.split(";")[0].strip().lower() != "application/json":
        expected = ["application/json"]
        raise Problem(
            "unsupported-media-type",
            f"Content-Type {media[:100]!r}: expected application/json",
            more={"expected": expected},
        )
    try:
        requested = SessionRequest.model_validate_json(await request.body())
    except ValidationError as e:
        errors = [
            {"in": "body", "name": ".".join(map(str, found["loc"])) or "body", "detail": found["msg"]}
            for found in e.errors(include_input=False, include_url=False, include_context=False)
        ]
        raise Problem("validation", 'the body is not {"key": "…"}', errors=errors) from None
    if not await service.look(keys_needed, service):
        return document(request, Session(tenant=LOCAL, keys=False))
    tenant, value = await service.look(open_session, service, requested.key)
    answer = document(request, Session(tenant=tenant, keys=True))
    answer.set_cookie(
        COOKIE, value, max_age=SESSION_S, path="/", httponly=True, samesite="strict", secure=service.settings.https
    )
    return answer


@router.delete(
    "/v1/sessions",
    operation_id="endSession",
    summary="Log out",
    status_code=204,
    response_class=Response,
    responses={
        204: {"description": "The session has ended"},
        **problems("origin-forbidden", "rate-limited", "storage-full", keys=False),
    },
    openapi_extra={"security": []},
)
async def delete_session(request: Request) -> Response:
    """The cookie is removed, and a copy of it opens nothing any more."""
    await within_rate(request, service_of(request), _address(request))
    if (cookie := request.cookies.get(COOKIE)) is not None:
        await run_in_threadpool(end_session, service_of(request), cookie)
    answer = Response(status_code=204)
    answer.delete_cookie(COOKIE, path="/", httponly=True, samesite="strict", secure=service_of(request).settings.https)
    return answer


def _address(request: Request) -> str:
    """Whose rate counts where nobody has a key yet; no tenant's name has a space."""
    return f"login {network_of(request.client)}"
