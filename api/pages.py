"""Cursors: where the next page of a list begins.  They are signed, so that nobody can make one up."""

from __future__ import annotations

import base64
import binascii
import contextlib
import hashlib
import hmac
import os
from pathlib import Path

from starlette.datastructures import URL

from planner.api.errors import Problem

__all__ = ["Signer", "next_link", "own_secret"]

_SIGNED = 12  # bytes of the signature


def own_secret(folder: Path) -> bytes:
    """The 32 bytes that only this service knows, made at the first call."""
    path = folder / "secret"
    for _ in range(2):
        try:
            found = path.read_bytes()
        except FileNotFoundError:
            found = b""
        if len(found) == 32:
            return found
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        temporary = folder / f".secret-{os.getpid()}-{os.urandom(4).hex()}"
        handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(handle, "wb") as out:
            out.write(os.urandom(32))
            out.flush()
            os.fsync(out.fileno())
        if found:
            os.replace(temporary, path)  # a torn one
        else:
            with contextlib.suppress(FileExistsError):
                os.link(temporary, path)  # the first of several processes wins
            temporary.unlink()
    return path.read_bytes()


class Signer:
    """Signs short texts for one purpose and tenant."""

    def __init__(self, secret: bytes) -> None:
        self._secret = secret

    def _signature(self, purpose: str, text: bytes) -> bytes:
        return hmac.digest(self._secret, purpose.encode() + b"\0" + text, hashlib.sha256)[:_SIGNED]

    def seal(self, purpose: str, text: str) -> str:
        signed = text.encode() + self._signature(purpose, text.encode())
        return base64.urlsafe_b64encode(signed).decode().rstrip("=")

    def open(self, purpose: str, sealed: str) -> str | None:
        """The text; None where it was not sealed here for this purpose."""
        if len(sealed) > 500 or not sealed.isascii():
            return None
        try:
            signed = base64.b64decode(sealed + "=" * (-len(sealed) % 4), altchars=b"-_", validate=True)
        except (binascii.Error, ValueError):
            return None
        if base64.urlsafe_b64encode(signed).decode().rstrip("=") != sealed:
            return None  # spare bits of the last letter
        text, signature = signed[:-_SIGNED], signed[-_SIGNED:]
        if not hmac.compare_digest(signature, self._signature(purpose, text)):
            return None
        return text.decode("utf-8", "replace")

    def after(self, purpose: str, cursor: str | None) -> str | None:
        """Where the page begins.  Problem where the cursor is not one of this list and tenant."""
        if cursor is None:
            return None
        text = self.open(purpose, cursor)
        if text is None:
            raise Problem("cursor-invalid", "the cursor was not given by this list; begin again without it")
        return text


def next_link(url: URL, cursor: str | None) -> dict[str, str]:
    """`Link: rel=next`, relative to the service."""
    if cursor is None:
        return {}
    path = url.include_query_params(cursor=cursor)
    return {"link": f'<{path.path}?{path.query}>; rel="next"'}
