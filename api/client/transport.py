"""Requests that are sent again where that is safe, and answers that are values or errors."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import httpx

from planner.api.client.problems import ConnectionFailed, problem_error
from planner.errors import UsageError
from planner.version import __version__

__all__ = ["Transport"]

FIRST_PAUSE, LONGEST_PAUSE = 0.2, 10.0  # seconds before sending again; doubled each time
AGAIN = frozenset({429, 502, 503, 504})
Query = Sequence[tuple[str, str]]


class Transport:
    """`patience`: seconds for which a request is sent again while the service is away, full or overloaded.

    Requests are only sent again when the service would take them once: GET, DELETE, cancelling, and those that carry
    an idempotency key.
    """

    def __init__(self, url: str, key: str | None, timeout: float, patience: float, http: httpx.Client | None) -> None:
        address = httpx.URL(url if "://" in url else f"http://{url}")
        if address.scheme not in ("http", "https") or not address.host:
            raise UsageError(f"--server {url}: expected an address such as http://127.0.0.1:8080")
        self.url = str(address).rstrip("/")
        self.patience = patience
        self._headers = {"User-Agent": f"planner-client/{__version__}"}
        if key:
            if not key.isascii() or not key.isprintable():
                raise UsageError("--key: a key has printable ASCII characters alone")
            self._headers["Authorization"] = f"Bearer {key}"
        self._http = http or httpx.Client(timeout=httpx.Timeout(timeout, connect=min(timeout, 10.0)))

    def close(self) -> None:
        self._http.close()

    def send(
        self,
        method: str,
        path: str,
        *,
        query: Query = (),
        headers: Mapping[str, str] | None = None,
        content: bytes | None = None,
        files: Mapping[str, tuple[str, bytes, str]] | None = None,
        timeout: float | None = None,
    ) -> httpx.Response:
        """The answer, its status below 400.  ProblemError for what the service refuses, ConnectionFailed where none
        answers."""
        until = time.monotonic() + self.patience
        pause = FIRST_PAUSE
        more: dict[str, Any] = {} if timeout is None else {"timeout": timeout}
        while True:
            wait = pause * random.uniform(0.5, 1.0)  # many clients must not come back at once
            try:
                response = self._http.request(
                    method,
                    self.url + path,
                    params=list(query),
                    headers={**self._headers, **(headers or {})},
                    content=content,
                    files=files,
                    **more,
                )
            except httpx.TransportError as error:
                if time.monotonic() + wait > until:
                    raise ConnectionFailed(self._unreachable(error)) from error
            else:
                if response.status_code < 400:
                    return response
                wait = max(wait, _retry_after(response))
                if response.status_code not in AGAIN or time.monotonic() + wait > until:
                    raise _refusal(response, self.url)
            time.sleep(wait)
            pause = min(2 * pause, LONGEST_PAUSE)

    @contextmanager
    def stream(self, path: str, headers: Mapping[str, str], silence: float) -> Iterator[Iterator[bytes]]:
        """The bytes of an answer as they come; once, as who reads knows where to go on.

        `silence`: seconds without a byte after which the connection counts as broken.  httpx.TransportError then.
        """
        limits = httpx.Timeout(silence, connect=min(silence, 10.0))
        with self._http.stream(
            "GET", self.url + path, headers={**self._headers, **headers}, timeout=limits
        ) as response:
            if response.status_code >= 400:
                response.read()
                raise _refusal(response, self.url)
            yield response.iter_bytes()

    def _unreachable(self, error: Exception) -> str:
        reason = str(error) or type(error).__name__
        return (
            f"the service at {self.url} cannot be reached ({reason}); start one with `planner serve`, or give --server"
        )


def _retry_after(response: httpx.Response) -> float:
    text = response.headers.get("retry-after", "")
    return min(float(text), 600.0) if text.isascii() and text.isdigit() else 0.0


def _refusal(response: httpx.Response, url: str) -> Exception:
    try:
        document = response.json()
    except ValueError:
        document = None
    if isinstance(document, dict) and ("title" in document or "type" in document):
        return problem_error(document, response.status_code)
    return ConnectionFailed(
        f"what answers at {url} is no planner service, or stands before it: status {response.status_code}, "
        f"{response.headers.get('content-type', 'no type')}"
    )
