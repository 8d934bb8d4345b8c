"""Errors of S3 as those of the store."""

from __future__ import annotations

from typing import Final

from botocore.exceptions import BotoCoreError, ClientError, NoCredentialsError, PartialCredentialsError

from planner.api.jobs.errors import StoreBusy, StoreError, StoreFull, StoreUnusable

__all__ = ["code_of", "store_error"]

_FULL: Final = frozenset(("507", "InsufficientStorage", "QuotaExceeded", "XMinioStorageFull"))
_REFUSED: Final = frozenset((400, 401, 403, 404, 405, 501))


def code_of(e: Exception) -> str:
    """The code of a refusal, `404` where it has no other."""
    return str(e.response.get("Error", {}).get("Code", "")) if isinstance(e, ClientError) else ""


def store_error(where: str, e: BotoCoreError | ClientError) -> StoreError:
    """`where`: the bucket.  Nothing is repeated of a request, which is signed."""
    if isinstance(e, NoCredentialsError | PartialCredentialsError):
        return StoreUnusable(f"{where}: there are no credentials; set AWS_ACCESS_KEY_ID or give the host a role")
    if isinstance(e, ClientError):
        code, status = code_of(e), e.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
        if code in _FULL:
            return StoreFull(f"{where}: no space is left ({code}); nothing was kept")
        if status in _REFUSED:
            return StoreUnusable(f"{where}: {e.operation_name} is refused ({code}); see the bucket's name and policy")
        return StoreBusy(f"{where}: {e.operation_name} failed for now ({code}); try again")
    return StoreBusy(f"{where}: cannot be reached at the moment ({type(e).__name__}); try again")
